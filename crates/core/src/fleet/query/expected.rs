//! The number of tokens that a rank most likely reuses, where its bounds differ.
//!
//! A guess, never a promise: what the events have shown is taken to stand, whatever might have ended it.

use super::by_column::RowsByColumn;
use super::search::{ClassQuery, RequestSearch};
use crate::fleet::tier::TierSet;
use crate::rule::{self, HOLDERS, Unknown};

/// What events have shown of the ranks of a class on one set of tiers.
pub(in crate::fleet) struct ToldLengths<'a> {
    /// The index of the set of tiers.
    pub index: usize,
    /// The lengths that the rule gives for what was told.
    pub told: &'a [u32; HOLDERS],
    /// How to read what is likely of groups that no event tells of, if there are any.
    pub likely: Option<ClassQuery<'a>>,
}

impl RequestSearch<'_, '_> {
    /// Fills in what is likely for one set of tiers, after the bounds were filled in.
    pub(in crate::fleet) fn fill_expected(
        &self,
        class_query: ClassQuery<'_>,
        shown: &ToldLengths<'_>,
        scratch: &mut rule::Scratch,
        rows: &mut RowsByColumn<'_>,
    ) {
        let set = rows.tier_sets[shown.index];
        let likely = (shown.likely).map(|class_query| self.read(class_query, set, scratch));
        for (column, lane) in class_query.class.lanes.ranks() {
            let (_, bounds) = rows.row(column).tiers[shown.index];
            let tokens = match &likely {
                _ if bounds.lower == bounds.upper => bounds.lower,
                Some(likely) => likely[lane].clamp(bounds.lower, bounds.upper),
                None => self
                    .expected(class_query, (column, set), shown.told[lane], scratch)
                    .clamp(bounds.lower, bounds.upper),
            };
            rows.likely(column).add(set, tokens);
            if shown.index == 0 {
                rows.row(column).expected = tokens;
            }
        }
    }

    /// The likely answer of one rank on a set of tiers, given the length that the rule gives for what
    /// the events have shown.
    ///
    /// A lost connection, a gap or a refused event leaves most of what is shown true, and hides
    /// stores more often than it hides removals of what this request needs. A copy in doubt is one
    /// that an engine may have kept through a clear, and it usually has.
    pub(in crate::fleet) fn expected(
        &self,
        class_query: ClassQuery<'_>,
        (column, set): (usize, TierSet),
        shown: u32,
        scratch: &mut rule::Scratch,
    ) -> u32 {
        let rank = self.model.ranks[column].as_ref();
        let has_doubts = rank.is_some_and(|rank| rank.slots.channels.has_doubts());
        if has_doubts {
            let words = self.words(class_query, set, true);
            let lane = class_query.lane(column);
            let query = self.query(1 << lane, Unknown::Strict);
            let answers = words.with_held(self.unit(class_query.keys), |held| {
                rule::resume(&class_query.class.view.topology, held, query, scratch)
            });
            answers[lane]
        } else {
            shown
        }
    }
}
