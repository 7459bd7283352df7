//! From a 64-bit key to the index of the record that has it.
//!
//! Each entry keeps 32 bits of its key's hash beside the index: neither growing the table nor
//! passing over another key touches the records, which are mostly not in the processor's caches.

use hashbrown::HashTable;

#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    id: u32,
}

/// Indices by key. The keys themselves are the caller's, who says whether a record has one.
#[derive(Debug, Default)]
pub(crate) struct KeyTable {
    entries: HashTable<Entry>,
}

/// Keys may be digests, but tests' keys are 1, 2, 3.
fn tag_of(key: u64) -> u32 {
    let mixed = (key ^ (key >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    u32::try_from(mixed >> 32).unwrap_or(u32::MAX)
}

const fn spread(tag: u32) -> u64 {
    (tag as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl KeyTable {
    /// The record of a key; `has` says whether a record has it.
    pub(crate) fn find(&self, key: u64, has: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = tag_of(key);
        let is_it = |entry: &Entry| entry.tag == tag && has(entry.id);
        self.entries.find(spread(tag), is_it).map(|entry| entry.id)
    }

    /// Adds the record of a key that is not in the table.
    pub(crate) fn insert(&mut self, key: u64, id: u32) {
        if self.entries.len() == self.entries.capacity() {
            self.renew();
        }
        let tag = tag_of(key);
        self.entries
            .insert_unique(spread(tag), Entry { tag, id }, |entry| spread(entry.tag));
    }

    /// Makes room, by what is in the table alone: removals leave marks, and a table that counts them
    /// doubles where its load only comes and goes.
    fn renew(&mut self) {
        let len = self.entries.len();
        let room = HashTable::with_capacity(len + len / 8 + 1);
        for entry in std::mem::replace(&mut self.entries, room) {
            self.entries
                .insert_unique(spread(entry.tag), entry, |entry| spread(entry.tag));
        }
    }

    /// Takes a record out; false when it was not in.
    pub(crate) fn remove(&mut self, key: u64, id: u32) -> bool {
        let is_it = |entry: &Entry| entry.id == id;
        let Ok(found) = self.entries.find_entry(spread(tag_of(key)), is_it) else {
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

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.allocation_size()
    }
}
