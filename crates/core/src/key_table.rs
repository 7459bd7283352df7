//! From a 64-bit key to the index of the record that has it.
//!
//! Each entry keeps 32 bits of its key's hash beside the index: neither growing the table nor
//! passing over another key touches the records, which are mostly not in the processor's caches.
//! Those bits depend on a secret, so that nobody can choose keys which share them.

use hashbrown::HashTable;

use crate::secret::Spread;

#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    id: u32,
}

/// Indices by key. The keys themselves are the caller's, who says whether a record has one.
#[derive(Debug)]
pub(crate) struct KeyTable {
    spread: Spread,
    entries: HashTable<Entry>,
}

/// Where in the table a tag is looked for. Tags are spread already: what is wanted is that their
/// bits reach both ends of the word, the table's index and its control bytes.
const fn place(tag: u32) -> u64 {
    (tag as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl KeyTable {
    /// An empty table.
    pub(crate) fn new(spread: Spread) -> Self {
        Self {
            spread,
            entries: HashTable::new(),
        }
    }

    /// What its keys are spread by.
    pub(crate) fn spread(&self) -> Spread {
        self.spread
    }

    /// The record of a key; `has` says whether a record has it.
    pub(crate) fn find(&self, key: u64, has: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = self.spread.tag(key);
        let is_it = |entry: &Entry| entry.tag == tag && has(entry.id);
        self.entries.find(place(tag), is_it).map(|entry| entry.id)
    }

    /// Adds the record of a key that is not in the table.
    pub(crate) fn insert(&mut self, key: u64, id: u32) {
        if self.entries.len() == self.entries.capacity() {
            self.renew();
        }
        let tag = self.spread.tag(key);
        self.entries
            .insert_unique(place(tag), Entry { tag, id }, |entry| place(entry.tag));
    }

    /// Makes room, by what is in the table alone: removals leave marks, and a table that counts them
    /// doubles where its load only comes and goes.
    fn renew(&mut self) {
        let len = self.entries.len();
        let room = HashTable::with_capacity(len + len / 8 + 1);
        for entry in std::mem::replace(&mut self.entries, room) {
            self.entries
                .insert_unique(place(entry.tag), entry, |entry| place(entry.tag));
        }
    }

    /// Takes a record out; false when it was not in.
    pub(crate) fn remove(&mut self, key: u64, id: u32) -> bool {
        let is_it = |entry: &Entry| entry.id == id;
        let Ok(found) = self.entries.find_entry(place(self.spread.tag(key)), is_it) else {
            return false;
        };
        found.remove();
        true
    }

    /// All records.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|entry| entry.id)
    }

    /// How many records.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Gives back what the records do not need.
    pub(crate) fn give_back(&mut self) {
        self.entries.shrink_to_fit(|entry| place(entry.tag));
    }

    /// Bytes of a record in the table.
    pub(crate) const ENTRY: usize = size_of::<Entry>();

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::secret::Secret;

    /// The factor that tags were made with while it was a constant of the source.
    const FORMER: u64 = 0x9E37_79B9_7F4A_7C15;

    /// Keys that the former factor gave one tag: anybody could compute them.
    fn one_former_tag(count: u64) -> Vec<u64> {
        let inverse = (0..6).fold(1u64, |x, _| {
            x.wrapping_mul(2u64.wrapping_sub(FORMER.wrapping_mul(x)))
        });
        let keys = (0..count).map(|low| {
            let mixed = (7 << 32 | low).wrapping_mul(inverse);
            mixed ^ (mixed >> 32)
        });
        let keys: Vec<u64> = keys.collect();
        let former = |key: u64| (key ^ (key >> 32)).wrapping_mul(FORMER) >> 32;
        assert!(keys.iter().all(|&key| former(key) == 7));
        keys
    }

    #[test]
    fn keys_that_were_chosen_to_share_a_tag_cost_no_more_than_others() {
        let keys = one_former_tag(4096);
        let mut table = KeyTable::new(Secret::new([7; 32]).spread());
        for (id, &key) in (0u32..).zip(&keys) {
            table.insert(key, id);
        }
        let looked_at = Cell::new(0);
        for (id, &key) in (0u32..).zip(&keys) {
            let has = |other: u32| {
                looked_at.set(looked_at.get() + 1);
                keys[other as usize] == key
            };
            assert_eq!(table.find(key, has), Some(id));
        }
        // One record each, but for the few whose tags are equal by chance.
        assert!(looked_at.get() < 4096 + 8, "{looked_at:?} records");
    }
}
