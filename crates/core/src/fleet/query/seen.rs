//! How much of a request was ever shown (`fleet::seen`).
//!
//! Whoever has stored or will store a block has everything before it, so the last boundary of which
//! anything is known decides, whatever is known of those before it.

use super::search::RequestSearch;
use crate::fleet::keys::step::KeyStep;
use crate::fleet::seen::Seen;
use crate::prefix::{PrefixKey, plus};

/// What was ever shown of a request, as far as it is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenBefore {
    /// The tokens of the longest prefix that events or promises showed.
    pub tokens: u32,
    /// How many boundaries are in the table, of all models; a rank may name some of them again.
    pub num_remembered: u64,
    /// How many were forgotten. While this is 0, a prefix that is not known was never shown.
    pub num_forgotten: u64,
}

/// The last boundary of the request that some rank names or that is remembered, after `probe`.
pub(in crate::fleet) fn seen_before(search: &mut RequestSearch<'_, '_>, seen: &Seen) -> SeenBefore {
    let classes = search.model.classes();
    let present = classes.iter().map(|class| class.view.step());
    let steps = search.model.steps.with(present).into_iter();
    let longest = steps.map(|step| longest(search, step, seen)).max();
    SeenBefore {
        tokens: longest.unwrap_or(0),
        num_remembered: seen.len() as u64,
        num_forgotten: seen.num_forgotten() + search.model.steps.num_dropped(),
    }
}

/// The tokens before the last boundary of this step that is known.
fn longest(search: &mut RequestSearch<'_, '_>, step: KeyStep, seen: &Seen) -> u32 {
    let page = search.page(step.page);
    let at = search.keys(KeyStep { page, ..step });
    let keys: Vec<PrefixKey> = search.node_keys(at).into_iter().flatten().collect();
    let (nodes, term) = (&search.model.nodes, search.model.term);
    let is_known = |&key: &PrefixKey| nodes.find(key, None).is_some() || seen.has(plus(key, term));
    let boundaries = keys.iter().rposition(is_known).map_or(0, |last| last + 1);
    u32::try_from(boundaries)
        .unwrap_or(u32::MAX)
        .saturating_mul(step.unit)
}
