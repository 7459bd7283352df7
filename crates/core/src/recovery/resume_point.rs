//! The longest boundary at which a request can resume with the blocks of its own tables.
//!
//! ```text
//! position                 0   1   2   3   4   5   6   7      x: held   !: bad   .: given back
//! full                     x   x   x   x   x   x   x   x
//! window of 3 blocks       .   .   x   x   x   !   x   x
//!
//! boundary 8    the window needs 5, 6 and 7, and refuses because of 5; so it does at 7 and at 6
//! boundary 5    the window needs 2, 3 and 4: accepted
//! ```
//! The search goes down from the computed tokens. A group that refuses a boundary because of one
//! block refuses every lower boundary that needs this block, so the search goes on at the start of
//! the block: it visits few boundaries, however long the request is. All groups are asked at each
//! boundary that is visited, so the order of the groups changes nothing.

use smallvec::SmallVec;

use crate::blocks::{BlockId, BlockSet, NULL_BLOCK, count};
use crate::divisors::lcm;
use crate::rule::{alignment, grain, needed};
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// A state in a request's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The number of tokens that the state covers.
    pub num_tokens: u32,
    /// The position of its block.
    pub position: u32,
}

/// What a request holds in one group.
#[derive(Debug, Clone, Default)]
pub struct OwnTable<'a> {
    /// The blocks by position. The null block stands where none is held.
    pub blocks: &'a [BlockId],
    /// A number of leading positions that are known to have the null block.
    pub num_null: u32,
    /// Whether it is known that all positions after these have a block.
    pub is_whole: bool,
    /// In a state group, the states that the blocks have, in any order.
    pub states: SmallVec<[State; 2]>,
}

impl<'a> OwnTable<'a> {
    /// The blocks from a position on.
    pub(super) fn from(&self, start: u32) -> &'a [BlockId] {
        self.blocks.get(start as usize..).unwrap_or(&[])
    }
}

/// What a request holds.
#[derive(Debug, Clone)]
pub struct OwnTables<'a> {
    /// The tables, one for each group.
    pub groups: SmallVec<[OwnTable<'a>; 8]>,
    /// The tokens of the request.
    pub num_tokens: u32,
    /// How many of them the tables hold.
    pub num_computed_tokens: u32,
}

/// Why a block does not serve a boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The table has no block there, or no state after exactly so many tokens.
    NotHeld,
    /// The block is one of the bad ones.
    Bad,
    /// A draft head needs the unit after the boundary, which is not computed.
    NotComputed,
}

/// A boundary that a group refuses. If the block is bad or missing, the group also refuses every
/// lower boundary that needs this block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The boundary, in tokens.
    pub boundary: u32,
    /// The group.
    pub group: u16,
    /// The position of the first block that it needs and cannot use.
    pub position: u32,
    /// The block there; the null block if there is none.
    pub block: BlockId,
    /// What is wrong with that block.
    pub why: Why,
}

/// Where a request can resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumePoint {
    /// The number of tokens that need not be computed again.
    pub num_tokens: u32,
    /// The refusals at the boundaries that were visited, the largest boundary first, as many as
    /// were asked for.
    pub refused: Vec<Refusal>,
}

/// What one group demands of boundaries.
#[derive(Debug, Clone)]
struct Demand {
    group: usize,
    spec: GroupSpec,
    /// Tokens between two boundaries that the group may accept.
    grain: u32,
}

/// A refusal, and the largest boundary below it at which the group has to be asked again.
struct No {
    position: u32,
    block: BlockId,
    why: Why,
    next: u32,
}

/// A search for resume points, for any number of requests.
#[derive(Debug, Clone)]
pub struct Search {
    demands: Vec<Demand>,
    /// Every boundary is a multiple of this many tokens.
    step: u32,
    replay_tokens: u32,
    /// The bad blocks and the null block.
    holes: BlockSet,
    max_refusals: usize,
}

impl Search {
    /// A search with the pure rule. If `drops_unit`, a draft head needs one more unit after the
    /// boundary, as in a look-up; without it, the unit is known to have been there when the
    /// request got its blocks.
    #[must_use]
    pub fn new(topology: &Topology, bad: BlockSet, drops_unit: bool, max_refusals: usize) -> Self {
        let topology = Topology {
            dialect: EngineDialect::PURE,
            ..topology.clone()
        };
        let demand = |(group, spec): (usize, &GroupSpec)| {
            let eagle = spec.eagle && drops_unit && spec.kind != SpecKind::Mamba;
            Some(Demand {
                group,
                spec: GroupSpec { eagle, ..*spec },
                grain: grain(spec, &topology)?,
            })
        };
        let demands: Vec<_> = topology
            .groups
            .iter()
            .enumerate()
            .filter_map(demand)
            .collect();
        let grains = demands.iter().map(|demand| demand.grain);
        Self {
            step: lcm(grains.chain([alignment(&topology)])),
            demands,
            replay_tokens: topology.replay_tokens,
            holes: bad.with_null(),
            max_refusals,
        }
    }

    /// Lets a block that was bad serve from now on.
    pub(super) fn trust(&mut self, block: BlockId) {
        self.holes.remove(block);
    }

    /// The largest boundary that every group accepts, at most the computed tokens. At least one
    /// token is left to compute.
    #[must_use]
    pub fn resume_point(&self, own: &OwnTables<'_>) -> ResumePoint {
        let end = own.num_computed_tokens.min(own.num_tokens);
        let mut boundary = self.floor(end.min(own.num_tokens.saturating_sub(1)));
        let mut whole: SmallVec<[u32; 8]> = SmallVec::from_elem(0, self.demands.len());
        let mut refused = Vec::new();
        while boundary > 0 {
            let mut next = boundary;
            for (demand, whole) in self.demands.iter().zip(&mut whole) {
                let table = &own.groups[demand.group];
                let Some(no) = self.refuses(demand, table, boundary, end, whole) else {
                    continue;
                };
                next = next.min(no.next);
                if refused.len() < self.max_refusals {
                    refused.push(no.refusal(boundary, demand));
                }
            }
            if next == boundary {
                break;
            }
            boundary = self.floor(next);
        }
        ResumePoint {
            num_tokens: boundary.saturating_sub(self.replay_tokens),
            refused,
        }
    }

    fn floor(&self, tokens: u32) -> u32 {
        tokens / self.step * self.step
    }

    /// Why a group refuses a boundary, if it does. `whole` are the leading positions that are known
    /// to have no hole.
    fn refuses(
        &self,
        demand: &Demand,
        table: &OwnTable<'_>,
        boundary: u32,
        end: u32,
        whole: &mut u32,
    ) -> Option<No> {
        let spec = &demand.spec;
        if spec.kind == SpecKind::Mamba {
            return self.refuses_state(spec, table, boundary);
        }
        let blocks = needed(spec, boundary);
        let is_prefix = spec.kind.is_full();
        let start = if is_prefix { *whole } else { blocks.start };
        let hole = self.first_hole(table.blocks, start, blocks.end);
        if is_prefix {
            *whole = hole.unwrap_or(blocks.end).max(start);
        }
        if let Some(position) = hole {
            let block = block_at(table.blocks, position);
            let next = position * spec.block_size;
            let next = if block == NULL_BLOCK && spec.kind.is_window() {
                // Every boundary of a window needs the block that ends there.
                next.min(live_before(table, position) * spec.block_size)
            } else {
                next
            };
            let why = if block == NULL_BLOCK {
                Why::NotHeld
            } else {
                Why::Bad
            };
            let next = next.min(boundary - 1);
            return Some(No {
                position,
                block,
                why,
                next,
            });
        }
        (spec.eagle && boundary + demand.grain > end).then(|| {
            let position = boundary / spec.block_size;
            No {
                position,
                block: block_at(table.blocks, position),
                why: Why::NotComputed,
                next: end.saturating_sub(demand.grain),
            }
        })
    }

    fn refuses_state(&self, spec: &GroupSpec, table: &OwnTable<'_>, boundary: u32) -> Option<No> {
        let block = |state: &State| block_at(table.blocks, state.position);
        let states = table.states.iter();
        let mut here = states.clone().filter(|state| state.num_tokens == boundary);
        let bad = match here.next() {
            Some(state) if !self.holes.has(block(state)) => return None,
            other => other,
        };
        let lower =
            states.filter(|state| state.num_tokens < boundary && !self.holes.has(block(state)));
        let position = bad.map_or((boundary - 1) / spec.block_size, |state| state.position);
        Some(No {
            position,
            block: block_at(table.blocks, position),
            why: if bad.is_some() {
                Why::Bad
            } else {
                Why::NotHeld
            },
            next: lower.map(|state| state.num_tokens).max().unwrap_or(0),
        })
    }

    /// The first of these positions that has a bad block or none.
    fn first_hole(&self, blocks: &[BlockId], start: u32, end: u32) -> Option<u32> {
        let length = blocks.len();
        let (start, end) = (start as usize, end as usize);
        let held = blocks.get(start..end.min(length)).unwrap_or(&[]);
        let hole = self.holes.found_in(held).next().map(|at| start + at);
        let missing = (start < end && length < end).then_some(length.max(start));
        hole.or(missing).map(count)
    }
}

impl No {
    fn refusal(&self, boundary: u32, demand: &Demand) -> Refusal {
        Refusal {
            boundary,
            group: u16::try_from(demand.group).unwrap_or(u16::MAX),
            position: self.position,
            block: self.block,
            why: self.why,
        }
    }
}

pub(super) fn block_at(blocks: &[BlockId], position: u32) -> BlockId {
    blocks.get(position as usize).copied().unwrap_or(NULL_BLOCK)
}

/// One more than the last position before this one that has a block; 0 if none has.
fn live_before(table: &OwnTable<'_>, position: u32) -> u32 {
    let end = (position as usize).min(table.blocks.len());
    let before = table
        .blocks
        .get(table.num_null as usize..end)
        .unwrap_or(&[]);
    let live = before.iter().rposition(|&block| block != NULL_BLOCK);
    live.map_or(0, |at| table.num_null + count(at) + 1)
}
