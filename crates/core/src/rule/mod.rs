//! The resume rule: the longest prefix that every group of a cache can resume, for 64 pods at once.
//!
//! Holders are bits: bit `p` of a word says that pod `p` holds the block which ends at that
//! boundary. The answer is the largest element of an intersection, so the order of groups never
//! changes it; only an engine's dialect can make a difference. The functions are pure: they
//! allocate nothing except in the caller's [`Scratch`], they have no state and no clock, and they
//! do not know where the bits come from (a block pool, a fleet's events, a pool minus the blocks
//! that failed to load).
//!
//! `needs` says what a boundary needs of a group. `plan` compiles this for one request, `sweep`
//! evaluates it on words, `dialect` follows the engines that depart from it, `lacking` says what can
//! be reused if more is held than is known, and `why` answers for one boundary at a time.

mod dialect;
mod lacking;
mod needs;
mod plan;
mod sweep;
mod why;

pub use lacking::resume_lacking;
pub use needs::{check_boundary, first_read, needed};
pub use why::{LimitingGroup, accepted, limiting};

use crate::error::{Error, Result};
use crate::spec::{EngineDialect, Topology};
use plan::EvaluationPlan;

pub(crate) use plan::{alignment, grain};
use sweep::Buffers;

/// The number of holders that are evaluated together: one per bit of a word.
pub const HOLDERS: usize = 64;

/// What each pod holds along one request, at a fixed unit of tokens. Bit `p` of a word is pod `p`.
///
/// ```text
/// unit 16      | 0..16 | 16..32 | 32..48 | 48..64 |
/// block 16     |  w[0] |  w[1]  |  w[2]  |  w[3]  |      a block that ends at (i + 1) * unit
/// block 32     |   0   |  w[1]  |   0    |  w[3]  |
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Holdings<'a> {
    /// Tokens between two boundaries. The unit divides every block size and the alignment of the
    /// topology or, with partial hits, its hash block.
    pub unit: u32,
    /// `[group][i]`: holders of a whole block of the group that ends at token `(i + 1) * unit`.
    /// Beyond the end of a slice, nothing is held.
    pub whole: &'a [&'a [u64]],
    /// `[group][i]`: holders of an entry registered at an interior boundary of the group's block.
    /// An empty or absent slice holds nothing.
    pub partial: &'a [&'a [u64]],
}

/// How to treat a group whose kind or chunk is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unknown {
    /// The group needs every block from the first on, which gives a lower bound.
    #[default]
    Strict,
    /// The group needs nothing, which gives an upper bound.
    Lax,
}

/// The request side of one evaluation.
#[derive(Debug, Clone, Copy)]
pub struct Query {
    /// The tokens of the request; an answer is smaller by at least one.
    pub num_tokens: u32,
    /// The holders to answer for; the others get 0.
    pub mask: u64,
    /// How groups of unknown kind or chunk are treated.
    pub unknown: Unknown,
}

/// Buffers that a caller keeps from one evaluation to the next.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    plan: EvaluationPlan,
    buffers: Buffers,
    /// What `dialect` needs of all specs at once.
    lines: dialect::Lines,
    lacking: lacking::Lacking,
}

/// Refuses a unit that does not divide every boundary of the topology.
///
/// # Errors
/// `InvalidValue` that names the unit and what it does not divide.
pub fn check_unit(topology: &Topology, unit: u32) -> Result<()> {
    let restricting = topology
        .groups
        .iter()
        .filter(|group| group.prefix_cacheable);
    let blocks = restricting.map(|group| ("block_size", group.block_size));
    let hash = topology
        .partial_hits
        .then_some(("hash_block_size", topology.hash_block_size));
    let aligned = (!topology.partial_hits).then_some(("alignment", topology.alignment));
    for (name, tokens) in blocks.chain(hash).chain(aligned) {
        if unit == 0 || !tokens.is_multiple_of(unit) {
            return Err(Error::InvalidValue(format!(
                "unit {unit} does not divide {name} {tokens}; take the greatest common divisor"
            )));
        }
    }
    if unit == 0 {
        return Err(Error::InvalidValue(
            "unit 0; it is at least 1 token".to_owned(),
        ));
    }
    Ok(())
}

/// How many tokens each holder can reuse: aligned, at most `num_tokens - 1`, with replay
/// subtracted.
///
/// The unit must pass [`check_unit`]. The answer is 0 if nothing can be reused. If no group of a
/// topology restricts a prefix, the whole prompt is accepted: the caller has to know whether such
/// an engine caches at all.
pub fn resume(
    topology: &Topology,
    held: &Holdings,
    query: Query,
    scratch: &mut Scratch,
) -> [u32; HOLDERS] {
    let Scratch {
        plan,
        buffers,
        lines,
        ..
    } = scratch;
    plan.draw(topology, held.unit, query);
    let mut answers = if plan.needs_emulation(topology) {
        dialect::emulate(topology, plan, held, lines, buffers)
    } else {
        sweep::resume(plan, held, buffers)
    };
    if topology.replay_tokens > 0 {
        for answer in &mut answers {
            *answer = answer.saturating_sub(topology.replay_tokens);
        }
    }
    answers
}

/// The course of an engine's own search, for one holder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineSearch {
    /// The tokens that it reports as reusable, before replay is subtracted.
    pub num_tokens: u32,
    /// The longest length that it found for some of the groups on the way.
    pub longest: u32,
    /// For each group, how far its last look read, in tokens, and whether it dropped a unit of what
    /// it found. `None` if the group restricts nothing.
    pub last: Vec<Option<(u32, bool)>>,
}

/// Follows the engine's search for holder 0 step by step, whether or not a flag can matter.
///
/// The unit must pass [`check_unit`].
pub fn search(
    topology: &Topology,
    held: &Holdings,
    query: Query,
    scratch: &mut Scratch,
) -> EngineSearch {
    let Scratch {
        plan,
        buffers,
        lines,
        ..
    } = scratch;
    plan.draw(topology, held.unit, query);
    let (num_tokens, steps) = dialect::search(topology, plan, held, lines, buffers);
    let last = plan
        .spec_of
        .iter()
        .map(|spec| spec.map(|spec| steps.last[spec]));
    EngineSearch {
        num_tokens,
        longest: steps.longest,
        last: last.collect(),
    }
}

/// Whether an engine's own search can change what it finds, or how it finds it.
#[must_use]
pub fn is_search_visible(topology: &Topology) -> bool {
    let mut plan = EvaluationPlan::default();
    let query = Query {
        num_tokens: 1,
        mask: 1,
        unknown: Unknown::Strict,
    };
    plan.draw(topology, topology.hash_block_size, query);
    let dialect = topology.dialect;
    let is_window_of_one = |group: &crate::spec::GroupSpec| group.window == Some(1);
    plan.needs_emulation(topology)
        || (dialect.has(EngineDialect::PARTIAL_HITS_ARE_PROBED) && topology.partial_hits)
        || (dialect.has(EngineDialect::WINDOW_OF_ONE_NEEDS_A_BLOCK)
            && topology.groups.iter().any(is_window_of_one))
}

/// The longest prefix, in tokens, that each holder may be able to reuse: the prefix that all its
/// full-attention groups hold or, in a topology without such a group, that the blocks of any group
/// cover.
pub fn present(
    topology: &Topology,
    held: &Holdings,
    query: Query,
    scratch: &mut Scratch,
) -> [u32; HOLDERS] {
    let Scratch { plan, buffers, .. } = scratch;
    plan.draw(topology, held.unit, query);
    if plan.specs.iter().any(|spec| spec.group.kind.is_full()) {
        plan.look_at_all();
        sweep::full_reach(plan, held, buffers)
    } else {
        sweep::coverage(plan, held)
    }
}

#[cfg(test)]
mod tests;
