//! What a request can reuse of the pool and of the tiers below it, taken together.
//!
//! ```text
//! position       0    1    2    3    4    5
//! pool           x    x    .    x    .    .      the hit of the pool ends before position 2
//! tier           .    .    x    .    x    .
//! load           hit  hit  tier pool tier        the boundary is after position 4
//! ```
//! The boundary is that of the rule for one cache that holds what pool and tiers hold, and never
//! below the hit of the pool. With `whole_blocks` it is that of the rule without hits inside blocks.
//! Each position after the hit is filled from the first that has it: the pool, then the tiers in
//! their order.

use smallvec::SmallVec;

use super::find::FoundEntries;
use super::io::{Fill, Match, TierMatch};
use crate::blocks::{BlockId, NULL_BLOCK, Pool, count};
use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::Request;
use crate::error::{Error, Result};
use crate::rule::needed;

/// Looks a request up in a cache and in the indexes of its tiers. Nothing is changed.
///
/// # Errors
/// `UnknownRequest`; `InvalidValue` for a tier with other groups.
pub fn match_over(
    cache: &mut Cache,
    id: u64,
    tiers: &[&Cache],
    whole_blocks: bool,
) -> Result<TierMatch> {
    let groups = &cache.core.config.topology.groups;
    let is_other = |tier: &&Cache| tier.core.config.topology.groups != *groups;
    if let Some(number) = tiers.iter().position(is_other) {
        return Err(Error::InvalidValue(format!(
            "tiers[{number}] has other groups than the cache; give its index the same topology"
        )));
    }
    cache.with(id, |core, request| {
        Ok(find(core, request, tiers, whole_blocks))
    })
}

type Pools<'a> = SmallVec<[&'a Pool; 4]>;

fn pools<'a>(pool: &'a Pool, tiers: &[&'a Cache]) -> Pools<'a> {
    let below = tiers.iter().map(|tier| &tier.core.pool);
    std::iter::once(pool).chain(below).collect()
}

fn find(core: &mut Core, request: &Request, tiers: &[&Cache], whole_blocks: bool) -> TierMatch {
    let replay = core.config.topology.replay_tokens;
    let hit = core.finder.find(request, &core.groups, &core.pool);
    let (boundary, entries) = core.finder.find_over(
        request,
        &core.groups,
        &pools(&core.pool, tiers),
        whole_blocks,
    );
    let end = boundary.saturating_sub(replay);
    if end <= hit.num_tokens {
        return TierMatch {
            adopted: hit,
            num_pool_tokens: hit.num_tokens,
            num_tokens: hit.num_tokens,
            fills: Vec::new(),
        };
    }
    let start = start_of_load(core, request, hit.num_tokens, end);
    let sources = LoadSources {
        pools: pools(&core.pool, tiers),
        entries,
        unit: core.config.topology.hash_block_size,
        end,
    };
    let cacheable = core.groups.iter().filter(|group| group.cacheable);
    TierMatch {
        adopted: Match {
            num_tokens: start,
            ..hit
        },
        num_pool_tokens: hit.num_tokens,
        num_tokens: end,
        fills: cacheable
            .flat_map(|group| sources.fills(group, start))
            .collect(),
    }
}

/// The boundary of all groups, at most the hit, from which on a load to `end` has to fill blocks: the
/// hit there has every earlier block that `end` needs.
fn start_of_load(core: &mut Core, request: &Request, hit: u32, end: u32) -> u32 {
    let topology = &core.config.topology;
    let (alignment, replay) = (topology.alignment, topology.replay_tokens);
    let mut most = if hit == 0 { 0 } else { hit + replay };
    loop {
        let start = (most / alignment * alignment).saturating_sub(replay);
        match first_lacking(core, request, start, end) {
            Some(token) if start > 0 => most = token,
            _ => return start,
        }
    }
}

/// The first token of a block that is needed at `end` and lies before `start`, but is not among the
/// blocks of the hit there. Only engines that report more than is held lack one.
fn first_lacking(core: &mut Core, request: &Request, start: u32, end: u32) -> Option<u32> {
    let looks = core.finder.looks(request, &core.groups, &core.pool);
    let lookup = core.finder.lookup(request, &core.pool);
    let mut blocks = Vec::new();
    let lacking = core.groups.iter().filter_map(|group| {
        let look = looks.get(usize::from(group.index)).copied().flatten();
        blocks.clear();
        // What is not held is a null block.
        let _missing = core.finder.blocks(lookup, group, start, look, &mut blocks);
        let first = needed(&group.spec, end).start;
        let mut read = (0..).zip(&blocks).skip(first as usize);
        let position: u32 = read.find(|(_, block)| **block == NULL_BLOCK)?.0;
        Some(position * group.block)
    });
    lacking.min()
}

/// Where each block of a load to `end` tokens is.
struct LoadSources<'a> {
    /// The pool and the tiers.
    pools: Pools<'a>,
    entries: FoundEntries,
    /// Tokens per hash.
    unit: u32,
    end: u32,
}

impl LoadSources<'_> {
    /// The positions of a group that a load from `start` fills, as far as their blocks are anywhere.
    fn fills(&self, group: &Group, start: u32) -> impl Iterator<Item = Fill> {
        let (skipped, index) = (group.skipped(self.end), group.index);
        let first = start.div_ceil(group.block).max(skipped / group.block);
        let last = if skipped < self.end {
            self.end.div_ceil(group.block)
        } else {
            first
        };
        (first..last).filter_map(move |position| {
            let (source, block) = self.source(group, position)?;
            Some(Fill {
                group: index,
                position,
                source: count(source),
                block,
            })
        })
    }

    /// The first pool that has a block, and the block. A block in which the boundary lies has at
    /// least the tokens before it; of several such blocks of one pool, the one with most is taken.
    fn source(&self, group: &Group, position: u32) -> Option<(usize, BlockId)> {
        let whole = (position + 1) * group.block;
        let is_state = matches!(group.kind, Kind::State { .. });
        let (least, most) = if is_state || whole <= self.end {
            (whole.min(self.end), whole.min(self.end))
        } else {
            (self.end, whole)
        };
        let hashes = least.div_ceil(self.unit)..=most / self.unit;
        let pools = self.pools.iter().enumerate();
        pools.into_iter().find_map(|(number, pool)| {
            let entries = hashes.clone().rev().filter_map(|hash| {
                let entry = self.entries.of(number, hash)?;
                let block = pool.index.row(entry)[usize::from(group.index)];
                (block != NULL_BLOCK).then_some((number, block))
            });
            entries.into_iter().next()
        })
    }
}
