//! The score of the exact strategy: the tokens that a rank likely reuses, weighted by tier.

use std::ops::Range;

use super::by_column::Likely;
use super::search::{ClassQuery, RequestSearch};
use crate::fleet::tier::Tier;
use crate::rule::{self, needed};
use crate::spec::SpecKind;

/// The tokens of the longest likely prefix over all tiers, whichever were requested. Each token has
/// the weight of the nearest tier such that all groups that need the token hold it on that tier or a
/// nearer one. A token without a known copy counts as one on the furthest tier.
pub(in crate::fleet) fn score(
    search: &RequestSearch<'_, '_>,
    class_query: ClassQuery<'_>,
    column: usize,
    likely: Likely,
) -> f64 {
    let weights = search.request.weights;
    let topology = &class_query.class.view.topology;
    let reusable = likely.tokens;
    if likely.on_gpu == reusable {
        return f64::from(reusable) * weights[0];
    }
    let unit = search.unit(class_query.keys);
    let boundary = reusable + topology.replay_tokens;
    let mut worth = vec![weights[0]; (boundary / unit) as usize];
    let mut nearest = vec![Tier::Gpu; worth.len()];
    for (index, group) in topology.groups.iter().enumerate() {
        if rule::grain(group, topology).is_none() {
            continue; // A window that the engine replays needs no copy.
        }
        let needed = needed(group, boundary);
        // The unit that a draft head drops after the boundary is not reused.
        for block in needed.start..needed.end.min(boundary.div_ceil(group.block_size)) {
            let end = ((block + 1) * group.block_size / unit) as usize;
            let from = (block * group.block_size / unit) as usize;
            // Where the boundary is inside a block, an entry from there on holds what is needed; of
            // a state, the one at the boundary.
            let first = end.min(worth.len());
            let last = if group.kind == SpecKind::Mamba {
                first
            } else {
                end
            };
            let tier = tier_of(search, class_query, column, index, first - 1..last);
            for i in from..end.min(nearest.len()) {
                nearest[i] = nearest[i].max(tier);
            }
        }
    }
    for (value, tier) in worth.iter_mut().zip(&nearest) {
        *value = weights[*tier as usize];
    }
    let value: f64 = worth.iter().sum::<f64>() * f64::from(unit);
    if boundary == reusable {
        value
    } else {
        value * f64::from(reusable) / f64::from(boundary)
    }
}

/// The nearest tier with a copy that ends at one of these boundaries of the keys. A copy in doubt is asked only where there is no other.
fn tier_of(
    search: &RequestSearch<'_, '_>,
    class_query: ClassQuery<'_>,
    column: usize,
    group: usize,
    steps: Range<usize>,
) -> Tier {
    let group = class_query.class.view.groups[group];
    let nearest = |doubted| {
        let holds = |tier, i| search.holds(class_query, column, i, (group, tier, doubted));
        let is_there = |tier: &Tier| steps.clone().any(|i| holds(*tier, i));
        Tier::ALL.into_iter().find(is_there)
    };
    (nearest(false).or_else(|| nearest(true))).unwrap_or(Tier::Storage)
}
