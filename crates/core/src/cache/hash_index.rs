//! From a block hash to the blocks that hold it, group by group.
//!
//! One entry per hash serves all groups: a look-up costs one probe, whatever the number of groups,
//! and the digest is kept once. Copies beyond the first of a group, which are rare, live in a side
//! table, oldest first: the oldest copy is the one that is found.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::pool::{BlockId, NULL_BLOCK};
use crate::hash::Digest;
use crate::key_table::KeyTable;
use crate::secret::Spread;

/// Index of a hash that somebody holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EntryId(pub u32);

/// A hash within a group: what a block is registered under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub entry: EntryId,
    pub group: u16,
}

#[derive(Debug)]
pub(super) struct HashIndex {
    num_groups: usize,
    by_key: KeyTable,
    digests: Vec<Digest>,
    /// `[entry * num_groups + group]`: the oldest copy, or the null block.
    first: Vec<BlockId>,
    /// Copies beyond the first, oldest first.
    more: HashMap<Key, SmallVec<[BlockId; 2]>>,
    free: Vec<u32>,
    /// Counts what look-ups can see: copies that came and went.
    version: u64,
}

fn short(digest: &Digest) -> u64 {
    digest.key()
}

impl HashIndex {
    pub(super) fn new(num_groups: usize, spread: Spread) -> Self {
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

    /// Equal only if nothing came or went.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The entry of a hash that some group holds.
    #[inline]
    pub(super) fn find(&self, digest: &Digest) -> Option<EntryId> {
        let has = |id: u32| self.digests[id as usize] == *digest;
        self.by_key.find(short(digest), has).map(EntryId)
    }

    /// The entry of a hash, trying the one made after `previous` first: requests register their
    /// hashes in order.
    #[inline]
    pub(super) fn find_after(&self, previous: Option<EntryId>, digest: &Digest) -> Option<EntryId> {
        if let Some(EntryId(previous)) = previous
            && self.digests.get(previous as usize + 1) == Some(digest)
            && self.is_live(EntryId(previous + 1))
        {
            return Some(EntryId(previous + 1));
        }
        self.find(digest)
    }

    /// Whether some group holds the entry; a forgotten one keeps its digest.
    fn is_live(&self, entry: EntryId) -> bool {
        self.row(entry).iter().any(|&block| block != NULL_BLOCK)
    }

    /// The oldest copy per group of an entry; the null block where a group holds none.
    #[inline]
    pub(super) fn row(&self, entry: EntryId) -> &[BlockId] {
        let at = entry.0 as usize * self.num_groups;
        &self.first[at..at + self.num_groups]
    }

    /// The digest of an entry.
    pub(super) fn digest(&self, entry: EntryId) -> &Digest {
        &self.digests[entry.0 as usize]
    }

    /// All copies of a key, oldest first.
    pub(super) fn copies(&self, key: Key) -> impl Iterator<Item = BlockId> + '_ {
        let first = self.row(key.entry)[usize::from(key.group)];
        let more = self.more.get(&key).into_iter().flatten().copied();
        std::iter::once(first)
            .filter(|&block| block != NULL_BLOCK)
            .chain(more)
    }

    /// The entry of a hash, made if there is none. `hint`: where it probably is.
    pub(super) fn find_or_create(&mut self, digest: &Digest, hint: Option<EntryId>) -> EntryId {
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

    /// Adds a copy behind those that are there.
    pub(super) fn insert(&mut self, key: Key, block: BlockId) {
        self.version += 1;
        let first =
            &mut self.first[key.entry.0 as usize * self.num_groups + usize::from(key.group)];
        if *first == NULL_BLOCK {
            *first = block;
        } else {
            self.more.entry(key).or_default().push(block);
        }
    }

    /// Takes a copy out; an entry without copies is forgotten.
    pub(super) fn remove(&mut self, key: Key, block: BlockId) {
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
    pub(super) fn clear(&mut self) {
        let version = self.version + 1;
        *self = Self {
            version,
            ..Self::new(self.num_groups, self.by_key.spread())
        };
    }

    /// Every key that has a copy.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.by_key.ids().flat_map(move |id| {
            let entry = EntryId(id);
            (0u16..)
                .zip(self.row(entry))
                .filter(|(_, block)| **block != NULL_BLOCK)
                .map(move |(group, _)| Key { entry, group })
        })
    }

    /// Bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.by_key.bytes()
            + self.digests.capacity() * size_of::<Digest>()
            + (self.first.capacity() + self.free.capacity()) * 4
            + self.more.allocation_size()
    }

    /// Panics unless every entry is found by its digest and holds a copy.
    pub(super) fn check_integrity(&self) {
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
