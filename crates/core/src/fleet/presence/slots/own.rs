//! The hashes that a rank keeps itself: those that are undecided, and those that are not the usual ones
//! of their nodes.

use super::{EngineKey, LIMBO, SlotId};
use crate::key_table::KeyTable;
use crate::secret::Spreader;

/// A hash, where it stands (`super::encode`), and its slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnHash {
    pub(super) key: EngineKey,
    pub(super) place: u32,
    pub(super) slot: SlotId,
}

/// The hashes of one rank that it keeps itself, without gaps.
#[derive(Debug)]
pub(super) struct OwnHashes {
    pub(super) all: Vec<OwnHash>,
    by_key: KeyTable,
}

impl OwnHashes {
    pub(super) fn new(spread: Spreader) -> Self {
        Self::with_room(spread, 0)
    }

    /// With room for so many.
    pub(super) fn with_room(spread: Spreader, hashes: usize) -> Self {
        Self {
            all: Vec::with_capacity(hashes),
            by_key: KeyTable::with_room(spread, hashes),
        }
    }

    pub(super) fn spread(&self) -> Spreader {
        self.by_key.spread()
    }

    /// The slot of a hash.
    pub(super) fn find(&self, key: EngineKey) -> Option<SlotId> {
        let has = |index: u32| self.all[index as usize].key == key;
        let index = self.by_key.find(key, has)?;
        Some(self.all[index as usize].slot)
    }

    /// Adds a hash that is not there, and returns its index.
    pub(super) fn insert(&mut self, hash: OwnHash) -> u32 {
        let index = u32::try_from(self.all.len()).expect("fewer than 2^32 hashes");
        self.by_key.insert(hash.key, index);
        self.all.push(hash);
        index
    }

    /// Removes the hash at an index, and returns it. The last one takes its index.
    pub(super) fn remove(&mut self, index: u32) -> OwnHash {
        let removed = self.all.swap_remove(index as usize);
        self.by_key.remove(removed.key, index);
        if let Some(last) = self.all.get(index as usize) {
            let from = u32::try_from(self.all.len()).expect("fewer than 2^32 hashes");
            self.by_key.remove(last.key, from);
            self.by_key.insert(last.key, index);
        }
        removed
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How many of them are undecided and stand at this place (`super::encode`).
    pub(super) fn num_at(&self, place: u32) -> usize {
        debug_assert!(place & LIMBO != 0, "many may stand at a node");
        self.all.iter().filter(|hash| hash.place == place).count()
    }

    pub(super) fn give_back(&mut self) {
        self.all.shrink_to_fit();
        self.by_key.give_back();
    }

    /// The bytes of spare capacity.
    pub(super) fn idle_bytes(&self) -> usize {
        let table = super::idle_in_table(self.by_key.bytes(), self.len(), KeyTable::ENTRY);
        (self.all.capacity() - self.len()) * size_of::<OwnHash>() + table
    }

    /// Bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<OwnHash>() + self.by_key.bytes()
    }
}
