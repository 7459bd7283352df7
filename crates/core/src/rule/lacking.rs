//! The rule for a holder that may hold more than is known: so many blocks, it is not known which.
//!
//! A boundary can be resumed only if the blocks that it needs and that are not known to be held are
//! at most as many as may be held unknown, counted over all groups. The cost is linear: the blocks
//! that are lacking before each block are counted once for each group.

use super::needs::needed;
use super::plan::{EvaluationPlan, alignment};
use super::sweep::slice;
use super::{Holdings, Query, Scratch};
use crate::spec::Topology;

/// How many tokens one holder can reuse at most, if it also holds up to `most` blocks that are not
/// known: aligned, at most `num_tokens - 1`, with replay subtracted.
///
/// `query.mask` has one bit. Where hits end inside blocks, or an engine's own search decides, nothing
/// is excluded: the answer is the last boundary of the request.
pub fn resume_lacking(
    topology: &Topology,
    held: &Holdings,
    query: Query,
    most: u64,
    scratch: &mut Scratch,
) -> u32 {
    let Scratch { plan, lacking, .. } = scratch;
    plan.draw(topology, held.unit, query);
    let boundary = if topology.partial_hits || plan.needs_emulation(topology) {
        last_boundary(topology, query.num_tokens)
    } else {
        count(plan, held, lacking);
        let steps = &lacking.by_step;
        let last = steps.iter().rposition(|&blocks| blocks <= most);
        plan.tokens(last.map_or(0, |step| (step + 1) * plan.step))
    };
    boundary.saturating_sub(topology.replay_tokens)
}

/// The last boundary that an engine can return, whatever its search does.
fn last_boundary(topology: &Topology, num_tokens: u32) -> u32 {
    let last = num_tokens.saturating_sub(1);
    last - last % alignment(topology).max(1)
}

/// Buffers that are used again.
#[derive(Debug, Clone, Default)]
pub(super) struct Lacking {
    /// For each boundary that the rule may accept: the blocks that it needs and that are not held.
    by_step: Vec<u64>,
    /// For each number of blocks of one group from the start: how many of them are not held.
    before: Vec<u64>,
}

/// Counts what is lacking for each boundary.
fn count(plan: &EvaluationPlan, held: &Holdings, lacking: &mut Lacking) {
    let Lacking { by_step, before } = lacking;
    by_step.clear();
    by_step.resize(plan.limit / plan.step, 0);
    for (group, spec) in plan.spec_of.iter().enumerate() {
        let Some(spec) = spec.map(|index| &plan.specs[index]) else {
            continue;
        };
        let words = slice(held.whole, group);
        let is_held = |block: usize| words.get((block + 1) * spec.block - 1);
        before.clear();
        before.push(0);
        let mut missing = 0;
        for block in 0..plan.units / spec.block {
            missing += u64::from(is_held(block).is_none_or(|word| word & plan.mask == 0));
            before.push(missing);
        }
        for (step, blocks) in by_step.iter_mut().enumerate() {
            let needs = needed(&spec.group, plan.tokens((step + 1) * plan.step));
            let [start, end] = [needs.start, needs.end].map(|at| before.get(at as usize));
            // A block that the request does not have whole is never looked up.
            let more = match (start, end) {
                (Some(start), Some(end)) => end - start,
                _ if needs.is_empty() => 0,
                _ => u64::MAX,
            };
            *blocks = blocks.saturating_add(more);
        }
    }
}
