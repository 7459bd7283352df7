//! The score of the exact strategy: the reusable tokens of a rank, weighted by tier.

use super::answer::Row;
use super::search::{Reading, Search};
use super::tier::{Tier, TierSet};
use crate::rule::needed;

/// The tokens of the longest certain prefix over all tiers. Each token has the weight of the
/// nearest tier such that all groups that need the token hold it on that tier or a nearer one.
pub(super) fn score(search: &Search<'_, '_>, reading: Reading<'_>, bit: usize, row: &Row) -> f64 {
    let weights = search.request.weights;
    let topology = &reading.class.view.topology;
    let reusable = row.tiers.iter().map(|(_, b)| b.lower).max().unwrap_or(0);
    let on_gpu = row
        .tiers
        .iter()
        .find(|(set, _)| *set == TierSet::GPU)
        .map_or(0, |(_, b)| b.lower);
    if on_gpu == reusable {
        return f64::from(reusable) * weights[0];
    }
    let unit = search.unit(reading.ladder);
    let boundary = reusable + topology.replay_tokens;
    let mut worth = vec![weights[0]; (boundary / unit) as usize];
    let mut nearest = vec![Tier::Gpu; worth.len()];
    for (index, group) in topology.groups.iter().enumerate() {
        let needed = needed(group, boundary);
        // The unit that a draft head drops after the boundary is not reused.
        for block in needed.start..needed.end.min(boundary.div_ceil(group.block_size)) {
            let end = ((block + 1) * group.block_size / unit) as usize;
            let from = (block * group.block_size / unit) as usize;
            let tier = tier_of(search, reading, bit, index, end - 1);
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

fn tier_of(
    search: &Search<'_, '_>,
    reading: Reading<'_>,
    bit: usize,
    group: usize,
    i: usize,
) -> Tier {
    let group = reading.class.view.groups[group];
    let holds = |tier: &Tier| search.holds(reading, bit, group, *tier, i);
    Tier::ALL.into_iter().find(holds).unwrap_or(Tier::Storage)
}
