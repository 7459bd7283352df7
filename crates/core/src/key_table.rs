//! From a 64-bit key to the index of the record that has it.
//!
//! Each entry keeps 32 bits of its key's hash beside the index: neither growing the table nor
//! passing over another key touches the records, which are mostly not in the processor's caches.
//! Those bits depend on a secret, so that nobody can choose keys which share them.

use crate::growing::GrowingTable;
use crate::secret::Spreader;

#[derive(Debug, Clone, Copy)]
struct TaggedId {
    tag: u32,
    id: u32,
}

/// Indices by key. The caller keeps the keys, and says whether a record has a key.
#[derive(Debug, Clone)]
pub(crate) struct KeyTable {
    spread: Spreader,
    entries: GrowingTable<TaggedId>,
}

/// Where in the table a tag is looked for. Tags are spread already; their bits only have to reach
/// both ends of the word, because the table takes its index and its control bytes from there.
const fn place(tag: u32) -> u64 {
    (tag as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl KeyTable {
    /// An empty table.
    pub(crate) fn new(spread: Spreader) -> Self {
        Self::with_room(spread, 0)
    }

    /// An empty table with room for so many records.
    pub(crate) fn with_room(spread: Spreader, records: usize) -> Self {
        Self {
            spread,
            entries: GrowingTable::with_room(records),
        }
    }

    /// How the table spreads its keys.
    pub(crate) fn spread(&self) -> Spreader {
        self.spread
    }

    /// The record of a key; `has` says whether a record has it.
    pub(crate) fn find(&self, key: u64, has: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = self.spread.tag(key);
        let is_it = |entry: &TaggedId| entry.tag == tag && has(entry.id);
        self.entries.find(place(tag), is_it).map(|entry| entry.id)
    }

    /// Fetches from memory what `insert` will write to for a key that was not found.
    pub(crate) fn fetch(&self, key: u64) {
        self.entries.fetch(place(self.spread.tag(key)));
    }

    /// Adds the record of a key that is not in the table.
    pub(crate) fn insert(&mut self, key: u64, id: u32) {
        let tag = self.spread.tag(key);
        self.entries
            .insert(TaggedId { tag, id }, |entry| place(entry.tag));
    }

    /// Removes a record; false if it was not in the table.
    pub(crate) fn remove(&mut self, key: u64, id: u32) -> bool {
        let place = place(self.spread.tag(key));
        self.entries.remove(place, |entry| entry.id == id)
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
        self.entries.give_back(|entry| place(entry.tag));
    }

    /// Bytes of a record in the table.
    pub(crate) const ENTRY: usize = size_of::<TaggedId>();

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use super::*;
    use crate::growing::STRIDE;
    use crate::secret::Secret;

    /// The factor that tags were made with while it was a constant of the source.
    const FORMER: u64 = 0x9E37_79B9_7F4A_7C15;

    /// Keys that get the same tag from the former factor: anyone could compute them.
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

    #[test]
    fn a_table_that_grows_by_and_by_has_what_a_plain_one_has() {
        let mut table = KeyTable::new(Secret::new([7; 32]).spread());
        let mut model: BTreeMap<u64, u32> = BTreeMap::new();
        let mut was_moving = 0;
        for step in 0..400_000u32 {
            // Keys of which two thirds stay: those that go are in either table.
            let key = u64::from(step).wrapping_mul(0x5851_F42D_4C95_7F2D);
            table.insert(key, step);
            model.insert(key, step);
            if step % 3 == 2 {
                let (&gone, &id) = model.iter().next().expect("more come than go");
                assert!(table.remove(gone, id));
                assert!(!table.remove(gone, id));
                model.remove(&gone);
            }
            was_moving += u32::from(table.entries.unmoved().0 > 0);
            if step % 50_021 == 0 || (table.entries.unmoved().0 > 0 && step % 5_003 == 0) {
                let keys: BTreeMap<u32, u64> = model.iter().map(|(&key, &id)| (id, key)).collect();
                for (&key, &id) in &model {
                    assert_eq!(table.find(key, |id| keys.get(&id) == Some(&key)), Some(id));
                }
                assert!(table.ids().all(|id| keys.contains_key(&id)));
            }
            assert_eq!(table.len(), model.len());
        }
        assert!(was_moving > 10_000, "{was_moving} insertions beside a move");
    }

    #[test]
    fn no_insertion_into_a_large_table_moves_more_than_its_share() {
        let mut table = KeyTable::new(Secret::new([7; 32]).spread());
        let mut before = 0;
        for id in 0..500_000u32 {
            table.insert(u64::from(id), id);
            let moved = before - before.min(table.entries.unmoved().1);
            assert!(moved <= STRIDE || id < 60_000, "{moved} records at {id}");
            before = table.entries.unmoved().1;
        }
    }
}
