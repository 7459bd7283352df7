//! Which blocks of a rank are forgotten first to free memory: those that no request has matched for
//! the longest time.
//!
//! No order is kept for this. A sample of the rank's table tells when the oldest eighth was last
//! matched. A hand that goes round the table then forgets every block that is at least as old, so a
//! portion costs the same however much the rank holds.

use super::Rank;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::Nodes;

/// The number of slots that the sample looks at.
const SAMPLED: usize = 512;
/// One in this many of the rank's blocks counts as old.
const OLD: usize = 8;
/// The number of slots that the hand may pass for each name that is to be forgotten.
const LOOKS: usize = 64;

/// Forgets at most this many names: first those without a copy, then the least recently
/// matched.
pub(in crate::fleet) fn forget_oldest(
    rank: &mut Rank,
    most: usize,
    shared: &mut SharedPresence<'_>,
) {
    let left = most - forget_retired(rank, most, shared);
    let last = matched_last(rank, shared.nodes);
    if evict_round(rank, left, last, shared) == 0 && left == most {
        // The hand passed no block that is this old, and the index is above its limit: newer
        // blocks are forgotten too.
        evict_round(rank, left, u32::MAX, shared);
    }
}

/// Continues round the table, and forgets names that were not matched after `last`. Returns how
/// many.
fn evict_round(rank: &mut Rank, most: usize, last: u32, shared: &mut SharedPresence<'_>) -> usize {
    let (mut looks, mut names, mut blocks) = (LOOKS * most, 0, 0);
    while names < most
        && let Some((slot, node)) = rank.slots.next_placed(&mut looks)
    {
        if shared.nodes.matched_at(node) <= last {
            blocks += u64::from(rank.evict(slot, shared));
            names += 1;
        }
    }
    rank.counts.refuse("forgotten_for_memory", blocks);
    names
}

fn forget_retired(rank: &mut Rank, most: usize, shared: &mut SharedPresence<'_>) -> usize {
    for forgotten in 0..most {
        let Some(slot) = rank.slots.next_retired() else {
            return forgotten;
        };
        rank.forget_name(slot, shared);
    }
    most
}

/// The tick at which the most recently matched of the old blocks was matched.
fn matched_last(rank: &Rank, nodes: &Nodes) -> u32 {
    let sample = rank.slots.sample(SAMPLED);
    let mut ticks: Vec<u32> = sample.map(|node| nodes.matched_at(node)).collect();
    if ticks.is_empty() {
        return u32::MAX;
    }
    let old = ticks.len() / OLD;
    *ticks.select_nth_unstable(old).1
}
