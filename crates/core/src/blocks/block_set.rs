//! A set of blocks that is asked about millions of table entries: one bit per block of the pool.

use crate::ids::{BlockId, NULL_BLOCK};

/// The number of table entries that are looked at together: the bits of a mask.
const CHUNK: usize = u64::BITS as usize;

/// The number of entries of a chunk that are passed over together.
const LOOK: usize = 8;

/// The number of blocks that share a flag.
const FLAGGED: usize = 16;

/// Blocks of one pool, each of them once.
///
/// Most tables have nothing of a set. Blocks that were allocated together follow each other in a
/// table, upwards or downwards: then their bits are read as one mask. So are the null blocks before
/// a window. Otherwise eight entries are passed over at once if no flag of theirs is set: a flag is
/// a byte for 16 blocks, which is read faster than a bit. A set has room up to its largest block, so
/// an empty one costs nothing.
#[derive(Debug, Clone, Default)]
pub struct BlockSet {
    words: Vec<u64>,
    flags: Vec<bool>,
}

impl BlockSet {
    /// The set of these blocks of a pool of `num_blocks`. The null block and numbers beyond the pool
    /// are left out.
    #[must_use]
    pub fn new(num_blocks: usize, blocks: &[BlockId]) -> Self {
        let mut set = Self::default();
        let is_there = |block: &&BlockId| **block != NULL_BLOCK && block.index() < num_blocks;
        if let Some(last) = blocks.iter().filter(is_there).max() {
            set.reserve(*last);
        }
        for &block in blocks.iter().filter(is_there) {
            set.insert(block);
        }
        set
    }

    /// A set without blocks that has room for as many as another one.
    #[must_use]
    pub fn with_room_of(other: &Self) -> Self {
        Self {
            words: vec![0; other.words.len()],
            flags: vec![false; other.flags.len()],
        }
    }

    fn reserve(&mut self, last: BlockId) {
        if last.index() / 64 >= self.words.len() {
            self.words.resize(last.index() / 64 + 1, 0);
            self.flags.resize(self.words.len() * (64 / FLAGGED), false);
        }
    }

    /// The blocks, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> {
        let words = (0u32..).zip(&self.words).filter(|(_, word)| **word != 0);
        words.flat_map(|(at, &word)| bits(word).map(move |bit| BlockId(at * 64 + bit)))
    }

    /// The number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Whether the set has no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The same set with the null block.
    #[must_use]
    pub fn with_null(mut self) -> Self {
        self.insert(NULL_BLOCK);
        self
    }

    /// Adds all blocks of another set.
    pub fn insert_all(&mut self, other: &Self) {
        let length = self.words.len().max(other.words.len());
        self.words.resize(length, 0);
        self.flags.resize(length * (64 / FLAGGED), false);
        let words = self.words.iter_mut().zip(&other.words);
        words.for_each(|(word, more)| *word |= more);
        let flags = self.flags.iter_mut().zip(&other.flags);
        flags.for_each(|(flag, more)| *flag |= more);
    }

    /// Adds a block, and returns whether the set did not have it.
    pub fn insert(&mut self, block: BlockId) -> bool {
        self.reserve(block);
        let word = &mut self.words[block.index() / 64];
        let bit = 1 << (block.index() % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        self.flags[block.index() / FLAGGED] = true;
        is_new
    }

    /// Takes a block out. The flag of its neighbours stays, which costs time only.
    pub fn remove(&mut self, block: BlockId) {
        if let Some(word) = self.words.get_mut(block.index() / 64) {
            *word &= !(1 << (block.index() % 64));
        }
    }

    fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }

    /// Whether the set has the block.
    #[must_use]
    pub fn has(&self, block: BlockId) -> bool {
        self.word(block.index() / 64) >> (block.index() % 64) & 1 == 1
    }

    /// Whether the set has all blocks of another one.
    #[must_use]
    pub fn has_all(&self, other: &Self) -> bool {
        let mut words = other.words.iter().enumerate();
        words.all(|(at, &word)| word & !self.word(at) == 0)
    }

    /// Which of as many blocks as a chunk has, from this one on upwards, the set has.
    fn from(&self, first: BlockId) -> u64 {
        let (at, bit) = (first.index() / 64, first.index() % 64);
        self.word(at) >> bit | self.word(at + 1) << 1 << (63 - bit)
    }

    /// Which entries of a chunk the set has.
    fn mask(&self, chunk: &[BlockId; CHUNK]) -> u64 {
        match step(chunk) {
            Some(Stride::Up) => self.from(chunk[0]),
            Some(Stride::Down) => self.from(chunk[CHUNK - 1]).reverse_bits(),
            Some(Stride::None) => u64::from(self.has(chunk[0])) * u64::MAX,
            None => self.mask_of_any(chunk),
        }
    }

    fn mask_of_any(&self, chunk: &[BlockId; CHUNK]) -> u64 {
        let flag = |block: &BlockId| self.flags.get(block.index() / FLAGGED) == Some(&true);
        let (looks, _) = chunk.as_chunks::<LOOK>();
        let masks = looks.iter().map(|entries| {
            if entries.iter().fold(false, |any, block| any | flag(block)) {
                self.each(entries)
            } else {
                0
            }
        });
        masks.rev().fold(0, |mask, low| mask << LOOK | low)
    }

    /// Which of at most as many entries as a chunk has the set has.
    fn each(&self, entries: &[BlockId]) -> u64 {
        let entries = entries.iter().rev();
        entries.fold(0, |mask, &block| mask << 1 | u64::from(self.has(block)))
    }

    /// The indices of the table entries that the set has, in order.
    pub fn found_in(&self, table: &[BlockId]) -> impl Iterator<Item = usize> {
        let (chunks, rest) = table.as_chunks::<CHUNK>();
        let masks = chunks.iter().map(|chunk| self.mask(chunk));
        let masks = masks.chain(std::iter::once_with(|| self.each(rest)));
        let found = masks.enumerate().filter(|(_, mask)| *mask != 0);
        found.flat_map(|(chunk, mask)| bits(mask).map(move |bit| chunk * CHUNK + bit as usize))
    }

    /// Numbers the blocks of the set in the order of their ids.
    #[must_use]
    pub fn ranks(&self) -> Ranks<'_> {
        let mut count = 0;
        let before = self.words.iter().map(|word| {
            let before = count;
            count += word.count_ones();
            before
        });
        Ranks {
            before: before.collect(),
            set: self,
        }
    }
}

/// The number that each block of a set has, counted in the order of their ids.
#[derive(Debug)]
pub struct Ranks<'a> {
    set: &'a BlockSet,
    /// For each word, the number of blocks in the words before it.
    before: Vec<u32>,
}

impl Ranks<'_> {
    /// How many blocks of the set have a lower id than this one, which is in the set.
    #[must_use]
    pub fn of(&self, block: BlockId) -> u32 {
        let (word, bit) = (block.index() / 64, block.index() % 64);
        let lower = self.set.words[word] & ((1 << bit) - 1);
        self.before[word] + lower.count_ones()
    }
}

/// By how much each entry of a chunk differs from the one before it.
enum Stride {
    Up,
    Down,
    None,
}

/// The step between all entries of a chunk, if it is the same everywhere.
fn step(chunk: &[BlockId; CHUNK]) -> Option<Stride> {
    const LENGTH: u32 = u64::BITS - 1;
    const MINUS_LENGTH: u32 = LENGTH.wrapping_neg();
    let first = chunk[0].0;
    let (step, is_same) = match chunk[CHUNK - 1].0.wrapping_sub(first) {
        LENGTH => (
            Stride::Up,
            all(chunk, |at, block| block.wrapping_sub(first) ^ at),
        ),
        MINUS_LENGTH => (
            Stride::Down,
            all(chunk, |at, block| first.wrapping_sub(block) ^ at),
        ),
        0 => (Stride::None, all(chunk, |_, block| first ^ block)),
        _ => return None,
    };
    is_same.then_some(step)
}

/// Whether all entries of a chunk differ by zero from what they should be. No entry ends the search,
/// so several are looked at together.
fn all(chunk: &[BlockId; CHUNK], difference: impl Fn(u32, u32) -> u32) -> bool {
    let entries = (0u32..).zip(chunk);
    entries.fold(0, |any, (at, block)| any | difference(at, block.0)) == 0
}

/// The bits that are set, the lowest first.
fn bits(word: u64) -> impl Iterator<Item = u32> {
    let next = |word: &u64| Some(word & word.wrapping_sub(1));
    let rests = std::iter::successors(Some(word), next).take_while(|&rest| rest != 0);
    rests.map(u64::trailing_zeros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u32]) -> Vec<BlockId> {
        numbers.iter().copied().map(BlockId).collect()
    }

    #[test]
    fn a_set_has_its_blocks_and_neither_the_null_block_nor_any_beyond_the_pool() {
        let set = BlockSet::new(200, &ids(&[0, 5, 64, 199, 199, 200, 9_999]));
        let has: Vec<u32> = (0..20_000).filter(|&id| set.has(BlockId(id))).collect();
        assert_eq!(has, [5, 64, 199]);
    }

    #[test]
    fn the_null_block_is_found_only_if_it_was_added() {
        let table = ids(&[0; 20]);
        let set = BlockSet::new(9, &ids(&[3]));
        assert_eq!(set.found_in(&table).count(), 0);
        assert_eq!(set.with_null().found_in(&table).count(), 20);
    }

    #[test]
    fn it_finds_every_entry_of_a_table_in_order() {
        let set = BlockSet::new(100, &ids(&[7, 40]));
        let table: Vec<BlockId> = (0..100).map(|at| BlockId(at % 50)).collect();
        assert_eq!(set.found_in(&table).collect::<Vec<_>>(), [7, 40, 57, 90]);
        assert_eq!(set.found_in(&table[41..]).collect::<Vec<_>>(), [16, 49]);
    }

    #[test]
    fn entries_that_follow_each_other_are_found_as_all_others_are() {
        let set = BlockSet::new(1_000, &ids(&[3, 64, 127, 128, 300, 301, 999]));
        let up: Vec<u32> = (0..1_000).collect();
        let down: Vec<u32> = (0..1_000).rev().collect();
        let same = vec![300; 150];
        let by_twos: Vec<u32> = (0..500).map(|at| 2 * at).collect();
        for first in [0, 1, 31, 63] {
            for table in [&up, &down, &same, &by_twos] {
                let table = ids(&table[first..]);
                let has = |(at, &block): (usize, &BlockId)| set.has(block).then_some(at);
                let expected: Vec<usize> = table.iter().enumerate().filter_map(has).collect();
                assert_eq!(set.found_in(&table).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn a_set_grows_as_blocks_of_another_one_are_added() {
        let mut set = BlockSet::default();
        assert!(set.is_empty());
        let other = BlockSet::new(500, &ids(&[7, 400]));
        assert!(!set.has_all(&other));
        set.insert_all(&other);
        assert!(set.has_all(&other) && set.has_all(&BlockSet::default()));
        assert_eq!((set.len(), set.found_in(&ids(&[400; 9])).count()), (2, 9));
    }

    #[test]
    fn blocks_are_added_taken_out_and_listed() {
        let mut set = BlockSet::new(200, &ids(&[130, 63, 64, 5]));
        assert!(set.insert(BlockId(199)));
        assert!(!set.insert(BlockId(5)));
        set.remove(BlockId(64));
        assert_eq!(set.iter().collect::<Vec<_>>(), ids(&[5, 63, 130, 199]));
        assert_eq!(
            set.found_in(&ids(&[5, 64, 199])).collect::<Vec<_>>(),
            [0, 2]
        );
    }

    #[test]
    fn a_rank_counts_the_lower_blocks() {
        let set = BlockSet::new(300, &ids(&[3, 63, 64, 256]));
        let ranks = set.ranks();
        assert_eq!(
            [3, 63, 64, 256].map(|id| ranks.of(BlockId(id))),
            [0, 1, 2, 3]
        );
    }
}
