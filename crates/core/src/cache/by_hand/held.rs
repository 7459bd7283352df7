//! What the caller holds: one count for each reference that it has to free itself.
//!
//! The caller gets a reference of each block that it takes, holds or pops, and of both ends of a
//! copy that it frees. A block that a transfer may still write is held in this way after its
//! request has gone, so nobody reuses the block. References of requests are never counted here.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::blocks::{BlockId, NULL_BLOCK};
use crate::error::{Error, Result};

/// The caller's references of each block.
#[derive(Debug, Clone, Default)]
pub(in crate::cache) struct HeldBlocks {
    references: HashMap<BlockId, u32>,
}

impl HeldBlocks {
    /// Counts one more reference of each block, and returns their number. Null blocks have none.
    pub(in crate::cache) fn add(&mut self, blocks: impl IntoIterator<Item = BlockId>) -> u64 {
        let mut num_added = 0;
        for block in blocks.into_iter().filter(|&block| block != NULL_BLOCK) {
            *self.references.entry(block).or_insert(0) += 1;
            num_added += 1;
        }
        num_added
    }

    /// Counts one reference of each block less. Refuses all of them if one block has too few.
    pub(super) fn remove(&mut self, blocks: &[BlockId]) -> Result<()> {
        for (at, &block) in blocks.iter().enumerate() {
            if block != NULL_BLOCK && !self.remove_one(block) {
                let times = blocks[..=at].iter().filter(|&&b| b == block).count();
                self.add(blocks[..at].iter().copied());
                return Err(Error::InvalidValue(format!(
                    "block {block} is freed {times} times, but the caller holds {} references; \
                     free what was taken, held or popped, once each",
                    times - 1
                )));
            }
        }
        Ok(())
    }

    /// Returns whether there was a reference.
    fn remove_one(&mut self, block: BlockId) -> bool {
        let Entry::Occupied(mut references) = self.references.entry(block) else {
            return false;
        };
        *references.get_mut() -= 1;
        if *references.get() == 0 {
            references.remove();
        }
        true
    }

    /// The number of the caller's references of a block.
    pub(in crate::cache) fn num_references(&self, block: BlockId) -> u32 {
        self.references.get(&block).copied().unwrap_or(0)
    }

    /// The number of blocks of which the caller holds a reference.
    pub(super) fn num_blocks(&self) -> usize {
        self.references.len()
    }

    /// Checks that the caller holds exactly these references.
    pub(in crate::cache) fn check_integrity(&self, outside: &[BlockId]) {
        let mut expected = Self::default();
        expected.add(outside.iter().copied());
        assert_eq!(self.references, expected.references, "held by the caller");
    }
}
