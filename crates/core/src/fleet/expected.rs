//! The number of tokens that a rank most likely reuses, where its bounds differ.
//!
//! A guess, never a promise: what the events have shown is taken to stand, whatever might have ended it.

use super::search::{Reading, Search};
use crate::rule::{self, Unknown};

impl Search<'_, '_> {
    /// The likely answer of one rank, given the length that the rule gives for what the events have
    /// shown.
    ///
    /// A lost connection, a gap or a refused event leaves most of what is shown true, and hides
    /// stores more often than it hides removals of what this request needs. A copy in doubt is one
    /// that an engine may have kept through a clear, and it usually has.
    pub(super) fn expected(
        &self,
        reading: Reading<'_>,
        column: usize,
        shown: u32,
        scratch: &mut rule::Scratch,
    ) -> u32 {
        let rank = self.model.ranks[column].as_ref();
        let has_doubts = rank.is_some_and(|rank| rank.slots.channels.has_doubts());
        if has_doubts {
            let words = self.words(reading, self.request.tiers, true);
            let query = self.query(1 << (column % 64), Unknown::Strict);
            let answers = words.with_held(self.unit(reading.ladder), |held| {
                rule::resume(&reading.class.view.topology, held, query, scratch)
            });
            answers[column % 64]
        } else {
            shown
        }
    }
}
