//! What a request can reuse of the pool and of the tiers below it, taken together.
//!
//! ```text
//! position       0    1    2    3    4    5
//! pool           x    x    .    x    .    .      the hit of the pool ends before position 2
//! tier           .    .    x    .    x    .
//! load           hit  hit  tier pool tier        the boundary is after position 4
//! ```
//! The boundary is that of the rule for one cache that holds what pool and tiers hold, and never
//! below the hit of the pool. With `whole_blocks` it is the last one where blocks of all groups end.
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
use crate::spec::Topology;

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
    let start = start_of_load(&core.config.topology, hit.num_tokens);
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

/// Where a load begins: the last boundary of all groups up to the hit.
///
/// The hit has every block before it that a later boundary needs, because that needs no earlier
/// blocks of a window, chunk or state than the hit does. This holds for a chunk, too, that an engine
/// looked for at a longer candidate (`CHUNK_START_OF_THE_CANDIDATE`): the hit ends in or after the
/// block in which that chunk starts, so a later boundary needs no chunk before it.
fn start_of_load(topology: &Topology, hit: u32) -> u32 {
    if hit == 0 {
        return 0;
    }
    let boundary = hit + topology.replay_tokens;
    (boundary - boundary % topology.alignment).saturating_sub(topology.replay_tokens)
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
