//! The rows of an answer. The rule is evaluated once per class of ranks and set of tiers, for 64
//! ranks at a time; then each rank gets its bounds and its score.

use std::sync::Arc;

use super::answer::{Limiting, Row};
use super::by_column::{Likely, RowsByColumn};
use super::canonical_blocks;
use super::expected::ToldLengths;
use super::search::{ClassQuery, RequestSearch};
use super::soon;
use super::tier_score;
use super::words::{ClassPresence, RankPresence, Words};
use crate::fleet::model::Class;
use crate::fleet::pod::view::View;
use crate::fleet::rank::Rank;
use crate::fleet::state::State;
use crate::fleet::tier::TierSet;
use crate::rule::{self, HOLDERS, Unknown};

impl RequestSearch<'_, '_> {
    /// Answers for every requested column, in that order.
    pub(in crate::fleet) fn rows(&mut self, scratch: &mut rule::Scratch) -> Vec<Row> {
        // Both calls can place hashes, which makes nodes, so they come before any node is looked
        // up.
        self.probe();
        self.find_possible();
        let tier_sets = self.tier_sets();
        let columns = &self.request.columns;
        let mut rows: Vec<Row> = columns
            .iter()
            .map(|&column| self.empty_row(column, &tier_sets))
            .collect();
        let mut likely = vec![Likely::default(); rows.len()];
        let mut positions = std::mem::take(&mut self.model.positions);
        positions.resize(self.model.ranks.len(), 0);
        for (position, &column) in columns.iter().enumerate().rev() {
            positions[column] = position;
        }
        for class in self.classes() {
            let class = restrict(class, self.request.only_full);
            let mut rows = RowsByColumn {
                rows: &mut rows,
                likely: &mut likely,
                positions: &positions,
                tier_sets: &tier_sets,
            };
            self.answer_class(&class, scratch, &mut rows);
        }
        for (position, &column) in columns.iter().enumerate() {
            let first = positions[column];
            if first != position {
                rows[position] = rows[first].clone();
            }
        }
        self.model.positions = positions;
        rows
    }

    /// The requested ranks, by class. Where few ranks of a word are requested, those of several words
    /// are evaluated together.
    fn classes(&mut self) -> Vec<Class> {
        let mut classes: Vec<Class> = Vec::new();
        for class in self.model.classes().iter() {
            let lanes = class.lanes.within(&self.asked);
            if lanes.mask() == 0 {
                continue;
            }
            let is_joined = classes.last_mut().is_some_and(|last| {
                Arc::ptr_eq(&last.view, &class.view) && last.lanes.join(&lanes)
            });
            if !is_joined {
                let view = Arc::clone(&class.view);
                classes.push(Class { view, lanes });
            }
        }
        classes
    }

    /// The sets of tiers to answer for: the requested set, GPU alone, and GPU with each further
    /// tier added in turn that holds anything.
    fn tier_sets(&self) -> Vec<TierSet> {
        let mut sets = vec![self.request.tiers];
        for set in TierSet::cumulative(self.model.planes.tiers) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    /// The row of a rank without any known group: it holds nothing, unless its history is
    /// incomplete.
    fn empty_row(&self, column: usize, tier_sets: &[TierSet]) -> Row {
        let state = self.model.ranks[column]
            .as_ref()
            .map_or(State::Stale, Rank::state);
        let upper = if state == State::Exact {
            0
        } else {
            self.last_token()
        };
        let mut row = Row::of_nothing(state, upper, tier_sets);
        row.set_score(self.request.canonical_blocks.is_none().then_some(0.0));
        row
    }

    fn answer_class(
        &mut self,
        class: &Class,
        scratch: &mut rule::Scratch,
        rows: &mut RowsByColumn<'_>,
    ) {
        let keys = self.keys_for(class);
        let class_query = ClassQuery { class, keys };
        let mut told = Words::default();
        for (index, &set) in rows.tier_sets.iter().enumerate() {
            let words = self.words(class_query, set, false);
            let lower = self.fill_bounds(class_query, index, &words, scratch, rows);
            if index == 0 {
                self.fill_limits(class_query, &words, &lower, scratch, rows);
                self.keep_presence(class_query, &words, &lower, scratch);
                told = words;
            }
        }
        self.widen(class, scratch, rows);
        self.fill_scores(class_query, scratch, rows);
        if !self.model.promises.is_empty() {
            soon::fill_coming(self, class_query, told, scratch, rows);
        }
    }

    /// Widens the bounds of a class by those with hits inside blocks, where it is not known whether
    /// the engine has these.
    fn widen(&mut self, class: &Class, scratch: &mut rule::Scratch, rows: &mut RowsByColumn<'_>) {
        let Some(class) = class.inside() else {
            return;
        };
        let keys = self.keys_for(&class);
        let class_query = ClassQuery {
            class: &class,
            keys,
        };
        for (index, &set) in rows.tier_sets.iter().enumerate() {
            let told = self.read(class_query, set, scratch);
            for (column, lane) in class.lanes.ranks() {
                let of_column = (told[lane], None);
                let other = self.bounds(class_query, column, set, of_column, scratch);
                let row = rows.row(column);
                let bounds = &mut row.tiers[index].1;
                bounds.lower = bounds.lower.min(other.lower);
                bounds.upper = bounds.upper.max(other.upper);
                if index == 0 {
                    row.bounds = *bounds;
                }
            }
        }
    }

    /// Fills in the bounds for one set of tiers. Returns the lengths that the rule gives for what
    /// is certain.
    fn fill_bounds(
        &self,
        class_query: ClassQuery<'_>,
        index: usize,
        words: &Words,
        scratch: &mut rule::Scratch,
        rows: &mut RowsByColumn<'_>,
    ) -> [u32; HOLDERS] {
        let ClassQuery { class, keys } = class_query;
        let query = self.query(class.lanes.mask(), Unknown::Strict);
        let lower = words.with_held(self.unit(keys), |held| {
            rule::resume(&class.view.topology, held, query, scratch)
        });
        let set = rows.tier_sets[index];
        let silent = class.silent();
        let certain = silent.as_ref().map(|(class, _)| {
            let class_query = ClassQuery { class, keys };
            (class_query, self.read(class_query, set, scratch))
        });
        for (column, lane) in class.lanes.ranks() {
            let certain = certain.map(|(class_query, lengths)| (class_query, lengths[lane]));
            let bounds = self.bounds(class_query, column, set, (lower[lane], certain), scratch);
            let row = rows.row(column);
            row.tiers[index] = (set, bounds);
            if index == 0 {
                row.bounds = bounds;
                row.is_counted = self.is_counted(column, set);
            }
        }
        // Blocks are counted without what is likely on further tiers.
        if index == 0 || self.request.canonical_blocks.is_none() {
            let shown = ToldLengths {
                index,
                told: &lower,
                likely: silent.as_ref().map(|(_, class)| ClassQuery { class, keys }),
            };
            self.fill_expected(class_query, &shown, scratch, rows);
        }
        lower
    }

    /// The lengths that the rule gives for what the ranks of a class hold on a set of tiers.
    pub(in crate::fleet) fn read(
        &self,
        class_query: ClassQuery<'_>,
        set: TierSet,
        scratch: &mut rule::Scratch,
    ) -> [u32; HOLDERS] {
        let query = self.query(class_query.class.lanes.mask(), Unknown::Strict);
        let words = self.words(class_query, set, false);
        words.with_held(self.unit(class_query.keys), |held| {
            rule::resume(&class_query.class.view.topology, held, query, scratch)
        })
    }

    /// Fills in what is present on the requested tiers, and which group ends the prefix.
    fn fill_limits(
        &self,
        class_query: ClassQuery<'_>,
        words: &Words,
        lower: &[u32; HOLDERS],
        scratch: &mut rule::Scratch,
        rows: &mut RowsByColumn<'_>,
    ) {
        let Class { view, lanes } = class_query.class;
        let query = self.query(lanes.mask(), Unknown::Strict);
        let (present, limits) = words.with_held(self.unit(class_query.keys), |held| {
            (
                rule::present(&view.topology, held, query, scratch),
                rule::limiting(&view.topology, held, query, lower, scratch),
            )
        });
        for (column, lane) in lanes.ranks() {
            let row = rows.row(column);
            row.present = present[lane];
            row.present_soon = row.present;
            let limit = limits[lane];
            row.limiting = limit.map(|limit| Limiting {
                group: Rank::group_name(view.groups[limit.group]),
                boundary: limit.boundary,
            });
        }
    }

    /// Fills in the scores of the requested strategy.
    fn fill_scores(
        &self,
        class_query: ClassQuery<'_>,
        scratch: &mut rule::Scratch,
        rows: &mut RowsByColumn<'_>,
    ) {
        let by_blocks = self
            .request
            .canonical_blocks
            .map(|blocks| canonical_blocks::scores(self, class_query, blocks, scratch));
        for (column, lane) in class_query.class.lanes.ranks() {
            let score = match &by_blocks {
                None => {
                    let likely = *rows.likely(column);
                    Some(tier_score::score(self, class_query, column, likely))
                }
                Some(scores) => scores.map(|scores| scores[lane]),
            };
            rows.row(column).set_score(score);
        }
    }

    /// Keeps the words that the answer was read from, if it will be explained.
    fn keep_presence(
        &mut self,
        class_query: ClassQuery<'_>,
        words: &Words,
        told: &[u32; HOLDERS],
        scratch: &mut rule::Scratch,
    ) {
        let Some(mut all_seen) = self.seen.take() else {
            return;
        };
        let unit = self.unit(class_query.keys);
        let class = Arc::new(ClassPresence {
            view: Arc::clone(&class_query.class.view),
            unit,
            words: words.clone(),
        });
        for (column, lane) in class_query.class.lanes.ranks() {
            let seen = RankPresence {
                class: Arc::clone(&class),
                lane: u32::try_from(lane).unwrap_or(0),
                reason: self.reason_of_bound(class_query, column, told[lane], scratch),
            };
            all_seen.insert(column, seen);
        }
        self.seen = Some(all_seen);
    }
}

/// Removes all groups except those of full attention, if `only_full`.
fn restrict(class: Class, only_full: bool) -> Class {
    if !only_full {
        return class;
    }
    let mut view = View::clone(&class.view);
    view.keep_full();
    view.lower_is_zero |= view.groups.is_empty();
    view.silent = None;
    view.inside = None;
    class.with(view)
}
