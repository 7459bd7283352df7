//! What retention by value remembers of a request.

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::hint::Hint;

/// What ends when a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Ending {
    /// A request that had begun something new.
    #[default]
    Start,
    /// A request that had continued where another one ended.
    Turn,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ValueCursor {
    pub ending: Ending,
    /// What was said of whether a later request goes on from the end.
    pub hint: Hint,
    /// Where the steps ended that computed the prompt.
    pub step_ends: SmallVec<[u32; 4]>,
    /// The number of tokens up to which checkpoints were looked for.
    num_checked: u32,
}

impl ValueCursor {
    /// Begins where the request resumes, which tells what ends when it ends.
    pub(super) fn resume(&mut self, num_tokens: u32, ending: Ending) {
        (self.num_checked, self.ending) = (num_tokens, ending);
    }

    /// Goes on to `end`, and returns where checkpoints were not looked for yet.
    pub(super) fn advance(&mut self, end: u32) -> Option<RangeInclusive<u32>> {
        let passed = self.num_checked..end;
        (!passed.is_empty()).then(|| {
            self.num_checked = end;
            passed.start + 1..=end
        })
    }

    /// Goes back to the first `num_tokens`, which stay.
    pub(super) fn rewind(&mut self, num_tokens: u32) {
        self.num_checked = self.num_checked.min(num_tokens);
    }
}
