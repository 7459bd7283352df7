//! What failures mean for all runs together.
//!
//! ```text
//! 1  hold      the tables of all runs, side by side
//! 2  report    which places, blocks and requests a load of some run fills
//! 3  find      where in all tables the reported blocks stand
//! 4  taint     what was computed from the failed blocks, of any run
//! 5  verdicts  resume points, owners and waiters of the affected runs
//! ```
//! Only the third step may read whole tables, once; the others look at what it found. Taint that
//! reaches a block which other tables may have costs a second pass.

use super::former::WithFormer;
use super::held::hold;
use super::hits::find;
use super::owners::{Verdict, VerdictSearch};
use super::reported::{IgnoredCounts, ReportFilter};
use super::run::{Failures, Run, Tables};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet};
use crate::error::Result;

/// The answer for all runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// The blocks with garbage, in ascending order, and then former contents.
    pub tainted: Vec<BlockId>,
    /// One for each affected run that has not ended, ordered by request.
    pub verdicts: Vec<Verdict>,
    /// The requests that were told a token computed from garbage by a run that has ended, in
    /// ascending order.
    pub told: Vec<u64>,
    /// How many parts of the report do not count.
    pub ignored: IgnoredCounts,
}

/// What an assessment needs besides the runs.
#[derive(Debug, Clone, Default)]
pub struct AssessmentInput {
    /// What failed.
    pub failures: Failures,
    /// Blocks that a transfer may still write.
    pub busy: Vec<BlockId>,
    /// How many refused boundaries are told for each run.
    pub max_refusals: usize,
    /// For each content that a block had before it was handed out again, the block. The contents
    /// are numbered from the number of blocks on, in what runs have given back and in the tables of
    /// ended runs.
    pub former: Vec<BlockId>,
}

/// What failures taint, and where each affected run resumes.
///
/// # Errors
/// `UnknownRequest` for a run that goes on without tables; `GivenTwice` for a request with two runs
/// that go on; `InvalidValue` or `UnknownBlock` for tables that cannot be.
pub fn assess(tables: &impl Tables, runs: &[Run], input: &AssessmentInput) -> Result<Assessment> {
    let tables = &WithFormer::new(tables, &input.former);
    let num_blocks = tables.num_blocks();
    let all = hold(tables, runs)?;
    let mut taint = Taint::new(num_blocks, all.len());
    let mut ignored = IgnoredCounts::default();
    let mut filter = ReportFilter::new(tables, &all, &mut taint, &mut ignored);
    filter.fail_places(&input.failures);
    let reported = filter.blocks(&input.failures);
    let mut wanted = taint.blocks.clone();
    reported.want(&mut wanted);
    let mut hits = find(&all, &wanted, tables.topology().groups.len());
    ReportFilter::new(tables, &all, &mut taint, &mut ignored).fail_blocks(reported, &hits);
    taint.spread(tables, &all, &mut hits, &wanted);
    let busy = BlockSet::new(num_blocks, &input.busy);
    let told = taint.told(&all);
    let search = VerdictSearch {
        topology: tables.topology(),
        all: &all,
        taint: &taint,
        told: &told,
        hits: &hits,
        is_any_busy: !busy.is_empty(),
        busy: &busy,
        max_refusals: input.max_refusals,
    };
    Ok(Assessment {
        verdicts: search.verdicts(),
        told,
        tainted: taint.blocks.iter().collect(),
        ignored,
    })
}
