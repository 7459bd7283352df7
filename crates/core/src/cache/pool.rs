//! All blocks of one engine: references, the free queue in eviction order, and their hashes.
//!
//! Block 0 is the null block: it stands where a group needs no block, is never handed out, freed or
//! cached, and serves as the end of the free queue.
//!
//! ```text
//! next victim  [unhashed, last freed first] ... [hashed, least recently freed first]  last victim
//! ```
//!
//! A block that a checkpoint keeps is not in the queue: it is free, but no victim until it is let go.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::hash_index::{EntryId, HashIndex, Key};
use crate::hash::Digest;
use crate::secret::Spread;

/// A physical block; one numbering for all groups.
pub type BlockId = u32;

/// Stands where a group needs no block.
pub const NULL_BLOCK: BlockId = 0;

const NO_ENTRY: u32 = u32::MAX;

/// A number of blocks or a position among them.
pub(super) fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// A number of blocks, for sums that may fall below 0.
pub(super) fn signed(blocks: usize) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}

#[derive(Debug, Clone, Copy)]
struct Block {
    refs: u32,
    /// Neighbours in the free queue, while it is in it.
    prev: BlockId,
    next: BlockId,
    /// What it is registered under, if anything; further keys live in a side table.
    entry: u32,
    /// Tokens that its first key covers.
    num_tokens: u32,
    group: u16,
    /// A checkpoint needs it: it does not wait in the queue.
    is_kept: bool,
}

impl Block {
    fn key(&self) -> Option<Key> {
        (self.entry != NO_ENTRY).then_some(Key {
            entry: EntryId(self.entry),
            group: self.group,
        })
    }
}

/// Keys that a block lost, in the order in which events name them.
pub(super) type Lost = SmallVec<[(u64, u16); 1]>;

#[derive(Debug)]
pub(super) struct Pool {
    blocks: Vec<Block>,
    /// Blocks without references: those in the queue, and those kept.
    num_free: usize,
    pub(super) index: HashIndex,
    /// Keys beyond a block's first: boundaries inside the block.
    further: HashMap<BlockId, SmallVec<[Key; 2]>>,
    /// Freed blocks that nobody can find, while they wait to be put in front.
    unhashed: Vec<BlockId>,
}

impl Pool {
    /// All blocks free but the null block, to be handed out in the order of their ids.
    pub(super) fn new(num_blocks: u32, num_groups: usize, spread: Spread) -> Self {
        let last = num_blocks - 1;
        let block = |id: BlockId| Block {
            refs: 0,
            prev: if id == 0 { last } else { id - 1 },
            next: if id == last { 0 } else { id + 1 },
            entry: NO_ENTRY,
            num_tokens: 0,
            group: 0,
            is_kept: false,
        };
        Self {
            blocks: (0..num_blocks).map(block).collect(),
            num_free: last as usize,
            index: HashIndex::new(num_groups, spread),
            further: HashMap::new(),
            unhashed: Vec::new(),
        }
    }

    pub(super) fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn num_free(&self) -> usize {
        self.num_free
    }

    pub(super) fn refs(&self, block: BlockId) -> u32 {
        self.blocks[block as usize].refs
    }

    /// What the block is registered under first.
    pub(super) fn key(&self, block: BlockId) -> Option<Key> {
        self.blocks[block as usize].key()
    }

    /// Tokens that its first key covers; 0 without one.
    pub(super) fn num_tokens(&self, block: BlockId) -> u32 {
        self.blocks[block as usize].num_tokens
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { prev, next, .. } = self.blocks[block as usize];
        self.blocks[prev as usize].next = next;
        self.blocks[next as usize].prev = prev;
    }

    /// Puts a block between the one before it and the one after it.
    fn link(&mut self, block: BlockId, prev: BlockId, next: BlockId) {
        self.blocks[block as usize].prev = prev;
        self.blocks[block as usize].next = next;
        self.blocks[prev as usize].next = block;
        self.blocks[next as usize].prev = block;
    }

    fn link_last(&mut self, block: BlockId) {
        let last = self.blocks[NULL_BLOCK as usize].prev;
        self.link(block, last, NULL_BLOCK);
    }

    fn link_first(&mut self, block: BlockId) {
        let first = self.blocks[NULL_BLOCK as usize].next;
        self.link(block, NULL_BLOCK, first);
    }

    /// Whether a checkpoint needs the block.
    pub(super) fn is_kept(&self, block: BlockId) -> bool {
        self.blocks[block as usize].is_kept
    }

    fn is_listed(&self, block: BlockId) -> bool {
        let Block { refs, is_kept, .. } = self.blocks[block as usize];
        refs == 0 && !is_kept
    }

    /// Takes one more reference, out of the free queue if it is the first.
    pub(super) fn touch(&mut self, block: BlockId) {
        if block == NULL_BLOCK {
            return;
        }
        if self.is_listed(block) {
            self.unlink(block);
        }
        let refs = &mut self.blocks[block as usize].refs;
        self.num_free -= usize::from(*refs == 0);
        *refs += 1;
    }

    /// Whether there is a next victim: else only kept blocks are free.
    pub(super) fn has_victim(&self) -> bool {
        self.blocks[NULL_BLOCK as usize].next != NULL_BLOCK
    }

    /// Takes the next victim with one reference; its keys are lost. There must be one.
    pub(super) fn take(&mut self) -> (BlockId, Lost) {
        let block = self.blocks[NULL_BLOCK as usize].next;
        assert_ne!(block, NULL_BLOCK, "taken from an empty queue");
        self.touch(block);
        (block, self.forget(block))
    }

    /// Takes a block out of the queue, or keeps it out of it.
    pub(super) fn keep(&mut self, block: BlockId) {
        if self.is_listed(block) {
            self.unlink(block);
        }
        self.blocks[block as usize].is_kept = true;
    }

    /// The block may be evicted again: behind all that wait already.
    pub(super) fn let_go(&mut self, block: BlockId) {
        self.blocks[block as usize].is_kept = false;
        if self.is_listed(block) {
            self.link_last(block);
        }
    }

    /// Nothing can be resumed with the block any more: it is the next victim, if it waits.
    pub(super) fn expedite(&mut self, block: BlockId) {
        if block != NULL_BLOCK && self.is_listed(block) {
            self.unlink(block);
            self.link_first(block);
        }
    }

    /// Drops one reference each; what is given first is evicted first. Null blocks are passed over.
    pub(super) fn free(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        let mut unhashed = std::mem::take(&mut self.unhashed);
        for block in blocks {
            if block == NULL_BLOCK {
                continue;
            }
            let entry = &mut self.blocks[block as usize];
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

    /// Whether the block is among the copies of the key.
    pub(super) fn is_registered(&self, block: BlockId, key: Key) -> bool {
        self.key(block) == Some(key)
            || (!self.further.is_empty()
                && self
                    .further
                    .get(&block)
                    .is_some_and(|keys| keys.contains(&key)))
    }

    /// The key of a digest in a group, made if nobody holds it. `hint`: the entry it probably has.
    pub(super) fn key_of(&mut self, digest: &Digest, group: u16, hint: Option<EntryId>) -> Key {
        Key {
            entry: self.index.find_or_create(digest, hint),
            group,
        }
    }

    /// Makes a block findable; the first key of a block says how many tokens it covers.
    pub(super) fn register(&mut self, block: BlockId, key: Key, num_tokens: u32) {
        if self.is_registered(block, key) {
            return;
        }
        let entry = &mut self.blocks[block as usize];
        if entry.entry == NO_ENTRY {
            entry.entry = key.entry.0;
            entry.group = key.group;
            entry.num_tokens = num_tokens;
        } else {
            self.further.entry(block).or_default().push(key);
        }
        self.index.insert(key, block);
    }

    /// Forgets all keys of a block, wherever it is.
    pub(super) fn forget(&mut self, block: BlockId) -> Lost {
        let mut lost = Lost::new();
        self.unregister(block, |key, digest| lost.push((digest.key(), key.group)));
        lost
    }

    fn unregister(&mut self, block: BlockId, mut sink: impl FnMut(Key, &Digest)) {
        let Some(first) = self.key(block) else {
            return;
        };
        self.blocks[block as usize].entry = NO_ENTRY;
        self.blocks[block as usize].num_tokens = 0;
        let further = if self.further.is_empty() {
            None
        } else {
            self.further.remove(&block)
        };
        for key in std::iter::once(first).chain(further.into_iter().flatten()) {
            sink(key, self.index.digest(key.entry));
            self.index.remove(key, block);
        }
    }

    /// Forgets one key of a block, which has it; the next one becomes its first.
    pub(super) fn unregister_key(&mut self, block: BlockId, key: Key) {
        let mut further = self.further.remove(&block).unwrap_or_default();
        if self.key(block) == Some(key) {
            let next = (!further.is_empty()).then(|| further.remove(0));
            let entry = &mut self.blocks[block as usize];
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

    /// Gives all keys of a block to another one that has none.
    pub(super) fn move_keys(&mut self, from: BlockId, to: BlockId) {
        let num_tokens = self.num_tokens(from);
        let mut keys: SmallVec<[(u16, Digest); 2]> = SmallVec::new();
        self.unregister(from, |key, digest| keys.push((key.group, *digest)));
        for (group, digest) in keys {
            let key = self.key_of(&digest, group, None);
            self.register(to, key, num_tokens);
        }
    }

    /// Forgets all keys of all blocks.
    pub(super) fn clear(&mut self) {
        self.index.clear();
        self.further.clear();
        for block in &mut self.blocks {
            block.entry = NO_ENTRY;
            block.num_tokens = 0;
        }
    }

    /// The free queue, next victim first.
    pub(super) fn queue(&self) -> impl Iterator<Item = BlockId> + '_ {
        let next = |block: BlockId| Some(self.blocks[block as usize].next);
        std::iter::successors(next(NULL_BLOCK), move |&block| next(block))
            .take_while(|&block| block != NULL_BLOCK)
    }

    /// Bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
            + self.index.bytes()
            + self.further.allocation_size()
    }

    /// Panics unless references, queue and hashes agree.
    pub(super) fn check_integrity(&self) {
        self.index.check_integrity();
        let listed: Vec<BlockId> = self.queue().take(self.blocks.len()).collect();
        assert!(
            listed.iter().all(|&block| self.is_listed(block)),
            "a referenced or kept block is in the free queue"
        );
        let is_kept = |block: &&Block| block.is_kept && block.refs == 0;
        let kept = self.blocks.iter().filter(is_kept).count();
        assert_eq!(listed.len() + kept, self.num_free, "free blocks");
        let unreferenced = self.blocks[1..].iter().filter(|b| b.refs == 0).count();
        assert_eq!(
            unreferenced, self.num_free,
            "unreferenced blocks against the queue"
        );
        let mut registered = 0;
        for key in self.index.keys() {
            for block in self.index.copies(key) {
                assert!(
                    self.is_registered(block, key),
                    "block {block} does not know {key:?}"
                );
                registered += 1;
            }
        }
        let own = self.blocks.iter().filter(|b| b.key().is_some()).count();
        let further: usize = self.further.values().map(SmallVec::len).sum();
        assert_eq!(
            registered,
            own + further,
            "keys in the index against keys of blocks"
        );
        assert!(
            self.blocks[0].key().is_none(),
            "the null block is registered"
        );
    }
}
