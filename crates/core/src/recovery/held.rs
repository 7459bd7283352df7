//! What the runs hold, side by side, and where some blocks stand in their tables.
//!
//! ```text
//! run   group    position  0   1   2   3   4   5
//!  0      0                7   8   9  10  11            one scan for the blocks 9 and 30 finds
//!  0      1                .   .  30  31  32            (0, 0, 2), (0, 1, 2), (1, 0, 2)
//!  1      0                7   8   9  20
//!  1      1                .   .   .  41                and that (1, 1) has all blocks from 3 on
//! ```
//! All tables are read once, whatever the number of blocks.

use std::ops::Range;

use smallvec::SmallVec;

use super::resume_point::{OwnTable, OwnTables, block_at};
use super::run::{Run, Tables};
use crate::blocks::{BlockId, BlockSet, NULL_BLOCK, count};
use crate::error::{Error, Result};
use crate::spec::{GroupSpec, SpecKind};

/// One entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hit {
    /// The index of the run.
    pub run: u32,
    pub group: u16,
    pub position: u32,
    pub block: BlockId,
}

/// What one run holds.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub run: &'a Run,
    pub own: OwnTables<'a>,
    /// For each group, a position from which on the table has a block everywhere.
    pub whole_from: SmallVec<[u32; 8]>,
}

impl Held<'_> {
    pub(super) fn has_ended(&self) -> bool {
        self.run.ended_tables.is_some()
    }

    /// The block at a position; the null block if there is none.
    pub(super) fn block_at(&self, group: usize, position: u32) -> BlockId {
        block_at(self.own.groups[group].blocks, position)
    }

    /// The positions of a table that a load fills. Of a state group, that is the state at its end.
    pub(super) fn loaded(&self, group: usize, spec: &GroupSpec) -> Range<u32> {
        let tokens = self.run.loaded();
        if tokens.is_empty() {
            return 0..0;
        }
        let size = spec.block_size;
        let end = tokens.end.div_ceil(size);
        let start = if spec.kind == SpecKind::Mamba {
            end - 1
        } else {
            tokens.start / size
        };
        let held = count(self.own.groups[group].blocks.len());
        start.min(held)..end.min(held)
    }

    /// Whether a position of a state group had the state that covers the tokens before the start.
    /// If the run starts inside a block, steps since then have advanced that state where it is.
    pub(super) fn is_start_state(&self, spec: &GroupSpec, position: u32) -> bool {
        let before = self.run.start().checked_sub(1);
        before.is_some_and(|token| token / spec.block_size == position)
    }
}

/// Takes all runs together, ordered by request.
pub(super) fn hold<'a>(tables: &'a impl Tables, runs: &'a [Run]) -> Result<Vec<Held<'a>>> {
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_unstable_by_key(|run| run.request);
    if let Some(pair) = runs.windows(2).find(|w| w[0].request == w[1].request) {
        return Err(Error::GivenTwice(pair[0].request));
    }
    let held = runs.into_iter().map(|run| {
        check(tables, run)?;
        let mut own = match &run.ended_tables {
            Some(ended) => ended_tables(ended),
            None => tables.own(run.request)?,
        };
        own.num_tokens = run.num_tokens;
        own.num_computed_tokens = run.num_computed_tokens;
        let whole_from = own.groups.iter().map(|table| table.num_null).collect();
        Ok(Held {
            run,
            own,
            whole_from,
        })
    });
    held.collect()
}

fn ended_tables(ended: &[Vec<BlockId>]) -> OwnTables<'_> {
    let table = |blocks| OwnTable {
        blocks,
        ..OwnTable::default()
    };
    OwnTables {
        groups: ended
            .iter()
            .map(|blocks| table(blocks.as_slice()))
            .collect(),
        num_tokens: 0,
        num_computed_tokens: 0,
    }
}

/// Refuses what a run brings itself, if it cannot be.
fn check(tables: &impl Tables, run: &Run) -> Result<()> {
    let (num_groups, num_blocks) = (tables.topology().groups.len(), tables.num_blocks());
    let mut gone = run.given_back.iter();
    if let Some(gone) = gone.find(|gone| gone.group as usize >= num_groups) {
        return Err(Error::InvalidValue(format!(
            "request {}: a block of group {} was given back; there are {num_groups} groups, and the \
             first one is 0",
            run.request, gone.group
        )));
    }
    check_blocks(run.given_back.iter().map(|gone| gone.block), num_blocks)?;
    match &run.ended_tables {
        Some(ended) => check_tables(run.request, ended, num_groups, num_blocks),
        None => Ok(()),
    }
}

/// Refuses tables that are not one for each group, or that have blocks beyond the pool.
pub(super) fn check_tables(
    request: u64,
    tables: &[Vec<BlockId>],
    num_groups: usize,
    num_blocks: usize,
) -> Result<()> {
    if tables.len() != num_groups {
        return Err(Error::InvalidValue(format!(
            "request {request} has {} tables for {num_groups} groups; give one per group, empty \
             where the request has no block",
            tables.len()
        )));
    }
    check_blocks(tables.iter().flatten().copied(), num_blocks)
}

fn check_blocks(mut blocks: impl Iterator<Item = BlockId>, num_blocks: usize) -> Result<()> {
    match blocks.find(|block| block.index() >= num_blocks) {
        Some(block) => Err(Error::UnknownBlock { block, num_blocks }),
        None => Ok(()),
    }
}

/// Finds every entry of every table that is one of these blocks, in the order of runs, groups and
/// positions. It also notes from where on each table has blocks everywhere.
pub(super) fn scan(all: &mut [Held<'_>], wanted: &BlockSet) -> Vec<Hit> {
    let wanted = wanted.clone().with_null();
    let mut hits = Vec::new();
    // The hits of the tables of the run before.
    let mut before: SmallVec<[Range<usize>; 8]> = SmallVec::new();
    for run in 0..all.len() {
        let (earlier, rest) = all.split_at_mut(run);
        let held = &mut rest[0];
        before.resize(held.own.groups.len(), 0..0);
        for (group, before) in before.iter_mut().enumerate() {
            let first = hits.len();
            let copied = match earlier.last() {
                Some(other) => repeat(other, before.clone(), held, group, &mut hits),
                None => 0,
            };
            hits[first..]
                .iter_mut()
                .for_each(|hit| hit.run = count(run));
            scan_table(held, count(run), group, copied, &wanted, &mut hits);
            *before = first..hits.len();
        }
    }
    hits
}

/// Finds the entries of one table from a position on.
fn scan_table(
    held: &mut Held<'_>,
    run: u32,
    group: usize,
    from: u32,
    wanted: &BlockSet,
    hits: &mut Vec<Hit>,
) {
    let table = &held.own.groups[group];
    let start = table.num_null.max(from);
    let entries = table.from(start);
    for at in wanted.found_in(entries) {
        let (position, block) = (start + count(at), entries[at]);
        if block == NULL_BLOCK {
            held.whole_from[group] = position + 1;
        } else {
            hits.push(Hit {
                run,
                group: u16::try_from(group).unwrap_or(u16::MAX),
                position,
                block,
            });
        }
    }
}

/// Repeats the hits of another run's table as far as this table begins with the same blocks, and
/// returns how far. Requests with a common prefix often follow each other.
fn repeat(
    other: &Held<'_>,
    theirs: Range<usize>,
    held: &mut Held<'_>,
    group: usize,
    hits: &mut Vec<Hit>,
) -> u32 {
    let (a, b) = (&other.own.groups[group], &held.own.groups[group]);
    if a.num_null != b.num_null {
        return 0;
    }
    let common = a.num_null + common_prefix(a.from(a.num_null), b.from(b.num_null));
    if common <= other.whole_from[group] {
        return 0; // How far the null blocks of the common part reach is not known.
    }
    held.whole_from[group] = other.whole_from[group];
    let own = hits[theirs.clone()].partition_point(|hit| hit.position < common);
    hits.extend_from_within(theirs.start..theirs.start + own);
    common
}

/// How many entries two tables have in common at their beginning, rounded down.
fn common_prefix(a: &[BlockId], b: &[BlockId]) -> u32 {
    const CHUNK: usize = 32;
    let chunks = a
        .as_chunks::<CHUNK>()
        .0
        .iter()
        .zip(b.as_chunks::<CHUNK>().0);
    let is_same = |(a, b): &(&[BlockId; CHUNK], &[BlockId; CHUNK])| {
        let pairs = a.iter().zip(*b);
        pairs.fold(0, |others, (a, b)| others | (a.0 ^ b.0)) == 0
    };
    count(chunks.take_while(is_same).count() * CHUNK)
}

/// For each block, where it stands in all tables.
#[derive(Debug)]
pub(super) struct Occurrences {
    /// For each block, the index after its last hit.
    ends: Vec<usize>,
    hits: Vec<Hit>,
}

impl Occurrences {
    pub(super) fn new(all: &[Held<'_>], num_blocks: usize) -> Self {
        // First the starts, which move to the ends as the hits are filled in.
        let mut ends = vec![0; num_blocks + 1];
        for held in all {
            for block in held.own.groups.iter().flat_map(|table| table.blocks) {
                ends[block.index() + 1] += 1;
            }
        }
        ends[1] = 0; // The null block stands nowhere.
        for block in 1..ends.len() {
            ends[block] += ends[block - 1];
        }
        let none = Hit {
            run: 0,
            group: 0,
            position: 0,
            block: NULL_BLOCK,
        };
        let mut hits = vec![none; ends[num_blocks]];
        for (run, held) in (0u32..).zip(all) {
            for (group, table) in (0u16..).zip(&held.own.groups) {
                for (position, &block) in (0u32..).zip(table.blocks) {
                    if block != NULL_BLOCK {
                        hits[ends[block.index()]] = Hit {
                            run,
                            group,
                            position,
                            block,
                        };
                        ends[block.index()] += 1;
                    }
                }
            }
        }
        ends.truncate(num_blocks);
        Self { ends, hits }
    }

    pub(super) fn of(&self, block: BlockId) -> &[Hit] {
        let start = self.ends[block.index() - 1];
        &self.hits[start..self.ends[block.index()]]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Blocks in one order or another, after some null blocks.
    fn tables() -> impl Strategy<Value = Vec<(u32, Vec<BlockId>)>> {
        let table = (0..3u32, 0..200u32, 0..200usize, 0..3u32, 0..200usize);
        let blocks = |(null, first, length, step, hole): (u32, u32, usize, u32, usize)| {
            let ids = (0..length).scan(1000 + first, |id, _| {
                *id = (*id + step).wrapping_sub(1); // Down, everywhere the same, or up.
                Some(BlockId(*id))
            });
            let nulls = std::iter::repeat_n(NULL_BLOCK, null as usize * 70);
            let mut blocks: Vec<BlockId> = nulls.chain(ids).collect();
            if let Some(block) = blocks.get_mut(hole) {
                *block = NULL_BLOCK;
            }
            (null * 70, blocks)
        };
        let common = prop::collection::vec((table.prop_map(blocks), 0..300usize), 1..5);
        common.prop_map(|tables| {
            let mut all: Vec<(u32, Vec<BlockId>)> = Vec::new();
            for ((null, mut blocks), common) in tables {
                if let Some((other, before)) = all.last() {
                    let theirs = before.get(*other as usize..).unwrap_or(&[]);
                    let own = blocks.get_mut(null as usize..).unwrap_or(&mut []);
                    let common = common.min(theirs.len()).min(own.len());
                    own[..common].copy_from_slice(&theirs[..common]);
                }
                all.push((null, blocks));
            }
            all
        })
    }

    proptest! {
        #[test]
        fn a_scan_finds_every_entry_and_where_tables_become_whole(
            tables in tables(),
            wanted in prop::collection::vec(800..1400u32, 0..60),
        ) {
            let wanted: Vec<BlockId> = wanted.into_iter().map(BlockId).collect();
            let run = Run::default();
            let mut all: Vec<Held<'_>> = tables.iter().map(|(num_null, blocks)| {
                let table = OwnTable { blocks, num_null: *num_null, ..OwnTable::default() };
                let own = OwnTables {
                    groups: SmallVec::from_iter([table]), num_tokens: 0, num_computed_tokens: 0
                };
                Held { run: &run, own, whole_from: SmallVec::from_elem(*num_null, 1) }
            }).collect();
            let hits = scan(&mut all, &BlockSet::new(2000, &wanted));
            let found: Vec<_> = hits.iter().map(|hit| (hit.run, hit.position, hit.block)).collect();
            let mut expected = Vec::new();
            for (run, (num_null, blocks)) in (0..).zip(&tables) {
                let entries = (0u32..).zip(blocks).filter(|(_, block)| wanted.contains(block));
                expected.extend(entries.map(|(position, &block)| (run, position, block)));
                let last = blocks.iter().rposition(|&block| block == NULL_BLOCK);
                let whole = last.map_or(0, |at| count(at) + 1).max(*num_null);
                prop_assert_eq!(all[run as usize].whole_from[0], whole);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
