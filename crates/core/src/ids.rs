//! The identifier of a block, and types for numbers of blocks.

use std::fmt;

/// A physical block of one pool; all groups of a model share the numbering.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockId(pub u32);

/// The null block, which stands where a group needs no block.
pub const NULL_BLOCK: BlockId = BlockId(0);

impl BlockId {
    /// The index of the block in a table of all blocks of its pool.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of blocks, or a position among blocks, in the width that tables store.
pub(crate) fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// A number of blocks, for sums that may become negative.
pub(crate) fn signed(blocks: usize) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX)
}
