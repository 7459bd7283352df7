//! Adapters that an engine loaded again under their names.
//!
//! SGLang's hashes cover the load of an adapter, which no event names. A second load shows when a
//! prompt begins with another hash than before. What earlier loads left is never found again, but is
//! removed only as the engine needs its memory. So from then on only what is stored under the adapter
//! afterwards is certain (an engine unloads an adapter when its requests have ended); what is held
//! besides counts for upper bounds alone. A further load shows when a prompt of the newest one does so.
//!
//! If the first hash of an earlier load is stored again, these are no loads, but caches that differ
//! in something else. Nothing is certain of such an adapter until a restart.

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::fleet::presence::slots::EngineKey;
use crate::fleet::snapshot::in_order;
use crate::prefix::PrefixKey;

/// The number of prompts whose first hash is remembered, and of boundaries known to be of the newest
/// loads: about two megabytes each.
const KEPT: usize = 65_536;

/// What a rank's engine has loaded, as far as its stores show.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct Adapters {
    /// The newest hash of each first boundary of a prompt, by the boundary's key, which the adapter's
    /// name is part of.
    #[serde(serialize_with = "in_order::map")]
    roots: HashMap<PrefixKey, EngineKey>,
    /// The adapters that were loaded again, by the key of their empty prefix.
    #[serde(serialize_with = "in_order::map")]
    loads: HashMap<PrefixKey, Load>,
}

/// The newest load of an adapter that was loaded again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct Load {
    /// The hashes stored since, by the key of their boundary.
    #[serde(serialize_with = "in_order::map")]
    current: HashMap<PrefixKey, EngineKey>,
    /// The first hashes of earlier loads.
    #[serde(serialize_with = "in_order::set")]
    earlier: HashSet<EngineKey>,
    /// Whether one of these was stored again, or there are too many.
    is_mixed: bool,
}

impl Load {
    /// The hash that this load is known to have at a boundary.
    #[must_use]
    pub(in crate::fleet) fn hash_at(&self, key: PrefixKey) -> Option<EngineKey> {
        self.current.get(&key).copied()
    }
}

impl Adapters {
    /// What is known of an adapter that was loaded again; `None` for every other one.
    #[must_use]
    pub(in crate::fleet) fn load(&self, seed: PrefixKey) -> Option<&Load> {
        self.loads.get(&seed)
    }

    /// Whether this is the hash that the newest load of an adapter has at a boundary.
    #[must_use]
    pub(in crate::fleet) fn is_current(&self, key: PrefixKey, hash: EngineKey) -> bool {
        let mut loads = self.loads.values();
        loads.any(|load| load.hash_at(key) == Some(hash))
    }

    /// Notes the first hash of a prompt. Returns whether another one was there before.
    pub(in crate::fleet) fn note_root(
        &mut self,
        seed: PrefixKey,
        key: PrefixKey,
        hash: EngineKey,
    ) -> bool {
        if self.roots.len() >= KEPT && !self.roots.contains_key(&key) {
            return false;
        }
        let before = self.roots.insert(key, hash);
        let Some(before) = before.filter(|&before| before != hash) else {
            return false;
        };
        let load = self.loads.entry(seed).or_default();
        load.is_mixed |= load.earlier.contains(&hash) || load.earlier.len() >= KEPT;
        if load.is_mixed || load.hash_at(key) == Some(before) {
            // What seemed to be the newest load is not.
            load.current = HashMap::new();
        }
        if !load.is_mixed {
            load.earlier.insert(before);
        }
        true
    }

    /// Notes a hash that was stored under an adapter.
    pub(in crate::fleet) fn note(&mut self, seed: PrefixKey, key: PrefixKey, hash: EngineKey) {
        if let Some(load) = self.loads.get_mut(&seed)
            && !load.is_mixed
            && (load.current.len() < KEPT || load.current.contains_key(&key))
        {
            load.current.insert(key, hash);
        }
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        let loads = self.loads.values();
        let of = |load: &Load| load.current.allocation_size() + load.earlier.allocation_size();
        self.roots.allocation_size() + self.loads.allocation_size() + loads.map(of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: PrefixKey = 5;

    fn stores(adapters: &mut Adapters, root: PrefixKey, hash: EngineKey) -> bool {
        let is_news = adapters.note_root(SEED, root, hash);
        adapters.note(SEED, root, hash);
        is_news
    }

    #[test]
    fn the_newest_first_hash_of_a_prompt_wins() {
        let mut adapters = Adapters::default();
        assert!(!stores(&mut adapters, 1, 10) && !stores(&mut adapters, 2, 20));
        assert!(adapters.load(SEED).is_none());
        assert!(stores(&mut adapters, 1, 11) && !stores(&mut adapters, 1, 11));
        assert!(adapters.is_current(1, 11) && !adapters.is_current(1, 10));
        // Another prompt of the same load.
        assert!(stores(&mut adapters, 2, 21));
        assert!(adapters.is_current(1, 11) && adapters.is_current(2, 21));
        // A third load.
        assert!(stores(&mut adapters, 1, 12));
        assert!(adapters.is_current(1, 12) && !adapters.is_current(2, 21));
    }

    #[test]
    fn hashes_that_take_turns_are_no_loads() {
        let mut adapters = Adapters::default();
        for hash in [10, 11, 10, 11, 10] {
            stores(&mut adapters, 1, hash);
        }
        stores(&mut adapters, 2, 20);
        assert!(!adapters.is_current(1, 10) && !adapters.is_current(2, 20));
        assert!(adapters.load(SEED).is_some());
    }

    #[test]
    fn what_is_remembered_is_limited() {
        let mut adapters = Adapters::default();
        for prompt in 0..=KEPT as u64 {
            stores(&mut adapters, prompt, prompt);
        }
        assert!(!adapters.note_root(SEED, KEPT as u64, 1));
        assert!(adapters.note_root(SEED, 0, 1));
        for key in 0..=KEPT as u64 {
            adapters.note(SEED, key, key);
        }
        assert!(adapters.is_current(0, 0) && !adapters.is_current(KEPT as u64, KEPT as u64));
        assert!(adapters.bytes() < 8 << 20);
    }
}
