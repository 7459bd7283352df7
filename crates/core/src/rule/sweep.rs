//! The rule on words: a forward pass for full specs, then tiles from their reach downwards.
//!
//! ```text
//! boundary          1  2  3  4  5  6      (of 64 holders at once, one word each)
//! full              F1 F2 F3 F4 .  .      running AND; its death bounds all later work
//! window of 2       w1 w12 w23 w34        sliding AND, prefixes shorter than the window included
//! accepted          & of all specs
//! answer of a bit   the last word that has it
//! ```
//! The sweep never looks further than the full groups reach, and the order of the groups never
//! matters.

use std::ops::Range;

use super::plan::{EvaluationPlan, GroupDemand, Spec};
use super::{HOLDERS, Holdings};

/// The number of steps that are looked at first. Most holders resume near the end of what their
/// full groups hold, so the search goes down from there, in tiles that grow.
const FIRST_TILE: usize = 32;

/// Buffers that a sweep uses again.
#[derive(Debug, Clone, Default)]
pub(super) struct Buffers {
    /// For each step, the holders for which all specs so far accept it.
    accept: Vec<u64>,
    /// For each grain, the holders for which one spec accepts it.
    pub(super) words: Vec<u64>,
    suffix: Vec<u64>,
}

/// How many tokens each holder can reuse.
pub(super) fn resume(
    plan: &EvaluationPlan,
    held: &Holdings,
    buffers: &mut Buffers,
) -> [u32; HOLDERS] {
    let mut limits = [plan.limit; HOLDERS];
    for (index, spec) in plan.prefixes() {
        lower(&mut limits, &reach(plan, held, index, spec, buffers));
    }
    for (bit, limit) in limits.iter_mut().enumerate() {
        *limit = if plan.mask >> bit & 1 == 1 {
            *limit / plan.step
        } else {
            0
        };
    }
    if plan.others().next().is_none() {
        return limits.map(|steps| plan.tokens(steps * plan.step));
    }
    let mut top = allow(&mut buffers.accept, &limits);
    let mut answers = [0; HOLDERS];
    let mut pending = buffers.accept.first().copied().unwrap_or(0);
    let mut tile = FIRST_TILE;
    while top > 0 && pending != 0 {
        let steps = top.saturating_sub(tile)..top;
        for (index, _) in plan.others() {
            accept(plan, held, index, steps.clone(), buffers);
        }
        for step in steps.clone().rev() {
            let found = buffers.accept[step] & pending;
            note(&mut answers, found, (step + 1) * plan.step);
            pending &= !found;
        }
        top = steps.start;
        tile *= 4;
    }
    answers.map(|units| plan.tokens(units))
}

/// Fills `accept` with the holders whose limit is at least each step. Returns the highest limit.
fn allow(accept: &mut Vec<u64>, limits: &[usize; HOLDERS]) -> usize {
    let top = limits.iter().copied().max().unwrap_or(0);
    accept.clear();
    accept.resize(top, 0);
    for (bit, limit) in limits.iter().enumerate().filter(|(_, limit)| **limit > 0) {
        accept[limit - 1] |= 1 << bit;
    }
    let mut allowed = 0;
    for word in accept.iter_mut().rev() {
        allowed |= *word;
        *word = allowed;
    }
    top
}

fn lower(limits: &mut [usize; HOLDERS], by: &[usize; HOLDERS]) {
    for (limit, by) in limits.iter_mut().zip(by) {
        *limit = (*limit).min(*by);
    }
}

/// How far a full spec reaches for each holder, in units, after subtracting what must follow the
/// boundary.
pub(super) fn reach(
    plan: &EvaluationPlan,
    held: &Holdings,
    index: usize,
    spec: &Spec,
    buffers: &mut Buffers,
) -> [usize; HOLDERS] {
    let count = (plan.limit / spec.grain + spec.extra()).min(plan.units / spec.grain);
    let words = &mut buffers.words;
    let mut members = plan.members(index);
    let grains = if spec.is_fine() {
        words.clear();
        words.resize(count.min(plan.probe_limit / spec.grain), plan.mask);
        fine_reach(plan, held, index, words);
        last_set(words, plan.mask)
    } else if let (Some(only), None) = (members.next(), members.next()) {
        let blocks = slice(held.whole, only).chunks_exact(spec.block);
        run(
            blocks.map(|block| block[spec.block - 1]).take(count),
            plan.mask,
        )
    } else {
        words.clear();
        words.resize(count, plan.mask);
        gather(plan, held, index, 0, words);
        run(words.iter().copied(), plan.mask)
    };
    grains.map(|grains| grains.saturating_sub(spec.extra()) * spec.grain)
}

/// For each holder, the number of leading words that have its bit.
fn run(words: impl Iterator<Item = u64>, mask: u64) -> [usize; HOLDERS] {
    let mut counts = [0; HOLDERS];
    let mut alive = mask;
    let mut count = 0;
    for word in words {
        let lost = alive & !word;
        if lost != 0 {
            note(&mut counts, lost, count);
            alive &= word;
            if alive == 0 {
                break;
            }
        }
        count += 1;
    }
    note(&mut counts, alive, count);
    counts
}

/// Sets the value of each of these holders.
fn note(values: &mut [usize; HOLDERS], mut holders: u64, value: usize) {
    while holders != 0 {
        values[holders.trailing_zeros() as usize] = value;
        holders &= holders - 1;
    }
}

/// For each bit of `mask`, one more than the index of the last word that has it; 0 if no word has
/// it.
fn last_set(words: &[u64], mask: u64) -> [usize; HOLDERS] {
    let mut answers = [0; HOLDERS];
    let mut pending = mask;
    for (index, word) in words.iter().enumerate().rev() {
        let found = word & pending;
        if found != 0 {
            note(&mut answers, found, index + 1);
            pending &= !found;
            if pending == 0 {
                break;
            }
        }
    }
    answers
}

/// Removes, for each of these steps, the holders for which a spec does not accept it from
/// `buffers.accept`.
///
/// ```text
/// steps                 |  s  |  s  |  s  |
/// grains   b  b  b  b  g  g  g  g  g  g  x      b: back, what the first boundary looks at
/// words   [0  ...                         ]     x: the extra unit beyond the last one
/// ```
fn accept(
    plan: &EvaluationPlan,
    held: &Holdings,
    index: usize,
    steps: Range<usize>,
    buffers: &mut Buffers,
) {
    let spec = &plan.specs[index];
    let per_step = plan.step / spec.grain;
    let first = (steps.start + 1) * per_step - 1; // The grain that ends at the first boundary.
    let base = match spec.demand {
        GroupDemand::Window { blocks } => first.saturating_sub(blocks),
        GroupDemand::Chunk { tokens } => first.min(chunk_start(first, tokens, spec)),
        GroupDemand::Prefix | GroupDemand::Checkpoint => first,
    };
    let last = (steps.end * per_step + spec.extra()).min(plan.units / spec.grain);
    let words = &mut buffers.words;
    words.clear();
    words.resize(last - base, plan.mask);
    gather(plan, held, index, base, words);
    match spec.demand {
        GroupDemand::Window { blocks } => {
            let needed = blocks + spec.extra();
            if needed == 0 {
                words.fill(plan.mask);
            } else {
                slide(words, needed, &mut buffers.suffix);
            }
        }
        GroupDemand::Chunk { tokens } => restart(words, tokens, spec, base, plan.mask),
        GroupDemand::Prefix | GroupDemand::Checkpoint => {} // A prefix has a `reach` instead.
    }
    // The verdict on a boundary is at the end of its extra unit; after the end of the request,
    // nothing is held.
    let said = words[first - base..]
        .iter()
        .skip(spec.extra())
        .step_by(per_step);
    let missing = std::iter::repeat(&0);
    for (step, word) in buffers.accept[steps].iter_mut().zip(said.chain(missing)) {
        *step &= word;
    }
}

/// ANDs into `words` what all groups of a spec hold at each grain from `base` on.
pub(super) fn gather(
    plan: &EvaluationPlan,
    held: &Holdings,
    index: usize,
    base: usize,
    words: &mut [u64],
) {
    let spec = &plan.specs[index];
    for group in plan.members(index) {
        if spec.is_fine() {
            for (word, end) in words.iter_mut().zip(base + 1..) {
                *word &= member_entry(plan, held, index, group, end);
            }
            continue;
        }
        let whole = slice(held.whole, group)
            .get(base * spec.block..)
            .unwrap_or(&[]);
        let known = (whole.len() / spec.block).min(words.len());
        if spec.block == 1 {
            for (word, here) in words.iter_mut().zip(whole) {
                *word &= here;
            }
        } else {
            for (word, block) in words.iter_mut().zip(whole.chunks_exact(spec.block)) {
                *word &= block[spec.block - 1];
            }
        }
        words[known..].fill(0);
    }
}

/// Holders of the entry that ends at grain `end`: a whole block there, or an interior boundary.
fn entry(whole: &[u64], partial: &[u64], spec: &Spec, end: usize) -> u64 {
    let unit = end * spec.grain;
    let from = if unit.is_multiple_of(spec.block) {
        whole
    } else {
        partial
    };
    from.get(unit - 1).copied().unwrap_or(0)
}

/// The words of one group. A group without words holds nothing.
pub(super) fn slice<'a>(groups: &[&'a [u64]], group: usize) -> &'a [u64] {
    groups.get(group).copied().unwrap_or(&[])
}

/// ANDs the last `needed` words into each word; near the start, all words before it.
///
/// There are two running ANDs per chunk of `needed` words, one forward from the chunk's start and
/// one backward from its end. Every window is a suffix of one chunk and a prefix of the next.
fn slide(words: &mut [u64], needed: usize, suffix: &mut Vec<u64>) {
    if needed == 1 {
        return; // Every word is its own window.
    }
    suffix.clear();
    suffix.extend_from_slice(words);
    for chunk in suffix.chunks_mut(needed) {
        let mut back = u64::MAX;
        for word in chunk.iter_mut().rev() {
            back &= *word;
            *word = back;
        }
    }
    for chunk in words.chunks_mut(needed) {
        let mut forward = u64::MAX;
        for word in chunk {
            forward &= *word;
            *word = forward;
        }
    }
    for (word, before) in words
        .iter_mut()
        .skip(needed)
        .zip(&suffix[1.min(suffix.len())..])
    {
        *word &= before;
    }
}

/// A running AND that restarts where a chunk starts. A chunk that starts inside a block needs that
/// block.
///
/// The first word must be the first that its own chunk needs.
fn restart(words: &mut [u64], chunk: u32, spec: &Spec, base: usize, mask: u64) {
    let mut first = base; // The first block that the current chunk needs.
    let mut accepted = mask; // At the end of the previous block.
    for (word, block) in words.iter_mut().zip(base..) {
        let here = *word;
        if spec.extra() == 1 {
            *word = accepted & here;
        }
        let needed_from = chunk_start(block, chunk, spec);
        if needed_from > block {
            accepted = mask;
        } else if needed_from == first {
            accepted &= here;
        } else {
            accepted = here;
        }
        first = needed_from;
        if spec.extra() == 0 {
            *word = accepted;
        }
    }
}

/// The first block that a boundary at the end of `block` needs. At the end of a chunk, this is the
/// block after it.
fn chunk_start(block: usize, chunk: u32, spec: &Spec) -> usize {
    let (size, chunk) = (spec.group.block_size as usize, chunk as usize);
    (block + 1) * size / chunk * chunk / size
}

/// ANDs the reach of a full spec into `words`, at the grain of a hash block.
///
/// ```text
/// block         |-------- 0 --------|-------- 1 --------|
/// held           whole               .   .  partial  .
/// accepted       x    x    x    x    x   x   x          .
/// ```
/// The reach is the end of the leading whole blocks, extended into the next block up to its
/// furthest registered boundary. Every boundary before the reach is accepted too, so a boundary is
/// accepted if anything at or after it is held.
pub(super) fn fine_reach(plan: &EvaluationPlan, held: &Holdings, index: usize, words: &mut [u64]) {
    if plan.probes_jointly {
        // An entry counts only if all groups hold it.
        reach_of(plan, index, words, |end| {
            let mut all = u64::MAX;
            for group in plan.members(index) {
                all &= member_entry(plan, held, index, group, end);
            }
            all
        });
    } else {
        for group in plan.members(index) {
            reach_of(plan, index, words, |end| {
                member_entry(plan, held, index, group, end)
            });
        }
    }
}

/// Holders of one group's entry that ends at grain `end` of its spec.
pub(super) fn member_entry(
    plan: &EvaluationPlan,
    held: &Holdings,
    index: usize,
    group: usize,
    end: usize,
) -> u64 {
    entry(
        slice(held.whole, group),
        slice(held.partial, group),
        &plan.specs[index],
        end,
    )
}

fn reach_of(
    plan: &EvaluationPlan,
    index: usize,
    words: &mut [u64],
    entry_at: impl Fn(usize) -> u64,
) {
    let spec = &plan.specs[index];
    // Entries after the end of the words still extend the reach up to that end.
    let beyond = plan.probe_limit / spec.grain;
    let per_block = spec.block / spec.grain;
    let mut alive = u64::MAX; // All earlier blocks are whole.
    for (block, chunk) in words.chunks_mut(per_block).enumerate() {
        let start = block * per_block;
        let mut further = 0;
        for end in (start + chunk.len() + 1..=(start + per_block).min(beyond)).rev() {
            further |= entry_at(end);
        }
        for (offset, word) in chunk.iter_mut().enumerate().rev() {
            further |= entry_at(start + offset + 1);
            *word &= alive & further;
        }
        if chunk.len() == per_block {
            alive &= entry_at(start + per_block);
        }
    }
}

/// How far all full groups hold the request, for each holder, in tokens. `look_at_all` must come
/// first.
pub(super) fn full_reach(
    plan: &EvaluationPlan,
    held: &Holdings,
    buffers: &mut Buffers,
) -> [u32; HOLDERS] {
    let mut limits = [plan.units; HOLDERS];
    for (index, spec) in plan.specs.iter().enumerate() {
        if spec.group.kind.is_full() {
            lower(
                &mut limits,
                &reach(plan, held, index, &spec.without_extra(), buffers),
            );
        }
    }
    limits.map(|units| plan.tokens(units))
}

/// How far the blocks of all groups together cover the request without a gap, for each holder, in
/// tokens.
pub(super) fn coverage(plan: &EvaluationPlan, held: &Holdings) -> [u32; HOLDERS] {
    let covered = |unit: usize| {
        let specs = plan.spec_of.iter().enumerate();
        specs.fold(0, |any, (group, spec)| {
            let Some(spec) = spec.map(|index| &plan.specs[index]) else {
                return any;
            };
            let end = (unit / spec.block + 1) * spec.block;
            any | slice(held.whole, group).get(end - 1).copied().unwrap_or(0)
        })
    };
    run((0..plan.units).map(covered), plan.mask).map(|units| plan.tokens(units))
}
