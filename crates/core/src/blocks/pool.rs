//! All blocks of one memory: their references, their hashes, and the queue of free blocks in the
//! order in which they are evicted.
//!
//! Block 0 is the null block. It stands where a group needs no block. It is never handed out, freed
//! or cached, and it also serves as the end of the free queue.
//!
//! ```text
//! next victim  [unhashed, last freed first] ... [hashed, least recently freed first]  last victim
//! ```
//!
//! A block that a checkpoint keeps is free but not in the queue: it cannot be evicted until the
//! checkpoint lets it go. `waiting` says how long the next victim has waited, and `integrity` what
//! is true between any two calls.

mod integrity;
mod waiting;

use hashbrown::HashMap;
use smallvec::SmallVec;

use self::waiting::Time;
use super::hash_index::{EntryId, HashIndex, Key};
use crate::hash::Digest;
use crate::ids::{BlockId, NULL_BLOCK};
use crate::secret::Secret;

const NO_ENTRY: u32 = u32::MAX;

/// The request that registered a block, which tells its copy from those of others. Numbers come again
/// after 2^32 requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Author(u32);

impl Author {
    /// Whoever registers blocks by hand.
    pub const NOBODY: Self = Self(u32::MAX);

    /// A request.
    #[must_use]
    pub fn of(request: u64) -> Self {
        let number = request % u64::from(u32::MAX);
        Self(u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// The number of the request, as far as it is known.
    #[must_use]
    pub fn request(self) -> Option<u32> {
        (self != Self::NOBODY).then_some(self.0)
    }
}

/// A block. No block lies across two lines of a processor's cache: the order in which blocks are
/// taken is that of their use, so each is read from somewhere else.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
struct Block {
    refs: u32,
    /// The neighbours in the free queue, while the block is in it.
    prev: BlockId,
    next: BlockId,
    /// The time at which the block came to wait at the end of the queue.
    waits_since: Time,
    /// The entry that the block is registered under, or `NO_ENTRY`. Further keys are in a side
    /// table.
    entry: u32,
    /// The number of tokens that the block's first key covers.
    num_tokens: u32,
    /// Who registered the block's first key.
    author: Author,
    group: u16,
    /// Whether a checkpoint keeps the block out of the queue.
    is_kept: bool,
    /// Whether the block came to the front of the queue, because no resume needs it, or has waited
    /// from the beginning.
    is_useless: bool,
}

impl Block {
    fn key(&self) -> Option<Key> {
        (self.entry != NO_ENTRY).then_some(Key {
            entry: EntryId(self.entry),
            group: self.group,
        })
    }
}

/// The blocks of one memory.
#[derive(Debug, Clone)]
pub struct Pool {
    blocks: Vec<Block>,
    /// The number of blocks without references: those in the queue, and those that checkpoints
    /// keep.
    num_free: usize,
    /// The index that finds blocks by hash.
    pub index: HashIndex,
    /// The keys after a block's first: boundaries inside the block.
    further: HashMap<BlockId, SmallVec<[Key; 2]>>,
    now: Time,
    /// Freed blocks that no hash finds, while they wait to be put at the front of the queue.
    unhashed: Vec<BlockId>,
}

impl Pool {
    /// A pool in which all blocks except the null block are free. They are handed out in the order
    /// of their ids. `secret` makes the layout of the hash tables unpredictable.
    #[must_use]
    pub fn new(num_blocks: u32, num_groups: usize, secret: &Secret) -> Self {
        let last = num_blocks - 1;
        let block = |id: u32| Block {
            refs: 0,
            prev: BlockId(if id == 0 { last } else { id - 1 }),
            next: BlockId(if id == last { 0 } else { id + 1 }),
            waits_since: 0,
            entry: NO_ENTRY,
            num_tokens: 0,
            author: Author::NOBODY,
            group: 0,
            is_kept: false,
            is_useless: true,
        };
        Self {
            blocks: (0..num_blocks).map(block).collect(),
            num_free: last as usize,
            index: HashIndex::new(num_groups, secret.spread()),
            further: HashMap::new(),
            now: 0,
            unhashed: Vec::new(),
        }
    }

    /// The number of blocks, including the null block.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The number of blocks without references.
    #[must_use]
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// The number of references to the block.
    #[must_use]
    pub fn refs(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].refs
    }

    /// The key that the block was registered under first.
    #[must_use]
    pub fn key(&self, block: BlockId) -> Option<Key> {
        self.blocks[block.index()].key()
    }

    /// The number of tokens that the block's first key covers; 0 for a block without a key.
    #[must_use]
    pub fn num_tokens(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].num_tokens
    }

    /// Who registered the block's first key; it means nothing for a block without a key.
    #[must_use]
    pub fn author(&self, block: BlockId) -> Author {
        self.blocks[block.index()].author
    }

    /// The blocks that have a key, each with the author, the group and the number of tokens of its first
    /// one. All blocks are looked at.
    pub fn registered(&self) -> impl Iterator<Item = (BlockId, Author, u16, u32)> + '_ {
        let own = (0..)
            .zip(&self.blocks)
            .filter(|(_, block)| block.key().is_some());
        own.map(|(id, block)| (BlockId(id), block.author, block.group, block.num_tokens))
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { prev, next, .. } = self.blocks[block.index()];
        self.blocks[prev.index()].next = next;
        self.blocks[next.index()].prev = prev;
    }

    /// Puts a block between the one before it and the one after it.
    fn link(&mut self, block: BlockId, prev: BlockId, next: BlockId) {
        self.blocks[block.index()].prev = prev;
        self.blocks[block.index()].next = next;
        self.blocks[prev.index()].next = block;
        self.blocks[next.index()].prev = block;
    }

    fn link_last(&mut self, block: BlockId) {
        let last = self.blocks[NULL_BLOCK.index()].prev;
        self.link(block, last, NULL_BLOCK);
        self.blocks[block.index()].waits_since = self.now;
        self.blocks[block.index()].is_useless = false;
    }

    fn link_first(&mut self, block: BlockId) {
        let first = self.blocks[NULL_BLOCK.index()].next;
        self.link(block, NULL_BLOCK, first);
        self.blocks[block.index()].is_useless = true;
    }

    /// Whether a checkpoint keeps the block.
    #[must_use]
    pub fn is_kept(&self, block: BlockId) -> bool {
        self.blocks[block.index()].is_kept
    }

    fn is_listed(&self, block: BlockId) -> bool {
        let Block { refs, is_kept, .. } = self.blocks[block.index()];
        refs == 0 && !is_kept
    }

    /// Adds a reference. The first one takes the block out of the free queue.
    pub fn touch(&mut self, block: BlockId) {
        if block == NULL_BLOCK {
            return;
        }
        if self.is_listed(block) {
            self.unlink(block);
        }
        let refs = &mut self.blocks[block.index()].refs;
        self.num_free -= usize::from(*refs == 0);
        *refs += 1;
    }

    /// Takes the next victim and gives it one reference. It loses its keys, which `lost` is told in
    /// the order in which events name them: the short form of the hash, and the group.
    ///
    /// # Panics
    /// If the queue is empty.
    pub fn take(&mut self, lost: impl FnMut(u64, u16)) -> BlockId {
        let block = self.blocks[NULL_BLOCK.index()].next;
        assert_ne!(block, NULL_BLOCK, "taken from an empty queue");
        self.touch(block);
        self.forget(block, lost);
        block
    }

    /// Takes a block out of the queue, or keeps it from entering.
    pub fn keep(&mut self, block: BlockId) {
        if self.is_listed(block) {
            self.unlink(block);
        }
        self.blocks[block.index()].is_kept = true;
    }

    /// Puts a kept block at the end of the queue, so it may be evicted again, after all blocks that
    /// wait.
    pub fn let_go(&mut self, block: BlockId) {
        self.blocks[block.index()].is_kept = false;
        if self.is_listed(block) {
            self.link_last(block);
        }
    }

    /// Makes a kept block the next victim, unless it is referenced.
    pub fn let_go_first(&mut self, block: BlockId) {
        self.blocks[block.index()].is_kept = false;
        if self.is_listed(block) {
            self.link_first(block);
        }
    }

    /// Makes a waiting block the next victim, because it can no longer be part of a resume.
    pub fn expedite(&mut self, block: BlockId) {
        if block != NULL_BLOCK && self.is_listed(block) {
            self.unlink(block);
            self.link_first(block);
        }
    }

    /// Drops one reference of each block. The first block given is evicted first. Null blocks are
    /// ignored.
    pub fn free(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        let mut unhashed = std::mem::take(&mut self.unhashed);
        for block in blocks {
            if block == NULL_BLOCK {
                continue;
            }
            let entry = &mut self.blocks[block.index()];
            entry.refs -= 1;
            if entry.refs > 0 {
                continue;
            }
            self.num_free += 1;
            if entry.is_kept {
                continue;
            }
            if entry.entry == NO_ENTRY {
                unhashed.push(block);
            } else {
                self.link_last(block);
            }
        }
        while let Some(block) = unhashed.pop() {
            self.link_first(block);
        }
        self.unhashed = unhashed;
    }

    /// Whether the key finds the block.
    #[must_use]
    pub fn is_registered(&self, block: BlockId, key: Key) -> bool {
        self.key(block) == Some(key)
            || (!self.further.is_empty()
                && self
                    .further
                    .get(&block)
                    .is_some_and(|keys| keys.contains(&key)))
    }

    /// The key of a digest in a group, made if there is none. `hint` is the entry that it probably
    /// has.
    pub fn key_of(&mut self, digest: &Digest, group: u16, hint: Option<EntryId>) -> Key {
        Key {
            entry: self.index.find_or_create(digest, hint),
            group,
        }
    }

    /// Makes a block findable. `num_tokens` is how many tokens the key covers; it is kept for the
    /// block's first key only.
    pub fn register(&mut self, block: BlockId, key: Key, num_tokens: u32, author: Author) {
        if self.is_registered(block, key) {
            return;
        }
        let entry = &mut self.blocks[block.index()];
        if entry.entry == NO_ENTRY {
            entry.entry = key.entry.0;
            entry.group = key.group;
            entry.num_tokens = num_tokens;
            entry.author = author;
        } else {
            self.further.entry(block).or_default().push(key);
        }
        self.index.insert(key, block);
    }

    /// Forgets all keys of a block, whether it is free or in use, and tells `lost` as `take` does.
    pub fn forget(&mut self, block: BlockId, mut lost: impl FnMut(u64, u16)) {
        self.unregister(block, |key, digest| lost(digest.key(), key.group));
    }

    fn unregister(&mut self, block: BlockId, mut sink: impl FnMut(Key, &Digest)) {
        let Some(first) = self.key(block) else {
            return;
        };
        self.blocks[block.index()].entry = NO_ENTRY;
        self.blocks[block.index()].num_tokens = 0;
        let further = if self.further.is_empty() {
            None
        } else {
            self.further.remove(&block)
        };
        let mut lose = |key| {
            sink(key, self.index.digest(key.entry));
            self.index.remove(key, block);
        };
        lose(first);
        further.into_iter().flatten().for_each(lose);
    }

    /// Forgets one key that a block has. The next key becomes the block's first.
    pub fn unregister_key(&mut self, block: BlockId, key: Key) {
        let mut further = self.further.remove(&block).unwrap_or_default();
        if self.key(block) == Some(key) {
            let next = (!further.is_empty()).then(|| further.remove(0));
            let entry = &mut self.blocks[block.index()];
            entry.entry = next.map_or(NO_ENTRY, |key| key.entry.0);
            entry.group = next.map_or(0, |key| key.group);
            entry.num_tokens = 0;
        } else {
            further.retain(|other| *other != key);
        }
        if !further.is_empty() {
            self.further.insert(block, further);
        }
        self.index.remove(key, block);
    }

    /// Moves all keys of a block to another block, which has none.
    pub fn move_keys(&mut self, from: BlockId, to: BlockId) {
        let (num_tokens, author) = (self.num_tokens(from), self.author(from));
        let mut keys: SmallVec<[(u16, Digest); 2]> = SmallVec::new();
        self.unregister(from, |key, digest| keys.push((key.group, *digest)));
        for (group, digest) in keys {
            let key = self.key_of(&digest, group, None);
            self.register(to, key, num_tokens, author);
        }
    }

    /// Forgets all keys of all blocks.
    pub fn clear(&mut self) {
        self.index.clear();
        self.further.clear();
        for block in &mut self.blocks {
            block.entry = NO_ENTRY;
            block.num_tokens = 0;
        }
    }

    /// The free queue, next victim first.
    pub fn queue(&self) -> impl Iterator<Item = BlockId> + '_ {
        let next = |block: BlockId| Some(self.blocks[block.index()].next);
        std::iter::successors(next(NULL_BLOCK), move |&block| next(block))
            .take_while(|&block| block != NULL_BLOCK)
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
            + self.index.bytes()
            + self.further.allocation_size()
    }
}
