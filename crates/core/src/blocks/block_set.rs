//! A set of blocks that is asked about millions of table entries: one bit per block of the pool.

use crate::ids::{BlockId, NULL_BLOCK};

/// The number of table entries that are looked at together.
const CHUNK: usize = 8;

/// The number of blocks that share a flag.
const FLAGGED: usize = 16;

/// Blocks of one pool, each of them once.
///
/// Most tables have nothing of a set, and most of what they have is null blocks. A chunk of null
/// blocks is passed over at once, and so is a chunk of which no flag is set: a flag is a byte for 16
/// blocks, which is read faster than a bit.
#[derive(Debug, Clone)]
pub struct BlockSet {
    words: Vec<u64>,
    flags: Vec<bool>,
    has_null: bool,
}

impl BlockSet {
    /// The set of these blocks of a pool of `num_blocks`. The null block and numbers beyond the pool
    /// are left out.
    #[must_use]
    pub fn new(num_blocks: usize, blocks: &[BlockId]) -> Self {
        let mut set = Self {
            words: vec![0; num_blocks.div_ceil(64)],
            flags: vec![false; num_blocks.div_ceil(FLAGGED)],
            has_null: false,
        };
        for &block in blocks {
            if block != NULL_BLOCK && block.index() < num_blocks {
                set.insert(block);
            }
        }
        set
    }

    /// The blocks, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> {
        let words = (0u32..).zip(&self.words);
        words.flat_map(|(at, &word)| {
            let next = |word: &u64| Some(word & word.wrapping_sub(1));
            let rests = std::iter::successors(Some(word), next).take_while(|&rest| rest != 0);
            rests.map(move |rest| BlockId(at * 64 + rest.trailing_zeros()))
        })
    }

    /// The same set with the null block.
    #[must_use]
    pub fn with_null(mut self) -> Self {
        self.has_null = true;
        self.insert(NULL_BLOCK);
        self
    }

    /// Adds a block of the pool, and returns whether the set did not have it.
    pub fn insert(&mut self, block: BlockId) -> bool {
        let word = &mut self.words[block.index() / 64];
        let bit = 1 << (block.index() % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        self.flags[block.index() / FLAGGED] = true;
        is_new
    }

    /// Takes a block of the pool out. The flag of its neighbours stays, which costs time only.
    pub fn remove(&mut self, block: BlockId) {
        self.words[block.index() / 64] &= !(1 << (block.index() % 64));
    }

    /// Whether the set has the block.
    #[must_use]
    pub fn has(&self, block: BlockId) -> bool {
        let word = self.words.get(block.index() / 64).copied().unwrap_or(0);
        word >> (block.index() % 64) & 1 == 1
    }

    /// Whether the set may have one of these blocks.
    fn may_have(&self, blocks: &[BlockId; CHUNK]) -> bool {
        let is_null = blocks[CHUNK - 1] == NULL_BLOCK
            && blocks.iter().fold(0, |any, block| any | block.0) == 0;
        let flag = |block: &BlockId| self.flags.get(block.index() / FLAGGED) == Some(&true);
        if is_null {
            self.has_null
        } else {
            blocks.iter().fold(false, |any, block| any | flag(block))
        }
    }

    fn each(&self, start: usize, entries: &[BlockId]) -> impl Iterator<Item = usize> {
        let entries = (start..).zip(entries);
        entries
            .filter(|(_, block)| self.has(**block))
            .map(|(at, _)| at)
    }

    /// The indices of the table entries that the set has, in order.
    pub fn found_in(&self, table: &[BlockId]) -> impl Iterator<Item = usize> {
        let (chunks, rest) = table.as_chunks::<CHUNK>();
        let likely = chunks
            .iter()
            .enumerate()
            .filter(|(_, chunk)| self.may_have(chunk));
        let whole = likely.flat_map(move |(index, chunk)| self.each(index * CHUNK, chunk));
        whole.chain(self.each(chunks.len() * CHUNK, rest))
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
