//! What blocks held before they were handed out again: former contents.
//!
//! A run that read a block and gave it back has read what the block held then. If the block holds
//! something else now, that content goes by a number of its own, from the number of blocks on, and
//! stands only in the tables of ended runs and in what runs have given back. So nothing that follows
//! garbage has to know of time: one number is one content.

use super::resume_point::OwnTables;
use super::run::{Gap, Tables};
use crate::blocks::BlockId;
use crate::error::Result;
use crate::spec::Topology;

/// Tables of runs, and the contents that blocks have no longer.
pub(super) struct WithFormer<'a, T> {
    tables: &'a T,
    /// For each former content, the block that held it.
    former: &'a [BlockId],
}

impl<'a, T: Tables> WithFormer<'a, T> {
    pub(super) fn new(tables: &'a T, former: &'a [BlockId]) -> Self {
        Self { tables, former }
    }

    fn is_former(&self, block: BlockId) -> bool {
        block.index() >= self.tables.num_blocks()
    }
}

impl<T: Tables> Tables for WithFormer<'_, T> {
    fn topology(&self) -> &Topology {
        self.tables.topology()
    }

    fn num_blocks(&self) -> usize {
        self.tables.num_blocks() + self.former.len()
    }

    fn former(&self) -> &[BlockId] {
        self.former
    }

    fn own(&self, request: u64) -> Result<OwnTables<'_>> {
        self.tables.own(request)
    }

    fn may_be_shared(&self, block: BlockId) -> bool {
        !self.is_former(block) && self.tables.may_be_shared(block)
    }

    fn find(&self, request: u64, gap: &Gap<'_>, found: &mut Vec<(u32, BlockId)>) {
        self.tables.find(request, gap, found);
    }
}
