//! From what is certain, doubted and possible to the bounds of one rank.

use super::answer::{Bounds, TierSet};
use super::catalog::View;
use super::model::Class;
use super::nodes::NodeId;
use super::query::{Search, Words};
use super::rank::{Rank, State};
use super::slots::SlotId;
use crate::rule::{self, Unknown};

impl Search<'_, '_> {
    /// The bounds of one rank, given what is certainly there.
    pub(super) fn bounds(
        &self,
        class: &Class,
        at: usize,
        column: usize,
        set: TierSet,
        lower: u32,
        scratch: &mut rule::Scratch,
    ) -> Bounds {
        let Some(rank) = &self.model.ranks[column] else {
            return Bounds::default();
        };
        let certain = if class.view.lower_is_zero || !rank.can_promise() {
            0
        } else {
            self.unambiguous(class, at, column, (set, lower), scratch)
        };
        let everything = rank.state() != State::Exact
            || class.view.upper_is_everything
            || rank.forgot.overlaps(set);
        if everything {
            let topology = &class.view.topology;
            let step = rule::alignment(topology);
            let whole = self.last_token() / step * step;
            let upper = whole.saturating_sub(topology.replay_tokens).max(certain);
            return Bounds {
                lower: certain,
                upper,
            };
        }
        let has_doubt = rank.slots.has_doubts();
        let may_stand = self.possible.get(&column);
        let is_undecided = may_stand.is_some_and(|p| !p.at.is_empty() || !p.anywhere.is_empty());
        if !class.view.has_unknown && !has_doubt && !is_undecided {
            return Bounds {
                lower: certain,
                upper: lower,
            };
        }
        let upper = self.upper(class, at, column, set, scratch);
        Bounds {
            lower: certain,
            upper: upper.max(certain),
        }
    }

    /// How much of `lower` rests on boundaries before the first at which the rank held two hashes:
    /// which of them the request has, and so what comes after, nobody can say.
    fn unambiguous(
        &self,
        class: &Class,
        at: usize,
        column: usize,
        (set, lower): (TierSet, u32),
        scratch: &mut rule::Scratch,
    ) -> u32 {
        let Some(rank) = &self.model.ranks[column] else {
            return lower;
        };
        let sharing = &rank.slots.sharing;
        if sharing.is_empty() {
            return lower;
        }
        let key = |node: &NodeId| self.model.nodes.key(*node);
        let is_ambiguous =
            |node: &Option<NodeId>| node.as_ref().is_some_and(|n| sharing.is_ambiguous(key(n)));
        let Some(first) = self.ladders[at].nodes.iter().position(is_ambiguous) else {
            return lower;
        };
        let mut words = self.words(class, at, set, false);
        for list in words.whole.iter_mut().chain(&mut words.partial) {
            list.truncate(first);
        }
        let bit = column % 64;
        let query = self.query(1 << bit, Unknown::Strict);
        let topology = &class.view.topology;
        let answers = words.with_held(self.unit(at), |held| {
            rule::resume(topology, held, query, scratch)
        });
        answers[bit].min(lower)
    }

    /// The largest boundary that cannot be excluded for one rank.
    fn upper(
        &self,
        class: &Class,
        at: usize,
        column: usize,
        set: TierSet,
        scratch: &mut rule::Scratch,
    ) -> u32 {
        let bit = column % 64;
        let mut words = self.words(class, at, set, true);
        let length = self.ladders[at].prefixes().len();
        for list in words.whole.iter_mut().chain(&mut words.partial) {
            list.resize(length, 0);
        }
        if let (Some(rank), Some(possible)) =
            (&self.model.ranks[column], self.possible.get(&column))
        {
            let unit = self.ladders[at].unit();
            for &(slot, boundary) in possible.at.iter().filter(|(_, b)| b.is_multiple_of(unit)) {
                let i = (boundary / unit - 1) as usize;
                show(rank, slot, &class.view, set, bit, &mut words, i..i + 1);
            }
            for &slot in &possible.anywhere {
                show(rank, slot, &class.view, set, bit, &mut words, 0..length);
            }
        }
        let query = self.query(1 << bit, Unknown::Lax);
        let topology = &class.view.topology;
        let answers = words.with_held(self.unit(at), |held| {
            rule::resume(topology, held, query, scratch)
        });
        answers[bit]
    }
}

/// Shows the copies of an undecided hash at some boundaries.
fn show(
    rank: &Rank,
    slot: SlotId,
    view: &View,
    set: TierSet,
    bit: usize,
    words: &mut Words,
    range: std::ops::Range<usize>,
) {
    for channel in rank.slots.held_channels(slot) {
        let key = rank.slots.channel(channel).key;
        if !set.contains(key.tier) {
            continue;
        }
        for (group, _) in view
            .groups
            .iter()
            .enumerate()
            .filter(|(_, g)| **g == key.group)
        {
            let lists = if key.partial {
                &mut words.partial
            } else {
                &mut words.whole
            };
            let Some(list) = lists.get_mut(group) else {
                continue;
            };
            for word in list.get_mut(range.clone()).into_iter().flatten() {
                *word |= 1 << bit;
            }
        }
    }
}
