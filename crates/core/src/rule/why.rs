//! The rule one boundary at a time: what `explain` shows and which group ends a prefix.
//!
//! This follows the definition directly: for a boundary, AND the blocks that the group needs there.
//! That costs a window per boundary, so the hot path uses it only for one boundary per answer. All
//! boundaries of one group together ([`accepted`]) are derived from the number of held blocks in a
//! row up to each of them, which is linear in the blocks of the request, whatever the group
//! demands.

use std::ops::Range;

use super::needs::needed;
use super::plan::{EvaluationPlan, GroupDemand, Spec};
use super::sweep::member_entry;
use super::{HOLDERS, Holdings, Query, Scratch};
use crate::spec::Topology;

/// The group that ends a prefix, and the boundary that it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitingGroup {
    /// The index of the group in the topology.
    pub group: usize,
    /// The first aligned boundary after the answer that not all groups accept, in tokens.
    pub boundary: u32,
}

/// The boundaries that one group accepts for holder `bit`, in tokens and at most `num_tokens - 1`.
///
/// Boundary 0, which every group accepts, is left out. `None` if the group restricts nothing.
pub fn accepted(
    topology: &Topology,
    held: &Holdings,
    query: Query,
    group: usize,
    bit: u32,
    scratch: &mut Scratch,
) -> Option<Vec<u32>> {
    let plan = &mut scratch.plan;
    plan.draw(
        topology,
        held.unit,
        Query {
            mask: 1 << bit,
            ..query
        },
    );
    let index = plan.spec_of.get(group).copied().flatten()?;
    let spec = &plan.specs[index];
    let holds = |end| member_entry(plan, held, index, group, end) & plan.mask != 0;
    let line = if spec.demand == GroupDemand::Prefix && spec.is_fine() {
        HeldRuns::of_entries(plan, spec, holds)
    } else {
        HeldRuns::of_blocks(plan, spec, holds)
    };
    let ends = (1..=plan.limit / spec.grain).filter(|&own| line.accepts(plan, spec, own));
    Some(ends.map(|own| plan.tokens(own * spec.grain)).collect())
}

/// One group as one holder holds it: for each grain, how many held grains in a row end there.
///
/// ```text
/// held      x  x  .  x  x  x
/// run       1  2  0  1  2  3      a window of 2 is accepted at 2, 5 and 6, a prefix at 1 and 2
/// ```
struct HeldRuns {
    runs: Vec<usize>,
}

impl HeldRuns {
    fn of_blocks(plan: &EvaluationPlan, spec: &Spec, holds: impl Fn(usize) -> bool) -> Self {
        let mut run = 0;
        let runs = (1..=plan.units / spec.grain).map(|end| {
            run = if holds(end) { run + 1 } else { 0 };
            run
        });
        Self {
            runs: runs.collect(),
        }
    }

    /// The leading whole blocks, extended by interior entries of the next block: everything up to
    /// the furthest of these entries counts as held.
    fn of_entries(plan: &EvaluationPlan, spec: &Spec, holds: impl Fn(usize) -> bool) -> Self {
        let per_block = spec.block / spec.grain;
        let limit = plan.probe_limit / spec.grain;
        let whole = (1..=limit / per_block)
            .take_while(|block| holds(block * per_block))
            .count()
            * per_block;
        let interior = whole + 1..=(whole + per_block).min(limit);
        let reach = interior.rev().find(|&end| holds(end)).unwrap_or(whole);
        Self {
            runs: (1..=reach).collect(),
        }
    }

    /// Whether boundary `own` (in grains, at least 1) is accepted; the same answer as that of
    /// [`accepts`].
    fn accepts(&self, plan: &EvaluationPlan, spec: &Spec, own: usize) -> bool {
        let grains = needed_grains(plan, spec, own);
        let run = self.runs.get(grains.end - 1).copied().unwrap_or(0);
        grains.end <= plan.units / spec.grain && run >= grains.len()
    }
}

/// The grains of a spec that boundary `own` (in grains, at least 1) needs. Interior entries of a
/// full spec are not considered.
fn needed_grains(plan: &EvaluationPlan, spec: &Spec, own: usize) -> Range<usize> {
    if spec.is_fine() {
        // Each boundary has its own state. A full spec is counted as held up to its reach.
        let first = if spec.demand == GroupDemand::Prefix {
            0
        } else {
            own - 1
        };
        return first..own + spec.extra();
    }
    let blocks = needed(&spec.group, plan.tokens(own * spec.grain));
    blocks.start as usize..blocks.end as usize
}

/// For each holder, the first boundary after its answer that a group refuses, and that group.
///
/// `answers` are those of [`super::resume`] for the same arguments. `None` if only the length of
/// the request (or a departure of the engine from the rule) ends the prefix.
pub fn limiting(
    topology: &Topology,
    held: &Holdings,
    query: Query,
    answers: &[u32; HOLDERS],
    scratch: &mut Scratch,
) -> [Option<LimitingGroup>; HOLDERS] {
    let plan = &mut scratch.plan;
    plan.draw(topology, held.unit, query);
    let mut limits = [None; HOLDERS];
    let mut pending = query.mask;
    while pending != 0 {
        let answer = answers[pending.trailing_zeros() as usize];
        let same = (0..HOLDERS).filter(|&bit| answers[bit] == answer);
        let mut left = same.fold(0, |bits, bit| bits | 1 << bit) & pending;
        pending &= !left;
        let hit = if answer == 0 {
            0
        } else {
            answer + topology.replay_tokens
        };
        let hit = (hit / plan.unit) as usize;
        let mut end = hit / plan.step * plan.step + plan.step;
        while left != 0 && end <= plan.limit {
            left = refuse(plan, held, hit, end, left, &mut limits);
            end += plan.step;
        }
    }
    limits
}

/// Notes the holders that some group refuses at `end`. Returns those that no group refuses.
fn refuse(
    plan: &EvaluationPlan,
    held: &Holdings,
    hit: usize,
    end: usize,
    holders: u64,
    limits: &mut [Option<LimitingGroup>; HOLDERS],
) -> u64 {
    let mut left = holders;
    for group in (0..plan.spec_of.len()).filter(|&group| plan.spec_of[group].is_some()) {
        if left == 0 {
            break;
        }
        let mut refused = left & !accepts(plan, held, group, left, end, hit);
        left &= !refused;
        while refused != 0 {
            let bit = refused.trailing_zeros() as usize;
            limits[bit] = Some(LimitingGroup {
                group,
                boundary: plan.tokens(end),
            });
            refused &= refused - 1;
        }
    }
    left
}

/// The holders among `holders` for which a restricting group accepts boundary `end` (in units).
///
/// `known` is a boundary up to which the holders are known to hold full attention: nothing before
/// its block is looked at again.
fn accepts(
    plan: &EvaluationPlan,
    held: &Holdings,
    group: usize,
    holders: u64,
    end: usize,
    known: usize,
) -> u64 {
    let Some(index) = plan.spec_of[group] else {
        return holders;
    };
    let spec = &plan.specs[index];
    if !end.is_multiple_of(spec.grain) {
        return 0;
    }
    let mut grains = needed_grains(plan, spec, end / spec.grain);
    if spec.demand == GroupDemand::Prefix {
        if spec.is_fine() {
            return holders & reaches(plan, held, index, group, grains.end);
        }
        grains.start = known / spec.block;
    }
    if grains.end > plan.units / spec.grain {
        return 0;
    }
    let mut all = holders;
    for at in grains {
        all &= member_entry(plan, held, index, group, at + 1);
        if all == 0 {
            break;
        }
    }
    all
}

/// The holders whose whole blocks, extended by interior entries of the next block, reach grain
/// `end`.
fn reaches(plan: &EvaluationPlan, held: &Holdings, index: usize, group: usize, end: usize) -> u64 {
    let spec = &plan.specs[index];
    let per_block = spec.block / spec.grain;
    let at = |end: usize| member_entry(plan, held, index, group, end);
    let block = (end - 1) / per_block;
    let beyond = (plan.probe_limit / spec.grain).min((block + 1) * per_block);
    let whole = (1..=block).fold(plan.mask, |all, block| all & at(block * per_block));
    whole & (end..=beyond).fold(0, |any, end| any | at(end))
}
