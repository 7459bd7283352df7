//! Engines that depart from the rule in ways that depend on how they search.
//!
//! vLLM 0.32 and 0.33 lower a candidate length spec by spec until no spec lowers it further. This
//! file follows that search for one holder at a time, with each departure under its flag. It is
//! used only if a flag can change the answer. Lengths are in tokens, because a candidate need not
//! be a boundary.

use std::ops::Range;

use smallvec::SmallVec;

use super::plan::{EvaluationPlan, GroupDemand, Spec, alignment, lcm};
use super::sweep::{Buffers, gather};
use super::{HOLDERS, Holdings, sweep};
use crate::spec::{EngineDialect, Topology};

/// What the search reads, for all specs one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    words: Vec<u64>,
    /// For one holder: at each grain, how many held grains in a row end there.
    runs: Vec<usize>,
    /// The range of each spec in `words` and `runs`.
    ranges: Vec<Range<usize>>,
    /// How far each full spec reaches after its drop, in units. For the other specs, this is the
    /// whole request.
    reaches: Vec<[usize; HOLDERS]>,
    /// For one holder: how far its full specs reach, in units.
    bound: usize,
}

/// The answers of an engine that searches, for each holder, before replay is subtracted.
pub(super) fn emulate(
    topology: &Topology,
    plan: &EvaluationPlan,
    held: &Holdings,
    lines: &mut Lines,
    buffers: &mut Buffers,
) -> [u32; HOLDERS] {
    let mut answers = [0; HOLDERS];
    lines.fill(plan, held, buffers);
    for bit in (0..HOLDERS).filter(|bit| plan.mask >> bit & 1 == 1) {
        lines.count_runs(plan, bit);
        answers[bit] = Emulation {
            topology,
            plan,
            lines,
            bit,
        }
        .settle(&mut SearchCourse::default());
    }
    answers
}

/// The course of an engine's search for one holder.
#[derive(Debug, Clone, Default)]
pub(super) struct SearchCourse {
    /// The longest length that any look-up found.
    pub(super) longest: u32,
    /// For each spec, how far its last look-up read, and whether that look-up dropped a unit.
    pub(super) last: SmallVec<[(u32, bool); 8]>,
}

/// The engine's search for holder 0: its answer and its course.
pub(super) fn search(
    topology: &Topology,
    plan: &EvaluationPlan,
    held: &Holdings,
    lines: &mut Lines,
    buffers: &mut Buffers,
) -> (u32, SearchCourse) {
    lines.fill(plan, held, buffers);
    lines.count_runs(plan, 0);
    let mut steps = SearchCourse::default();
    let emulation = Emulation {
        topology,
        plan,
        lines,
        bit: 0,
    };
    let answer = emulation.settle(&mut steps);
    (answer, steps)
}

impl Lines {
    fn fill(&mut self, plan: &EvaluationPlan, held: &Holdings, buffers: &mut Buffers) {
        self.words.clear();
        self.ranges.clear();
        self.reaches.clear();
        for (index, spec) in plan.specs.iter().enumerate() {
            let start = self.words.len();
            if spec.demand == GroupDemand::Prefix && !probes(plan, spec) {
                self.reaches
                    .push(sweep::reach(plan, held, index, spec, buffers));
            } else {
                self.words
                    .resize(start + plan.units / spec.grain, plan.mask);
                gather(plan, held, index, 0, &mut self.words[start..]);
                self.reaches.push([plan.units; HOLDERS]);
            }
            self.ranges.push(start..self.words.len());
        }
        self.runs.resize(self.words.len(), 0);
    }

    fn count_runs(&mut self, plan: &EvaluationPlan, bit: usize) {
        let reaches = self.reaches.iter().map(|reach| reach[bit]);
        self.bound = reaches.min().unwrap_or(0);
        for (index, spec) in plan.specs.iter().enumerate() {
            let mut run = 0;
            for at in self.seen(index, spec) {
                run = if self.words[at] >> bit & 1 == 1 {
                    run + 1
                } else {
                    0
                };
                self.runs[at] = run;
            }
        }
    }

    /// The part that can matter to one holder: once the holder's full specs are looked up, no
    /// look-up reads more than one grain after their reach.
    fn seen(&self, index: usize, spec: &Spec) -> Range<usize> {
        let Range { start, end } = self.ranges[index];
        match spec.demand {
            GroupDemand::Prefix => start..end,
            GroupDemand::Window { .. } | GroupDemand::Chunk { .. } | GroupDemand::Checkpoint => {
                start..end.min(start + self.bound / spec.grain + 1)
            }
        }
    }
}

/// Whether the engine probes this spec's interior boundaries one by one.
fn probes(plan: &EvaluationPlan, spec: &Spec) -> bool {
    plan.probes_jointly && spec.demand == GroupDemand::Prefix && spec.is_fine()
}

/// The engine's search for one holder, followed step by step.
struct Emulation<'a> {
    topology: &'a Topology,
    plan: &'a EvaluationPlan,
    lines: &'a Lines,
    bit: usize,
}

impl Emulation<'_> {
    /// Lowers the candidate until no spec lowers it further.
    fn settle(&self, steps: &mut SearchCourse) -> u32 {
        let specs = &self.plan.specs;
        let mut hit = self.plan.num_tokens.saturating_sub(1);
        steps.last.resize(specs.len(), (hit, false));
        if specs.is_empty() {
            return hit;
        }
        if self.topology.groups.len() == 1 {
            return self.look_up_alone(hit, steps);
        }
        let order: SmallVec<[(usize, &Spec); 8]> =
            self.plan.prefixes().chain(self.plan.others()).collect();
        // vLLM looks up one full and one other spec only once each. The full spec accepts every
        // length up to its reach, so by the rule a second round would change nothing. Under some
        // flags it could (a chunk start, or the block for a window of one token, moves with the
        // candidate), but the engine does no second round, so neither does this code.
        let is_simple = specs.len() == 2 && order[0].1.demand == GroupDemand::Prefix;
        let mut verified: SmallVec<[bool; 8]> = SmallVec::from_elem(false, specs.len());
        let mut full: SmallVec<[Option<u32>; 8]> = SmallVec::from_elem(None, specs.len());
        loop {
            let mut candidate = hit;
            for &(index, spec) in &order {
                if let Some(known) = full[index] {
                    candidate = candidate.min(known);
                    continue;
                }
                let drops = spec.group.eagle && !verified[index];
                let max = self.with_margin(spec, candidate, drops);
                let found = self.look_up(index, max, drops);
                steps.last[index] = (max, drops);
                steps.longest = steps.longest.max(found);
                let unverified = self
                    .topology
                    .dialect
                    .has(EngineDialect::EAGLE_THREE_SPECS_UNVERIFIED)
                    && drops;
                if found < candidate && !unverified {
                    verified.fill(false);
                }
                verified[index] |= drops;
                candidate = found;
                if spec.demand == GroupDemand::Prefix {
                    full[index] = Some(found);
                }
            }
            if candidate >= hit {
                return hit;
            }
            hit = candidate;
            if is_simple {
                return hit;
            }
        }
    }

    fn look_up_alone(&self, candidate: u32, steps: &mut SearchCourse) -> u32 {
        let spec = &self.plan.specs[0];
        let drops = spec.group.eagle;
        let max = if self
            .topology
            .dialect
            .has(EngineDialect::EAGLE_SINGLE_GROUP_WITHIN_PROMPT)
        {
            candidate
        } else {
            self.with_margin(spec, candidate, drops)
        };
        let found = self.look_up(0, max, drops);
        *steps = SearchCourse {
            longest: found,
            last: SmallVec::from_elem((max, drops), 1),
        };
        found
    }

    /// How far a look-up may read: one unit after the candidate if it drops a unit.
    fn with_margin(&self, spec: &Spec, candidate: u32, drops: bool) -> u32 {
        let hash = self.topology.hash_block_size;
        let hashed = self.plan.num_tokens / hash * hash;
        if drops && spec.extra() == 1 {
            candidate
                .saturating_add(self.plan.tokens(spec.grain))
                .min(hashed)
        } else {
            candidate
        }
    }

    /// The longest length up to `max` that a spec accepts, after its drop.
    fn look_up(&self, index: usize, max: u32, drops: bool) -> u32 {
        let spec = &self.plan.specs[index];
        let alignment = (alignment(self.topology) / self.plan.unit).max(1) as usize;
        let line = Line {
            spec,
            runs: &self.lines.runs[self.lines.seen(index, spec)],
            reach: self.lines.reaches[index][self.bit] / spec.grain,
            grain: self.plan.tokens(spec.grain),
            step: lcm(alignment, spec.grain) / spec.grain,
            drops: drops && spec.extra() == 1,
            dialect: self.topology.dialect,
        };
        match spec.demand {
            GroupDemand::Prefix if probes(self.plan, spec) => line.probe(max),
            GroupDemand::Prefix => line.prefix(max),
            GroupDemand::Window { .. } => line.window(max),
            GroupDemand::Chunk { tokens } => line.chunk(max, tokens),
            GroupDemand::Checkpoint => line.checkpoint(max),
        }
    }
}

/// One spec as one holder holds it. Counts are in grains, lengths in tokens.
struct Line<'a> {
    spec: &'a Spec,
    runs: &'a [usize],
    /// For a full spec: how far it reaches after its drop.
    reach: usize,
    /// Tokens per grain.
    grain: u32,
    /// Grains between two aligned boundaries.
    step: usize,
    drops: bool,
    dialect: EngineDialect,
}

impl Line<'_> {
    /// Whether the grain that ends at boundary `end` is held.
    fn holds(&self, end: usize) -> bool {
        self.run(end) > 0
    }

    /// The number of held grains in a row that end at boundary `end`.
    fn run(&self, end: usize) -> usize {
        end.checked_sub(1)
            .and_then(|at| self.runs.get(at))
            .copied()
            .unwrap_or(0)
    }

    /// The number of boundaries up to `max` tokens.
    fn boundaries(&self, max: u32) -> usize {
        ((max / self.grain) as usize).min(self.runs.len())
    }

    fn aligned_tokens(&self, boundary: usize) -> u32 {
        let aligned = boundary - boundary % self.step;
        u32::try_from(aligned).map_or(u32::MAX, |grains| grains.saturating_mul(self.grain))
    }

    fn prefix(&self, max: u32) -> u32 {
        let most = (max / self.grain) as usize;
        self.aligned_tokens(most.saturating_sub(usize::from(self.drops)).min(self.reach))
    }

    /// The end of the leading whole blocks, or the furthest interior boundary held in the next
    /// block.
    fn probe(&self, max: u32) -> u32 {
        let most = self.boundaries(max);
        let block = self.spec.block / self.spec.grain;
        let whole = (1..=most / block)
            .take_while(|&end| self.holds(end * block))
            .count()
            * block;
        let interior = whole + 1..=(whole + block - 1).min(most);
        let reach = interior.rev().find(|&end| self.holds(end)).unwrap_or(whole);
        self.aligned_tokens(reach.saturating_sub(usize::from(self.drops)))
    }

    /// The first run from the right that is long enough and whose right edge is aligned.
    fn window(&self, max: u32) -> u32 {
        let extra = usize::from(self.drops);
        let tokens = self.spec.group.window.unwrap_or(1).saturating_sub(1);
        let needed = tokens.div_ceil(self.grain) as usize + extra;
        let mut end = self.boundaries(max);
        if needed == 0 && !self.dialect.has(EngineDialect::WINDOW_OF_ONE_NEEDS_A_BLOCK) {
            return self.aligned_tokens(end);
        }
        while end > 0 {
            let run = self.run(end);
            if run == 0 || !(end - extra).is_multiple_of(self.step) {
                end -= 1;
            } else if run >= needed {
                return self.aligned_tokens(end - extra);
            } else if run == end {
                return self.shorter_than_window(end);
            } else {
                end -= run;
            }
        }
        0
    }

    /// The answer if all blocks from the first on are held, but fewer than the window needs.
    fn shorter_than_window(&self, end: usize) -> u32 {
        let extra = usize::from(self.drops);
        if self
            .dialect
            .has(EngineDialect::EAGLE_UNEQUAL_BLOCKS_REALIGN)
        {
            let aligned = end - end % self.step;
            self.aligned_tokens(aligned.saturating_sub(extra))
        } else {
            self.aligned_tokens(end - extra)
        }
    }

    fn chunk(&self, max: u32, chunk: u32) -> u32 {
        let most = self.boundaries(max);
        let block_of = |tokens: u32| (tokens / chunk * chunk / self.grain) as usize;
        if self
            .dialect
            .has(EngineDialect::CHUNK_START_OF_THE_CANDIDATE)
            && !self.drops
            && self.step == 1
        {
            let first = block_of(max);
            let held = (first + 1..=most)
                .take_while(|&end| self.holds(end))
                .count();
            return self.aligned_tokens(first + held);
        }
        let accepts = |end: usize| {
            let needed = end.saturating_sub(block_of(self.aligned_tokens(end)));
            end.is_multiple_of(self.step)
                && (!self.drops || self.holds(end + 1))
                && (needed == 0 || self.run(end) >= needed)
        };
        (1..=most)
            .rev()
            .find(|&end| accepts(end))
            .map_or(0, |end| self.aligned_tokens(end))
    }

    fn checkpoint(&self, max: u32) -> u32 {
        let held = |end: &usize| end.is_multiple_of(self.step) && self.holds(*end);
        (1..=self.boundaries(max))
            .rev()
            .find(held)
            .map_or(0, |end| self.aligned_tokens(end))
    }
}
