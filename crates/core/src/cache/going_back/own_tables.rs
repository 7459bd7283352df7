//! What the tables of requests hold, asked after a load failed: who has a block, and how far each
//! request can resume with what it has.
//!
//! Nothing is noted while blocks are handed out. Both questions read the tables instead, which
//! costs about half a nanosecond for each entry and is asked only when something went wrong.

use smallvec::SmallVec;

use crate::blocks::{BlockId, BlockSet, Key, NULL_BLOCK, count};
use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::{Request, Table};
use crate::recovery::{OwnTable, OwnTables, State};

/// One entry of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableEntry {
    /// The request.
    pub request: u64,
    /// The group in whose table the entry is.
    pub group: u32,
    /// The position in the table.
    pub position: u32,
}

/// Where blocks stand in tables. The places of block `i` are those from `ends[i - 1]` to `ends[i]`,
/// in the order of requests, groups and positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The blocks that were asked for, except the null block: in ascending order, each once.
    pub blocks: Vec<BlockId>,
    /// For each block, the index after its last place.
    pub ends: Vec<usize>,
    /// The places of all blocks.
    pub places: Vec<TableEntry>,
}

/// A request and the number of its computed tokens that count; `None` for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnLimit {
    /// The request.
    pub request: u64,
    /// The tokens that are looked at, at most.
    pub num_tokens: Option<u32>,
}

impl Places {
    /// Where these blocks stand in the tables of a cache's requests.
    pub(super) fn of(cache: &Cache, blocks: &[BlockId]) -> Self {
        let wanted = BlockSet::new(cache.core.pool.num_blocks(), blocks);
        let ranks = wanted.ranks();
        let mut found: Vec<(u32, TableEntry)> = Vec::new();
        let mut requests: Vec<&Request> = cache.requests.values().map(Box::as_ref).collect();
        requests.sort_unstable_by_key(|request| request.id);
        for request in requests {
            for (group, table) in (0u32..).zip(request.tables()) {
                let start = table.num_null();
                let held = &table.blocks[start as usize..];
                found.extend(wanted.found_in(held).map(|at| {
                    let place = TableEntry {
                        request: request.id,
                        group,
                        position: start + count(at),
                    };
                    (ranks.of(held[at]), place)
                }));
            }
        }
        Self::by_block(blocks, &found)
    }

    /// Puts the places of each block together. They stay in the order in which they were found, and
    /// each comes with the number of its block among the blocks in ascending order.
    fn by_block(blocks: &[BlockId], found: &[(u32, TableEntry)]) -> Self {
        let mut blocks = blocks.to_vec();
        blocks.retain(|&block| block != NULL_BLOCK);
        blocks.sort_unstable();
        blocks.dedup();
        // First the starts, which move to the ends as the places are filled in.
        let mut ends = vec![0; blocks.len() + 1];
        for &(rank, _) in found {
            ends[rank as usize + 1] += 1;
        }
        for rank in 1..ends.len() {
            ends[rank] += ends[rank - 1];
        }
        ends.truncate(blocks.len());
        let mut places = vec![TableEntry::default(); found.len()];
        for &(rank, place) in found {
            places[ends[rank as usize]] = place;
            ends[rank as usize] += 1;
        }
        Self {
            blocks,
            ends,
            places,
        }
    }
}

pub(super) fn own_tables<'a>(
    core: &Core,
    request: &'a Request,
    limit: Option<u32>,
) -> OwnTables<'a> {
    let groups = core.groups.iter().zip(request.tables());
    let own = |(group, table): (&Group, &'a Table)| {
        let is_whole = group.kind == Kind::Full && !core.config.hits_may_lack_blocks();
        debug_assert!(!is_whole || !table.blocks.contains(&NULL_BLOCK));
        OwnTable {
            blocks: &table.blocks,
            num_null: table.num_null(),
            is_whole,
            states: states(core, group, table, request.num_computed_tokens),
        }
    };
    OwnTables {
        groups: groups.map(own).collect(),
        num_tokens: request.num_tokens(),
        num_computed_tokens: request.num_computed_tokens.min(limit.unwrap_or(u32::MAX)),
    }
}

/// The states that a table has. A registered one covers as many tokens as its hash. If it is not
/// registered, only the running state and the one before it are known: they are the states at
/// the ends of their blocks.
fn states(core: &Core, group: &Group, table: &Table, computed: u32) -> SmallVec<[State; 2]> {
    if !matches!(group.kind, Kind::State { .. }) {
        return SmallVec::new();
    }
    let running = computed.div_ceil(group.block).checked_sub(1);
    let state = |(position, &block): (u32, &BlockId)| {
        let is_last = Some(position) == running || Some(position) == table.state.last;
        let is_here = |key: Key| key.group == group.index;
        let num_tokens = match core.pool.key(block) {
            Some(key) if is_here(key) => core.pool.num_tokens(block),
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
