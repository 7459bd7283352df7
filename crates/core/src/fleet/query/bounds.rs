//! The bounds of one rank, from what is certainly held, what is in doubt, and what may be held.

use super::answer::Bounds;
use super::search::{ClassQuery, RequestSearch};
use super::words::Words;
use crate::fleet::keys::prompt::Prompt;
use crate::fleet::limbo::Possible;
use crate::fleet::pod::view::View;
use crate::fleet::presence::nodes::NodeId;
use crate::fleet::rank::Rank;
use crate::fleet::state::State;
use crate::fleet::tier::TierSet;
use crate::prefix::PrefixKey;
use crate::rule::{self, Unknown};

/// The looks that one answer may take to count what requests lack of late ranks, shared by the ranks
/// that are asked about: some 60 ms of work.
const LOOKS: usize = 1 << 23;

impl RequestSearch<'_, '_> {
    /// The bounds of one rank, given the length that the rule gives for what it was told to hold. If
    /// its events leave groups out, `certain` is the length for what is certain of these too, and how
    /// that was read.
    pub(in crate::fleet) fn bounds(
        &self,
        class_query: ClassQuery<'_>,
        column: usize,
        set: TierSet,
        (told, certain): (u32, Option<(ClassQuery<'_>, u32)>),
        scratch: &mut rule::Scratch,
    ) -> Bounds {
        let Some(rank) = &self.model.ranks[column] else {
            return Bounds::default();
        };
        let can_promise =
            self.can_promise(rank) && (certain.is_none() || rank.can_promise_silent());
        let (closely, certain) = certain.unwrap_or((class_query, told));
        let certain = if closely.class.view.lower_is_zero || !can_promise {
            0
        } else {
            self.unambiguous(closely, column, set, certain, scratch)
        };
        let may_stand = self.possible.get(&column);
        let hidden = rank.hidden_on_gpu();
        let everything = rank.may_hold_anything_of(&self.request.prompt, set)
            || self.is_cache_unknown(class_query, rank)
            || class_query.class.view.upper_is_everything
            || may_stand.is_some_and(|possible| possible.everything)
            || (hidden > 0 && self.looks(class_query) > LOOKS / self.request.columns.len().max(1));
        if everything {
            let topology = &class_query.class.view.topology;
            let step = rule::alignment(topology);
            let whole = self.last_token() / step * step;
            let upper = whole.saturating_sub(topology.replay_tokens).max(certain);
            return Bounds {
                lower: certain,
                upper,
            };
        }
        let has_doubt = rank.slots.channels.has_doubts();
        let is_undecided = may_stand.is_some_and(|possible| !possible.is_empty());
        if !class_query.class.view.has_unknown && !has_doubt && !is_undecided && hidden == 0 {
            return Bounds {
                lower: certain,
                upper: told,
            };
        }
        let upper = self.upper(class_query, column, set, hidden, scratch);
        Bounds {
            lower: certain,
            upper: upper.max(certain),
        }
    }

    /// Whether a rank's lost history is made up for by what the size of its pool tells, so that its
    /// bounds are as sure as those of an exact rank.
    pub(in crate::fleet) fn is_counted(&self, column: usize, set: TierSet) -> bool {
        let rank = self.model.ranks[column].as_ref();
        rank.is_some_and(|rank| {
            rank.state() == State::Degraded
                && rank.can_promise()
                && !rank.may_hold_anything_of(&self.request.prompt, set)
        })
    }

    /// Whether what a rank is known to hold is certainly what this request would find.
    fn can_promise(&self, rank: &Rank) -> bool {
        let may_be_stale = rank.catalog.config.hidden.adapter_reloads;
        let Prompt {
            lora, extra_key, ..
        } = self.request.prompt;
        let has_spaces = rank.catalog.config.hidden.dynamo_format;
        let may_be_other_keys = extra_key.is_some() || rank.catalog.config.hidden.extra_keys;
        rank.can_promise()
            && !(may_be_stale && lora.is_some())
            && !(may_be_other_keys && (!has_spaces || lora.is_some()))
    }

    /// Whether the request's cache is known by its first hash, and that hash is not: it cannot be
    /// computed, or the engine has not shown yet that it computes hashes so.
    pub(in crate::fleet) fn is_cache_unknown(
        &self,
        class_query: ClassQuery<'_>,
        rank: &Rank,
    ) -> bool {
        let keys = &self.prompt_keys[class_query.keys];
        keys.step().page > 0 && !(rank.is_format_confirmed && keys.is_looked_up())
    }

    /// The key of the empty prefix for the request's adapter.
    pub(in crate::fleet) fn seed(&self) -> PrefixKey {
        self.model.marks.lora_seed(self.request.prompt.lora)
    }

    /// How much of `lower` needs only boundaries before the first ambiguous one, and before the first
    /// one that the newest load of the request's adapter is not known to hold. It cannot be known
    /// whose copy the request would find there, so what comes after cannot be known either.
    pub(in crate::fleet) fn unambiguous(
        &self,
        class_query: ClassQuery<'_>,
        column: usize,
        set: TierSet,
        lower: u32,
        scratch: &mut rule::Scratch,
    ) -> u32 {
        let Some(rank) = &self.model.ranks[column] else {
            return lower;
        };
        let sharing = &rank.slots.sharing;
        let load = rank.adapters.load(self.seed());
        if sharing.is_empty() && load.is_none() {
            return lower;
        }
        let is_ambiguous = |node: &Option<NodeId>| {
            let key = node.map(|node| self.model.nodes.key(node));
            key.is_some_and(|key| {
                sharing.is_ambiguous(key)
                    || load.is_some_and(|load| !rank.holds_of(load, key, set, &self.model.nodes))
            })
        };
        let nodes = &self.prompt_keys[class_query.keys].nodes;
        let Some(first) = nodes.iter().position(is_ambiguous) else {
            return lower;
        };
        let mut words = self.words(class_query, set, false);
        for list in words.whole.iter_mut().chain(&mut words.partial) {
            list.truncate(first);
        }
        let bit = class_query.lane(column);
        let query = self.query(1 << bit, Unknown::Strict);
        let topology = &class_query.class.view.topology;
        let answers = words.with_held(self.unit(class_query.keys), |held| {
            rule::resume(topology, held, query, scratch)
        });
        answers[bit].min(lower)
    }

    /// The looks at blocks that counting takes for one rank.
    fn looks(&self, class_query: ClassQuery<'_>) -> usize {
        let length = self.prompt_keys[class_query.keys].prefixes().len();
        length * class_query.class.view.topology.groups.len()
    }

    /// The largest boundary that cannot be excluded for one rank, whose GPU may also hold so many
    /// blocks of which nothing is known.
    fn upper(
        &self,
        class_query: ClassQuery<'_>,
        column: usize,
        set: TierSet,
        hidden: u64,
        scratch: &mut rule::Scratch,
    ) -> u32 {
        let bit = class_query.lane(column);
        let mut words = self.words(class_query, set, true);
        let length = self.prompt_keys[class_query.keys].prefixes().len();
        for list in words.whole.iter_mut().chain(&mut words.partial) {
            list.resize(length, 0);
        }
        if let Some(possible) = self.possible.get(&column) {
            let unit = self.unit(class_query.keys);
            show(
                possible,
                &class_query.class.view,
                set,
                bit,
                unit,
                &mut words,
            );
        }
        let query = self.query(1 << bit, Unknown::Lax);
        let topology = &class_query.class.view.topology;
        words.with_held(self.unit(class_query.keys), |held| {
            if hidden > 0 {
                self.effort.note(self.looks(class_query) as u64);
                rule::resume_lacking(topology, held, query, hidden, scratch)
            } else {
                rule::resume(topology, held, query, scratch)[bit]
            }
        })
    }
}

/// Marks the undecided copies of one rank as present wherever they may stand.
fn show(possible: &Possible, view: &View, set: TierSet, bit: usize, unit: u32, words: &mut Words) {
    // The positions of these copies may have a finer unit than the words of the rule.
    let per_word = (unit / possible.unit.max(1)) as usize;
    for (kind, places) in possible.iter().filter(|(kind, _)| set.contains(kind.tier)) {
        let lists = if kind.partial {
            &mut words.partial
        } else {
            &mut words.whole
        };
        for (list, _) in lists
            .iter_mut()
            .zip(&view.groups)
            .filter(|(_, g)| **g == kind.group)
        {
            places.each(list.len() * per_word, |boundary| {
                if boundary.is_multiple_of(per_word)
                    && let Some(word) = list.get_mut(boundary / per_word - 1)
                {
                    *word |= 1 << bit;
                }
            });
        }
    }
}
