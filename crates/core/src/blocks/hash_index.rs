//! From a block hash to the blocks that hold it, group by group.
//!
//! One entry per hash serves all groups, so a look-up costs one probe whatever the number of
//! groups, and the digest is kept once. A look-up finds the oldest copy in a group. Later copies
//! are rare; they are kept in a side table, oldest first.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::hash::Digest;
use crate::ids::{BlockId, NULL_BLOCK};
use crate::key_table::KeyTable;
use crate::secret::Spreader;

/// A hash that some block is found by, as an index into the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EntryId(pub u32);

/// A hash within a group: what a block is registered under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The hash.
    pub entry: EntryId,
    /// The group.
    pub group: u16,
}

/// The entries of one request's hashes, by hash number, from the first one noted on. Groups
/// register the same hashes one after the other, so the entries are used again.
#[derive(Debug, Default)]
pub struct Entries {
    first: u32,
    /// A decoding request registers one hash: that costs no allocation.
    entries: SmallVec<[Option<EntryId>; 4]>,
}

impl Entries {
    /// The entry of a hash, if it has been noted.
    #[must_use]
    pub fn of(&self, hash: u32) -> Option<EntryId> {
        let at = hash.checked_sub(self.first)?;
        self.entries.get(at as usize).copied().flatten()
    }

    /// Remembers the entry of a hash.
    pub fn note(&mut self, hash: u32, entry: EntryId) {
        if self.entries.is_empty() {
            self.first = hash;
        }
        if let Some(at) = hash.checked_sub(self.first) {
            let len = self.entries.len().max(at as usize + 1);
            self.entries.resize(len, None);
            self.entries[at as usize] = Some(entry);
        }
    }
}

/// All hashes that some block is found by.
#[derive(Debug, Clone)]
pub struct HashIndex {
    num_groups: usize,
    by_key: KeyTable,
    digests: Vec<Digest>,
    /// The oldest copy of each hash in each group, or the null block: `[entry * num_groups +
    /// group]`.
    first: Vec<BlockId>,
    /// The copies after the first, oldest first.
    more: HashMap<Key, SmallVec<[BlockId; 2]>>,
    free: Vec<u32>,
    /// A count of all changes that look-ups can see: copies added and removed.
    version: u64,
}

fn short(digest: &Digest) -> u64 {
    digest.key()
}

impl HashIndex {
    pub(crate) fn new(num_groups: usize, spread: Spreader) -> Self {
        Self {
            num_groups,
            by_key: KeyTable::new(spread),
            digests: Vec::new(),
            first: Vec::new(),
            more: HashMap::new(),
            free: Vec::new(),
            version: 0,
        }
    }

    /// A number that is the same at two times only if no copy was added or removed in between.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The entry of a hash, if some group holds it.
    #[inline]
    pub fn find(&self, digest: &Digest) -> Option<EntryId> {
        let has = |id: u32| self.digests[id as usize] == *digest;
        self.by_key.find(short(digest), has).map(EntryId)
    }

    /// The entry of a hash. The entry made right after `previous` is tried first, because requests
    /// register their hashes in order.
    #[inline]
    #[must_use]
    pub fn find_after(&self, previous: Option<EntryId>, digest: &Digest) -> Option<EntryId> {
        if let Some(EntryId(previous)) = previous
            && self.digests.get(previous as usize + 1) == Some(digest)
            && self.is_live(EntryId(previous + 1))
        {
            return Some(EntryId(previous + 1));
        }
        self.find(digest)
    }

    /// Whether some group holds the entry. An entry that was forgotten still has its digest.
    fn is_live(&self, entry: EntryId) -> bool {
        self.row(entry).iter().any(|&block| block != NULL_BLOCK)
    }

    /// For each group, the oldest copy of an entry; the null block if the group holds none.
    #[inline]
    #[must_use]
    pub fn row(&self, entry: EntryId) -> &[BlockId] {
        let at = entry.0 as usize * self.num_groups;
        &self.first[at..at + self.num_groups]
    }

    /// The digest of an entry.
    #[must_use]
    pub fn digest(&self, entry: EntryId) -> &Digest {
        &self.digests[entry.0 as usize]
    }

    /// All copies of a key, oldest first.
    pub fn copies(&self, key: Key) -> impl Iterator<Item = BlockId> + '_ {
        let first = self.row(key.entry)[usize::from(key.group)];
        let more = self.more.get(&key).into_iter().flatten().copied();
        std::iter::once(first)
            .filter(|&block| block != NULL_BLOCK)
            .chain(more)
    }

    /// The entry of a hash, made if there is none. The entry `hint` is tried first.
    ///
    /// # Panics
    /// At 2^32 hashes.
    pub fn find_or_create(&mut self, digest: &Digest, hint: Option<EntryId>) -> EntryId {
        if let Some(entry) = hint
            && self.digest(entry) == digest
            && self.is_live(entry)
        {
            return entry;
        }
        if let Some(entry) = self.find(digest) {
            return entry;
        }
        let id = if let Some(id) = self.free.pop() {
            self.digests[id as usize] = *digest;
            id
        } else {
            self.digests.push(*digest);
            self.first
                .resize(self.digests.len() * self.num_groups, NULL_BLOCK);
            u32::try_from(self.digests.len() - 1).expect("fewer than 2^32 hashes")
        };
        self.by_key.insert(short(digest), id);
        EntryId(id)
    }

    /// Adds a copy after the existing ones.
    pub fn insert(&mut self, key: Key, block: BlockId) {
        self.version += 1;
        let first =
            &mut self.first[key.entry.0 as usize * self.num_groups + usize::from(key.group)];
        if *first == NULL_BLOCK {
            *first = block;
        } else {
            self.more.entry(key).or_default().push(block);
        }
    }

    /// Removes a copy. An entry without copies is forgotten.
    pub fn remove(&mut self, key: Key, block: BlockId) {
        self.version += 1;
        let at = key.entry.0 as usize * self.num_groups + usize::from(key.group);
        if !self.more.is_empty()
            && let Some(more) = self.more.get_mut(&key)
        {
            if self.first[at] == block {
                self.first[at] = more.remove(0);
            } else {
                more.retain(|copy| *copy != block);
            }
            if more.is_empty() {
                self.more.remove(&key);
            }
            return;
        }
        debug_assert_eq!(self.first[at], block, "a copy that is not registered");
        self.first[at] = NULL_BLOCK;
        if !self.is_live(key.entry) {
            let digest = self.digests[key.entry.0 as usize];
            self.by_key.remove(short(&digest), key.entry.0);
            self.free.push(key.entry.0);
        }
    }

    /// Forgets everything, and gives the memory back.
    pub fn clear(&mut self) {
        let version = self.version + 1;
        *self = Self {
            version,
            ..Self::new(self.num_groups, self.by_key.spread())
        };
    }

    /// Every key that has a copy.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.by_key.ids().flat_map(move |id| {
            let entry = EntryId(id);
            (0u16..)
                .zip(self.row(entry))
                .filter(|(_, block)| **block != NULL_BLOCK)
                .map(move |(group, _)| Key { entry, group })
        })
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.by_key.bytes()
            + self.digests.capacity() * size_of::<Digest>()
            + (self.first.capacity() + self.free.capacity()) * 4
            + self.more.allocation_size()
    }

    /// Checks every entry.
    ///
    /// # Panics
    /// Unless every entry is found by its digest and holds a copy.
    pub fn check_integrity(&self) {
        assert_eq!(self.by_key.len() + self.free.len(), self.digests.len());
        for id in self.by_key.ids() {
            let entry = EntryId(id);
            assert_eq!(self.find(self.digest(entry)), Some(entry));
            assert!(
                self.row(entry).iter().any(|&block| block != NULL_BLOCK),
                "entry {id} is kept without a copy"
            );
        }
        for (key, more) in &self.more {
            assert!(!more.is_empty(), "{key:?}: an empty list of copies is kept");
            assert_ne!(self.row(key.entry)[usize::from(key.group)], NULL_BLOCK);
        }
    }
}
