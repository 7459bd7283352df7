//! A hash table that grows step by step.
//!
//! Each insertion into a large table that grows moves a few entries to a larger table, and until all
//! have moved both tables are searched. So no single insertion pays for all entries. The caller says
//! where an entry is looked for.

use std::hint::black_box;

use hashbrown::HashTable;

/// Entries by place. The caller gives the place of an entry, and says which entry is meant.
#[derive(Debug, Clone)]
pub(crate) struct GrowingTable<E> {
    entries: HashTable<E>,
    /// The table before it last grew: the entries still in it move to `entries`.
    former: HashTable<E>,
    /// Buckets of `former` that were not looked at yet: those below.
    unmoved: usize,
    /// Buckets that an insertion looks at, so that `former` is empty before `entries` is full.
    stride: usize,
}

/// A table of so many buckets moves at once, which takes a millisecond.
const AT_ONCE: usize = 1 << 16;
/// Buckets that mostly share a line of the processor's caches, and of which one is mostly in use.
const NEAR: u64 = 4;
/// Buckets that an insertion looks at, at least, while entries move: about a microsecond. With fewer, both
/// tables are there for longer.
pub(crate) const STRIDE: usize = 32;

impl<E: Copy> GrowingTable<E> {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self::with_room(0)
    }

    /// An empty table with room for so many entries.
    pub(crate) fn with_room(entries: usize) -> Self {
        Self {
            entries: HashTable::with_capacity(entries),
            former: HashTable::new(),
            unmoved: 0,
            stride: STRIDE,
        }
    }

    /// The entry at this place that is meant.
    pub(crate) fn find(&self, place: u64, is_it: impl Fn(&E) -> bool) -> Option<E> {
        let found = self.entries.find(place, &is_it);
        if found.is_none() && !self.former.is_empty() {
            return self.former.find(place, is_it).copied();
        }
        found.copied()
    }

    /// Fetches from memory what an insertion at this place will write to: the entries there are not next
    /// to their control bytes, and a look-up that finds nothing has read these alone.
    pub(crate) fn fetch(&self, place: u64) {
        let last = self.entries.num_buckets().saturating_sub(1) as u64;
        let at = |step| usize::try_from(place.wrapping_add(step) & last).unwrap_or(0);
        black_box((0..NEAR).find_map(|step| self.entries.get_bucket(at(step)).copied()));
    }

    /// Adds an entry that is not in the table.
    pub(crate) fn insert(&mut self, entry: E, place: impl Fn(&E) -> u64) {
        if self.entries.len() == self.entries.capacity() {
            self.renew(&place);
        }
        if self.unmoved > 0 {
            self.move_some(self.stride, &place);
        }
        self.entries.insert_unique(place(&entry), entry, place);
    }

    /// Makes room according to the number of entries alone. Removals leave marks; a table that counted
    /// them would double even if entries only come and go.
    fn renew(&mut self, place: &impl Fn(&E) -> u64) {
        self.move_some(usize::MAX, place);
        let len = self.entries.len();
        let room = HashTable::with_capacity(len + len / 8 + 1);
        self.former = std::mem::replace(&mut self.entries, room);
        self.unmoved = self.former.num_buckets();
        let insertions = self.entries.capacity() - len;
        self.stride = self.unmoved.div_ceil(insertions).max(STRIDE);
        if self.unmoved <= AT_ONCE {
            self.move_some(usize::MAX, place);
        }
    }

    /// Moves what is in the next buckets of the former table.
    fn move_some(&mut self, buckets: usize, place: &impl Fn(&E) -> u64) {
        let rest = self.unmoved.saturating_sub(buckets);
        for bucket in rest..self.unmoved {
            if let Ok(found) = self.former.get_bucket_entry(bucket) {
                let (entry, _) = found.remove();
                self.entries.insert_unique(place(&entry), entry, place);
            }
        }
        self.unmoved = rest;
        if rest == 0 {
            self.former = HashTable::new();
        }
    }

    /// Removes the entry at this place that is meant; false if it was not in the table.
    pub(crate) fn remove(&mut self, place: u64, is_it: impl Fn(&E) -> bool) -> bool {
        for table in [&mut self.entries, &mut self.former] {
            if let Ok(found) = table.find_entry(place, &is_it) {
                found.remove();
                return true;
            }
        }
        false
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = E> + '_ {
        self.entries.iter().chain(&self.former).copied()
    }

    /// How many entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.former.len()
    }

    /// How many of them still have to move.
    #[cfg(test)]
    pub(crate) fn unmoved(&self) -> (usize, usize) {
        (self.unmoved, self.former.len())
    }

    /// Gives back what the entries do not need.
    pub(crate) fn give_back(&mut self, place: impl Fn(&E) -> u64) {
        self.move_some(usize::MAX, &place);
        self.entries.shrink_to_fit(place);
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.allocation_size() + self.former.allocation_size()
    }
}
