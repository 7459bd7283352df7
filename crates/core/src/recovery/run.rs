//! What a decision is made from: the runs of requests, and what is reported about their loads.
//!
//! ```text
//! 0          num_local      start              num_processed       num_computed     num_tokens
//! |-- hit ------|-- loaded ---|-- computed ------|-- in flight --------|                |
//! ```
//! Nothing here says who keeps the tables: a cache that lives, or a copy of what one held.

use std::ops::Range;

use super::resume_point::{OwnTables, block_at};
use crate::blocks::{BlockId, NULL_BLOCK};
use crate::error::Result;
use crate::spec::{GroupSpec, Topology};

/// A loaded block that a run has read and given back: a window or a state has passed it. Or a block
/// that the run has computed and another one has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenBack {
    /// The group.
    pub group: u32,
    /// The position that the block had in the group's table.
    pub position: u32,
    /// The block.
    pub block: BlockId,
    /// Whether the run has read it for a copy, and has written the copy: a hit inside a block.
    pub copied: bool,
}

impl GivenBack {
    /// Whether the run has read it: it begins before `start`, the first token that the run computes.
    /// What begins later the run itself has computed.
    pub(super) fn was_read(&self, groups: &[GroupSpec], start: u32) -> bool {
        let size = groups[self.group as usize].block_size;
        u64::from(self.position) * u64::from(size) < u64::from(start)
    }
}

/// One run of a request, from its start to its end or its next start; in tokens.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The request.
    pub request: u64,
    /// The tokens that are known: the prompt, and what was handed out after it.
    pub num_tokens: u32,
    /// How many of them were known when the run started.
    pub num_known_tokens: u32,
    /// The tokens that were found in the cache.
    pub num_local_tokens: u32,
    /// The tokens after these that a load fills or has filled.
    pub num_loaded_tokens: u32,
    /// The tokens whose steps have ended, those found and loaded included.
    pub num_processed_tokens: u32,
    /// The tokens of all steps, those in flight included.
    pub num_computed_tokens: u32,
    /// The run's blocks are not findable yet: a look-up by its hashes finds only those of others.
    pub delays_commit: bool,
    /// The loaded blocks that are no longer in the tables, and what others have found.
    pub given_back: Vec<GivenBack>,
    /// The tables of a run that has ended; `None` for a run that goes on.
    pub ended_tables: Option<Vec<Vec<BlockId>>>,
}

impl Run {
    /// The first token that the run computes itself: the last token is never loaded alone.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.loaded().end.min(self.num_tokens.saturating_sub(1))
    }

    /// Whether a token has been handed out that was sampled from the first tainted one on.
    #[must_use]
    pub fn has_told(&self, first_tainted: u32) -> bool {
        self.num_tokens > self.num_known_tokens.max(first_tainted.saturating_add(1))
    }

    /// The tokens that a load fills.
    #[must_use]
    pub fn loaded(&self) -> Range<u32> {
        let start = self.num_local_tokens;
        start..start.saturating_add(self.num_loaded_tokens)
    }
}

/// A position in the table of a request, or a number that is no position of any table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FailedPlace {
    /// The request.
    pub request: u64,
    /// The group.
    pub group: u32,
    /// The position in the group's table.
    pub position: u32,
}

/// What loads failed, in every form in which connectors report it. Anything may be there several
/// times, in any order, and need not exist.
#[derive(Debug, Clone, Default)]
pub struct Failures {
    /// Positions in tables.
    pub places: Vec<FailedPlace>,
    /// Blocks, each as a block of one group.
    pub group_blocks: Vec<(BlockId, u32)>,
    /// Blocks.
    pub blocks: Vec<BlockId>,
    /// Requests of which every loaded block counts as failed.
    pub requests: Vec<u64>,
    /// Contents, former ones included, each as a block of one group.
    pub contents: Vec<(BlockId, u32)>,
}

/// The tables of the runs that go on, whoever keeps them.
pub trait Tables {
    /// The groups.
    fn topology(&self) -> &Topology;

    /// The number of blocks, the null block and former contents included.
    fn num_blocks(&self) -> usize;

    /// For each former content, the block that held it; their numbers are the last ones.
    fn former(&self) -> &[BlockId] {
        &[]
    }

    /// What a request holds; its tokens are those that the keeper knows of.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` or `UnknownBlock` for tables that cannot be.
    fn own(&self, request: u64) -> Result<OwnTables<'_>>;

    /// Whether two tables may have the block.
    fn may_be_shared(&self, block: BlockId) -> bool;

    /// Appends what a request has written or read in a gap and what is still findable: positions and
    /// blocks. The request may have ended.
    fn find(&self, request: u64, gap: &Gap<'_>, found: &mut Vec<(u32, BlockId)>);
}

/// Where a cache may still find what a table no longer has. A position without a block has given back
/// all that was written there. Where there is a block, a state that was kept inside it may live on
/// in a copy, so hashes that end inside the block count, and the one of its end does not. Copies that
/// other requests have registered are theirs, unless the run has read them.
#[derive(Debug, Clone)]
pub struct Gap<'a> {
    /// The group.
    pub group: usize,
    /// Positions of its table.
    pub positions: Range<u32>,
    /// The table's blocks.
    pub blocks: &'a [BlockId],
    /// The first token that the run computes: a state inside its block that covers only the tokens
    /// before it is what the run started with, and is passed over, too.
    pub start: u32,
    /// What the run has read and given back, which counts whoever has registered it.
    pub read: &'a [GivenBack],
}

impl Gap<'_> {
    /// Whether the run has read a block there, and given it back.
    #[must_use]
    pub fn has_read(&self, position: u32, block: BlockId) -> bool {
        let is_here =
            |gone: &GivenBack| (gone.group as usize, gone.position) == (self.group, position);
        self.read
            .iter()
            .any(|gone| is_here(gone) && gone.block == block)
    }

    /// Whether a position has no block.
    #[must_use]
    pub fn is_empty_at(&self, position: u32) -> bool {
        block_at(self.blocks, position) == NULL_BLOCK
    }
}
