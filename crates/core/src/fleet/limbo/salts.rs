//! Classes of hashes that share one salt, known or not, kept as a union-find structure.

use std::cell::Cell;

use super::fact::ClassId;
use super::records::{OfClass, SaltClass};
use super::{Limbo, LimboContext};
use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::slots::LimboId;

impl Limbo {
    /// Makes a new class.
    pub(in crate::fleet) fn new_class(&mut self, label: Option<SaltId>) -> ClassId {
        let id = u32::try_from(self.classes.len()).expect("fewer than 2^32 classes");
        self.classes.push(SaltClass {
            parent: Cell::new(id),
            weight: 1,
            label,
            members: None,
        });
        ClassId(id)
    }

    /// The class that `class` has become part of, or `class` itself.
    #[must_use]
    pub(super) fn root(&self, class: ClassId) -> ClassId {
        let parent = |id: u32| self.classes[id as usize].parent.get();
        let mut id = class.0;
        while parent(id) != id {
            let above = parent(parent(id));
            self.classes[id as usize].parent.set(above);
            id = above;
        }
        ClassId(id)
    }

    /// The salt of a class, if it is known.
    pub(super) fn label(&self, class: ClassId) -> Option<SaltId> {
        self.classes[self.root(class).0 as usize].label
    }

    /// The salt class of a hash.
    #[must_use]
    pub(in crate::fleet) fn class_of(&self, entry: LimboId) -> ClassId {
        self.root(self.entries[entry.0].class)
    }

    /// Adds a hash to the ring of its class.
    pub(super) fn enter_class(&mut self, id: LimboId) {
        let class = self.class_of(id).0 as usize;
        let head = self.classes[class].members.map(|e| e.0);
        let head = LimboId(self.entries.enter::<OfClass>(head, id.0));
        self.classes[class].members = Some(head);
    }

    /// Takes a hash out of the ring of its class.
    pub(super) fn leave_class(&mut self, id: LimboId) {
        let class = self.class_of(id).0 as usize;
        self.classes[class].members = self.entries.leave::<OfClass>(id.0).map(LimboId);
    }

    /// The hashes of a class.
    pub(super) fn of_class(&self, class: ClassId) -> Vec<LimboId> {
        let head = self.classes[class.0 as usize].members.map(|e| e.0);
        self.entries.ring::<OfClass>(head).map(LimboId).collect()
    }

    /// Makes two classes one.
    pub(super) fn unite(&mut self, a: ClassId, b: ClassId, context: &mut LimboContext<'_>) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        let weight = |class: ClassId| self.classes[class.0 as usize].weight;
        let (small, large) = if weight(a) < weight(b) {
            (a, b)
        } else {
            (b, a)
        };
        let (salt, newly_known) = match (self.label(small), self.label(large)) {
            (Some(x), Some(y)) => {
                self.contradictions += u64::from(x != y);
                (Some(y), Vec::new())
            }
            (Some(salt), None) => (Some(salt), self.of_class(large)),
            (None, Some(salt)) => (Some(salt), self.of_class(small)),
            (None, None) => (None, Vec::new()),
        };
        let weights = weight(small).saturating_add(weight(large));
        let lost = &mut self.classes[small.0 as usize];
        lost.parent.set(large.0);
        let members = lost.members.take();
        let kept = &mut self.classes[large.0 as usize];
        kept.weight = weights;
        kept.label = salt;
        let (a, b) = (kept.members.map(|e| e.0), members.map(|e| e.0));
        kept.members = self.entries.join::<OfClass>(a, b).map(LimboId);
        self.leave_where_decided(&newly_known, context);
    }

    /// Notes the salt of a class.
    pub(super) fn has_salt(
        &mut self,
        class: ClassId,
        salt: SaltId,
        context: &mut LimboContext<'_>,
    ) {
        let root = self.root(class);
        if let Some(old) = self.classes[root.0 as usize].label {
            self.contradictions += u64::from(old != salt);
            return;
        }
        self.classes[root.0 as usize].label = Some(salt);
        let members = self.of_class(root);
        self.leave_where_decided(&members, context);
    }

    fn leave_where_decided(&mut self, entries: &[LimboId], context: &mut LimboContext<'_>) {
        context.effort.note(entries.len() as u64);
        for &entry in entries {
            self.leave_if_decided(entry, context);
        }
    }
}
