//! What the runs hold, side by side.

use std::ops::Range;

use smallvec::SmallVec;

use super::resume_point::{OwnTable, OwnTables, block_at};
use super::run::{GivenBack, Run, Tables};
use crate::blocks::{BlockId, BlockSet, count};
use crate::error::{Error, Result};
use crate::spec::{GroupSpec, SpecKind};

/// What one run holds.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub run: &'a Run,
    pub own: OwnTables<'a>,
    /// For each group, the position from which on the table has a block everywhere.
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
        let positions = loaded_positions(&self.run.loaded(), spec);
        let held = count(self.own.groups[group].blocks.len());
        positions.start.min(held)..positions.end.min(held)
    }

    /// What the run's load has filled of what it has given back.
    pub(super) fn lost(&self, groups: &[GroupSpec]) -> impl Iterator<Item = GivenBack> {
        let tokens = self.run.loaded();
        let of_load = move |gone: &&GivenBack| {
            let Some(spec) = groups.get(gone.group as usize) else {
                return false;
            };
            loaded_positions(&tokens, spec).contains(&gone.position)
        };
        self.run.given_back.iter().filter(of_load).copied()
    }

    /// Whether a position of a state group had the state that covers the tokens before the start.
    /// If the run starts inside a block, steps since then have advanced that state where it is.
    pub(super) fn is_start_state(&self, spec: &GroupSpec, position: u32) -> bool {
        let before = self.run.start().checked_sub(1);
        before.is_some_and(|token| token / spec.block_size == position)
    }
}

/// The positions that the tokens of a load fill.
fn loaded_positions(tokens: &Range<u32>, spec: &GroupSpec) -> Range<u32> {
    if tokens.is_empty() {
        return 0..0;
    }
    let end = tokens.end.div_ceil(spec.block_size);
    let start = if spec.kind == SpecKind::Mamba {
        end - 1
    } else {
        tokens.start / spec.block_size
    };
    start..end
}

/// The indices of a request's runs: those that have ended, and the one that goes on.
pub(super) fn runs_of(all: &[Held<'_>], request: u64) -> Range<usize> {
    let start = all.partition_point(|held| held.run.request < request);
    let own = all[start..].partition_point(|held| held.run.request == request);
    start..start + own
}

/// Takes all runs together, ordered by request.
pub(super) fn hold<'a>(tables: &'a impl Tables, runs: &'a [Run]) -> Result<Vec<Held<'a>>> {
    let mut runs: Vec<&Run> = runs.iter().collect();
    runs.sort_unstable_by_key(|run| run.request);
    let goes_on = |run: &&&Run| run.ended_tables.is_none();
    let going_on: Vec<&&Run> = runs.iter().filter(goes_on).collect();
    if let Some(pair) = going_on.windows(2).find(|w| w[0].request == w[1].request) {
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
        let whole_from = own.groups.iter().map(whole_from).collect();
        Ok(Held {
            run,
            own,
            whole_from,
        })
    });
    held.collect()
}

/// The position from which on a table has a block everywhere.
fn whole_from(table: &OwnTable<'_>) -> u32 {
    if table.is_whole {
        return table.num_null;
    }
    let null = BlockSet::default().with_null();
    let last = null.found_in(table.from(table.num_null)).last();
    table.num_null + last.map_or(0, |at| count(at) + 1)
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
