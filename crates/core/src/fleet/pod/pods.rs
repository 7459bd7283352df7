//! All pods: found by name in a time that does not depend on how many there are, and in the order of
//! their names.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use hashbrown::HashMap;

use super::Pod;

/// The registered pods.
#[derive(Debug, Default)]
pub(in crate::fleet) struct Pods {
    by_name: HashMap<Arc<str>, Pod>,
    in_order: BTreeSet<Arc<str>>,
}

impl Pods {
    /// The pod of this name.
    #[must_use]
    pub(in crate::fleet) fn get(&self, name: &str) -> Option<&Pod> {
        self.by_name.get(name)
    }

    /// The same pod, to be changed.
    pub(in crate::fleet) fn get_mut(&mut self, name: &str) -> Option<&mut Pod> {
        self.by_name.get_mut(name)
    }

    /// Adds a pod, or puts it in the place of the one that has its name.
    pub(in crate::fleet) fn insert(&mut self, pod: Pod) {
        self.in_order.insert(Arc::clone(&pod.name));
        self.by_name.insert(Arc::clone(&pod.name), pod);
    }

    /// Takes a pod out.
    pub(in crate::fleet) fn remove(&mut self, name: &str) -> Option<Pod> {
        self.in_order.remove(name);
        self.by_name.remove(name)
    }

    /// All pods, in no order.
    pub(in crate::fleet) fn in_any_order(&self) -> impl Iterator<Item = &Pod> {
        self.by_name.values()
    }

    /// The pods from this name on, in the order of names.
    pub(in crate::fleet) fn from(&self, first: Bound<&str>) -> impl Iterator<Item = &Pod> {
        let names = self.in_order.range::<str, _>((first, Bound::Unbounded));
        names.filter_map(|name| self.get(name))
    }

    /// All pods, in the order of names.
    pub(in crate::fleet) fn in_order(&self) -> impl Iterator<Item = &Pod> {
        self.from(Bound::Unbounded)
    }

    /// Panics unless the pods in order are those by name.
    pub(in crate::fleet) fn check_integrity(&self) {
        assert_eq!(self.by_name.len(), self.in_order.len(), "pods in order");
        assert!(self.by_name.keys().all(|name| self.in_order.contains(name)));
    }
}
