//! What the tables of requests hold, asked after a load failed: who has a block, and how far each
//! request can resume with what it has.
//!
//! Nothing is noted while blocks are handed out. Both questions read the tables instead, which
//! costs less than a nanosecond for each entry and is asked only when something went wrong.

use smallvec::SmallVec;

use super::Cache;
use super::core::Core;
use super::group::{Group, Kind};
use super::request::{Request, Table};
use crate::blocks::{BlockId, BlockSet, Key, NULL_BLOCK, Ranks, count};
use crate::error::Result;
use crate::recovery::{OwnTable, OwnTables, ResumePoint, Search, State};

/// The places of blocks in tables. Those of block `i` are the `counts[i]` after those of the blocks
/// before it, in the order of requests, groups and positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// For each block that was asked for, the number of its places.
    pub counts: Vec<u32>,
    /// The requests that hold the blocks.
    pub requests: Vec<u64>,
    /// The groups in whose tables they are.
    pub groups: Vec<u32>,
    /// The positions in the tables.
    pub positions: Vec<u32>,
}

/// A request and the number of its computed tokens that count; `None` for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnLimit {
    /// The request.
    pub request: u64,
    /// The tokens that are looked at, at most.
    pub num_tokens: Option<u32>,
}

/// One entry of a table.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    request: u64,
    group: u32,
    position: u32,
}

impl Cache {
    /// Where each of these blocks stands in the tables of requests. The null block stands nowhere.
    /// This reads all tables once.
    ///
    /// # Errors
    /// `UnknownBlock`.
    pub fn requests_of(&self, blocks: &[BlockId]) -> Result<Places> {
        self.check_blocks(blocks)?;
        let wanted = BlockSet::new(self.core.pool.num_blocks(), blocks);
        let ranks = wanted.ranks();
        let mut found: Vec<(usize, Place)> = Vec::new();
        let mut requests: Vec<&Request> = self.requests.values().map(Box::as_ref).collect();
        requests.sort_unstable_by_key(|request| request.id);
        for request in requests {
            for (group, table) in (0u32..).zip(request.tables()) {
                let start = table.num_null();
                let held = &table.blocks[start as usize..];
                found.extend(wanted.found_in(held).map(|at| {
                    let place = Place {
                        request: request.id,
                        group,
                        position: start + count(at),
                    };
                    (ranks.of(held[at]), place)
                }));
            }
        }
        Ok(Places::by_block(blocks, &wanted, &ranks, &found))
    }

    /// How far each of these requests can resume with the blocks of its own tables, if `bad` blocks
    /// are left out. See [`Search::new`] for `drops_unit`; `max_refusals` is the number of refusals
    /// that are told for each request.
    ///
    /// # Errors
    /// `UnknownRequest`; `UnknownBlock`.
    pub fn resume_points(
        &self,
        limits: &[OwnLimit],
        bad: &[BlockId],
        drops_unit: bool,
        max_refusals: usize,
    ) -> Result<Vec<ResumePoint>> {
        self.check_blocks(bad)?;
        let bad = BlockSet::new(self.core.pool.num_blocks(), bad);
        let search = Search::new(&self.core.config.topology, bad, drops_unit, max_refusals);
        let points = limits.iter().map(|limit| {
            let request = self.request(limit.request)?;
            let own = self.core.own_tables(request, limit.num_tokens);
            Ok(search.resume_point(&own))
        });
        points.collect()
    }
}

impl Places {
    /// Puts the places of each block together. They stay in the order in which they were found.
    fn by_block(
        blocks: &[BlockId],
        wanted: &BlockSet,
        ranks: &Ranks<'_>,
        found: &[(usize, Place)],
    ) -> Self {
        // After this, the places of rank r are those from ends[r - 1] to ends[r].
        let mut ends = vec![0; ranks.count() + 1];
        for &(rank, _) in found {
            ends[rank + 1] += 1;
        }
        for rank in 1..ends.len() {
            ends[rank] += ends[rank - 1];
        }
        let mut sorted = vec![Place::default(); found.len()];
        for &(rank, place) in found {
            sorted[ends[rank]] = place;
            ends[rank] += 1;
        }
        let mut places = Self::default();
        for &block in blocks {
            let rank = wanted.has(block).then(|| ranks.of(block));
            let start = rank.and_then(|rank| rank.checked_sub(1));
            let start = start.map_or(0, |before| ends[before]);
            let own = &sorted[start..rank.map_or(start, |rank| ends[rank])];
            places.counts.push(count(own.len()));
            places
                .requests
                .extend(own.iter().map(|place| place.request));
            places.groups.extend(own.iter().map(|place| place.group));
            places
                .positions
                .extend(own.iter().map(|place| place.position));
        }
        places
    }
}

impl Core {
    fn own_tables<'a>(&self, request: &'a Request, limit: Option<u32>) -> OwnTables<'a> {
        let groups = self.groups.iter().zip(request.tables());
        OwnTables {
            groups: groups
                .map(|(group, table)| OwnTable {
                    blocks: &table.blocks,
                    num_null: table.num_null(),
                    states: self.states(group, table, request.num_computed_tokens),
                })
                .collect(),
            num_tokens: request.num_tokens(),
            num_computed_tokens: request.num_computed_tokens.min(limit.unwrap_or(u32::MAX)),
        }
    }

    /// The states that a table has. A registered one covers as many tokens as its hash. If it is not
    /// registered, only the running state and the one before it are known: they are the states at
    /// the ends of their blocks.
    fn states(&self, group: &Group, table: &Table, computed: u32) -> SmallVec<[State; 2]> {
        if !matches!(group.kind, Kind::State { .. }) {
            return SmallVec::new();
        }
        let running = computed.div_ceil(group.block).checked_sub(1);
        let state = |(position, &block): (u32, &BlockId)| {
            let is_last = Some(position) == running || Some(position) == table.state.last;
            let is_here = |key: Key| key.group == group.index;
            let num_tokens = match self.pool.key(block) {
                Some(key) if is_here(key) => self.pool.num_tokens(block),
                _ if is_last => (position + 1) * group.block,
                _ => return None,
            };
            Some(State {
                num_tokens,
                position,
            })
        };
        let held = (0u32..).zip(&table.blocks).skip(table.num_null() as usize);
        let held = held.filter(|(_, block)| **block != NULL_BLOCK);
        held.filter_map(state).collect()
    }
}
