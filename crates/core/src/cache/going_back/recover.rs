//! What is done about failed loads, in one step: all of it, or nothing.
//!
//! A [`Recovery`] is checked as a whole before anything changes. Then its parts are applied as if by
//! the single calls, in this order:
//!
//! ```text
//! forget   failed copies lose their hashes
//! commit   what arrived becomes findable
//! rewind   requests go back in place
//! hold     blocks that a transfer may still write get a reference, so that no request's end frees them
//! preempt  other requests give their blocks back
//! zero     blocks that are left unwritten are listed for zeroing
//! ```
//! Each part has the conditions of its single call, judged by what the parts before it leave. Besides,
//! no part may undo another: a commit makes no forgotten block findable and does not reach beyond a
//! rewind of its request; a request does not go back to tokens that it would write into a held block; a
//! block is held only if somebody besides the caller refers to it; no block is zeroed that a commit may
//! make findable; and a preempted request is neither rewound nor zeroed.

use std::ops::Range;

use hashbrown::{HashMap, HashSet};

use crate::blocks::{BlockId, BlockSet, NULL_BLOCK};
use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::{Request, Table};
use crate::cache::step::zeroing::{Unwritten, all_unwritten, first_written};
use crate::error::{Error, Result};

/// A number of leading tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// The request.
    pub request: u64,
    /// The number of tokens.
    pub num_tokens: u32,
}

/// What is done about failed loads, part by part in the order of application.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// Blocks that lose their hashes.
    pub forget: Vec<BlockId>,
    /// Tokens that arrived: their blocks become findable.
    pub commit: Vec<Boundary>,
    /// Boundaries to which requests go back in place.
    pub rewind: Vec<Boundary>,
    /// Blocks that a transfer may still write; the caller frees them later.
    pub hold: Vec<BlockId>,
    /// Requests that give all their blocks back.
    pub preempt: Vec<u64>,
    /// The tokens from which on the blocks of requests are listed for zeroing.
    pub zero: Vec<Boundary>,
}

/// What the parts before zeroing will have done to the blocks.
struct Outcome {
    forgotten: BlockSet,
    committed: BlockSet,
    held: BlockSet,
    /// The references that preempted requests give back of blocks that have several.
    given_back: HashMap<BlockId, u32>,
    rewound: HashMap<u64, u32>,
}

/// Checks a recovery against a cache.
pub(super) struct Recoverer<'a> {
    pub cache: &'a Cache,
    pub recovery: &'a Recovery,
}

impl Recoverer<'_> {
    /// Refuses what any part would refuse in its turn. Returns the blocks to zero.
    pub(super) fn check(&self) -> Result<Vec<Unwritten>> {
        let Self { cache, recovery } = self;
        let core = &cache.core;
        self.check_requests()?;
        cache.check_blocks(&recovery.forget)?;
        cache.check_blocks(&recovery.hold)?;
        self.check_hold()?;
        let outcome = self.outcome()?;
        for at in &recovery.commit {
            let request = cache.request(at.request)?;
            request.check_commit(at.num_tokens)?;
            check_committed(core, request, *at, &outcome)?;
        }
        for at in &recovery.rewind {
            let request = cache.request(at.request)?;
            core.check_rewind(request, at.num_tokens)?;
            check_rewritten(core, request, *at, &outcome.held)?;
        }
        let mut unwritten = Vec::new();
        for at in &recovery.zero {
            let request = cache.request(at.request)?;
            let is_used =
                |group: &Group, at: usize, block| outcome.is_used(core, request, group, at, block);
            unwritten.extend(all_unwritten(
                &core.groups,
                request,
                at.num_tokens,
                is_used,
            )?);
        }
        Ok(unwritten)
    }

    /// Refuses unknown requests, and requests that are given twice or to parts that exclude each
    /// other.
    fn check_requests(&self) -> Result<()> {
        let Self { cache, recovery } = self;
        let preempted: HashSet<u64> = recovery.preempt.iter().copied().collect();
        cache.check_distinct(recovery.preempt.iter().copied())?;
        cache.check_heirs(&recovery.preempt, false)?;
        cache.check_distinct(recovery.commit.iter().map(|at| at.request))?;
        for (part, what) in [(&recovery.rewind, "rewind"), (&recovery.zero, "zero")] {
            let ids = part.iter().map(|at| at.request);
            cache.check_distinct(ids.clone())?;
            if let Some(id) = ids.into_iter().find(|id| preempted.contains(id)) {
                return Err(Error::InvalidValue(format!(
                    "request {id}: {what} and preempt in one recovery; a preempted request has no \
                     blocks, so do only one of the two"
                )));
            }
        }
        Ok(())
    }

    fn outcome(&self) -> Result<Outcome> {
        let Self { cache, recovery } = self;
        let pool = &cache.core.pool;
        let set = |blocks: &[BlockId]| BlockSet::new(pool.num_blocks(), blocks);
        let mut committed = Vec::new();
        for at in &recovery.commit {
            let request = cache.request(at.request)?;
            committed.extend(registrable(&cache.core, request, at.num_tokens));
        }
        let mut shared = Vec::new();
        for at in &recovery.zero {
            let tables = cache.request(at.request)?.tables().iter();
            let blocks = tables.flat_map(|table| table.blocks.iter().copied());
            shared.extend(blocks.filter(|&block| pool.refs(block) > 1));
        }
        let shared = set(&shared);
        let mut given_back = HashMap::new();
        for &id in &recovery.preempt {
            for Table { blocks, .. } in cache.request(id)?.tables() {
                for at in shared.found_in(blocks) {
                    *given_back.entry(blocks[at]).or_insert(0) += 1;
                }
            }
        }
        let rewinds = recovery.rewind.iter();
        Ok(Outcome {
            forgotten: set(&recovery.forget),
            committed: set(&committed),
            held: set(&recovery.hold),
            given_back,
            rewound: rewinds.map(|at| (at.request, at.num_tokens)).collect(),
        })
    }

    /// Refuses to hold what nobody besides the caller refers to: its content is not of this load.
    fn check_hold(&self) -> Result<()> {
        let core = &self.cache.core;
        let is_nobodys =
            |block: &&BlockId| core.pool.refs(**block) <= core.held.num_references(**block);
        let mut blocks = self
            .recovery
            .hold
            .iter()
            .filter(|block| **block != NULL_BLOCK);
        match blocks.find(is_nobodys) {
            Some(block) => Err(Error::InvalidValue(format!(
                "block {block} is to be held, but no request has it; hold a block before its request \
                 ends"
            ))),
            None => Ok(()),
        }
    }
}

/// The blocks that a commit may register.
fn registrable(core: &Core, request: &Request, num_tokens: u32) -> impl Iterator<Item = BlockId> {
    let groups = core.groups.iter().zip(request.tables());
    groups
        .filter(|(group, _)| group.cacheable)
        .flat_map(move |(group, table)| {
            let positions = registrable_positions(core, request, group, table, num_tokens);
            let blocks = table.blocks.iter().take(positions.end as usize);
            blocks.skip(positions.start as usize).copied()
        })
}

/// From the first block that is not registered on. A commit registers the last state and a saved
/// one again, and the boundary inside a block where a resent prompt resumes.
fn registrable_positions(
    core: &Core,
    request: &Request,
    group: &Group,
    table: &Table,
    num_tokens: u32,
) -> Range<u32> {
    let (start, end) = (
        table.num_cached.unwrap_or(0),
        num_tokens.div_ceil(group.block),
    );
    match group.kind {
        Kind::State { .. } => {
            let saved = table.state.saved.map(|saved| saved.position);
            let last = end.saturating_sub(1).min(saved.unwrap_or(end));
            start.min(last)..end.max(saved.map_or(0, |position| position + 1))
        }
        Kind::Full if group.block != core.config.topology.hash_block_size => {
            let tail = (request.num_prompt_tokens / group.block).saturating_sub(1);
            start.min(tail)..end
        }
        Kind::Full
        | Kind::Window { .. }
        | Kind::Chunk { .. }
        | Kind::Cross
        | Kind::Ring
        | Kind::Nothing => start..end,
    }
}

fn check_committed(core: &Core, request: &Request, at: Boundary, outcome: &Outcome) -> Result<()> {
    let Boundary {
        request: id,
        num_tokens,
    } = at;
    if let Some(&end) = outcome.rewound.get(&id)
        && end < num_tokens
    {
        return Err(Error::InvalidValue(format!(
            "request {id}: commit of {num_tokens} tokens, but it is rewound to {end}; commit at \
                 most that many"
        )));
    }
    let mut blocks = registrable(core, request, num_tokens);
    match blocks.find(|&block| outcome.forgotten.has(block)) {
        Some(block) => Err(Error::InvalidValue(format!(
            "request {id}: commit of {num_tokens} tokens would make block {block} findable, which \
                 is forgotten; commit fewer tokens"
        ))),
        None => Ok(()),
    }
}

/// Refuses a rewind after which the request would write into a held block.
fn check_rewritten(core: &Core, request: &Request, at: Boundary, held: &BlockSet) -> Result<()> {
    for (group, table) in core.groups.iter().zip(request.tables()) {
        let first = first_written(group, at.num_tokens).min(table.blocks.len());
        if let Some(found) = held.found_in(&table.blocks[first..]).next() {
            return Err(Error::InvalidValue(format!(
                "request {}: rewind to {} tokens would write into block {} of group {}, which is \
                     held; preempt the request",
                at.request,
                at.num_tokens,
                table.blocks[first + found],
                group.index
            )));
        }
    }
    Ok(())
}

impl Outcome {
    /// Whether anybody but the request will hold or find the block at a position of its table.
    fn is_used(
        &self,
        core: &Core,
        request: &Request,
        group: &Group,
        position: usize,
        block: BlockId,
    ) -> bool {
        let rewound = self.rewound.get(&request.id);
        let is_lost = self.forgotten.has(block)
            || rewound.is_some_and(|&end| core.forgets(group, position, block, end));
        let is_found = core.pool.key(block).is_some() && !is_lost;
        let given_back = self.given_back.get(&block).copied().unwrap_or(0);
        let is_shared = core.pool.refs(block) - given_back > 1 || self.held.has(block);
        is_found || is_shared || self.committed.has(block)
    }
}
