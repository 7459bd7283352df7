//! Counted work, and how much of it may still be done.
//!
//! A unit is one look at one thing (a hash, a block, a candidate). Units are counted, never timed,
//! so the same input costs the same on every machine. Code whose amount of work depends on the
//! input asks before it works ([`Effort::spend`]), and skips what is refused. The code that lent
//! the effort then sees that some work was skipped ([`Effort::is_exhausted`]), and decides what an
//! answer is worth without it. Work that is already bounded by the size of the input is only
//! counted ([`Effort::note`]). Nothing in this file decides which work is skipped.

use serde::{Deserialize, Serialize};
use std::cell::Cell;

/// The units of effort that a rank keeps from batch to batch: some 15 to 35 ms of work. The
/// recorded engines never need more than 3 000 units for one batch.
pub(super) const MOST_EFFORT_KEPT: u64 = 1 << 18;
/// The units that may still be spent, and those that were spent. Spending needs only a shared
/// reference, so code that only reads can be charged too.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Effort {
    left: Cell<u64>,
    spent: Cell<u64>,
    exhausted: Cell<bool>,
}

impl Effort {
    /// An effort of this many units.
    #[must_use]
    pub(super) fn of(units: u64) -> Self {
        Self {
            left: Cell::new(units),
            ..Self::default()
        }
    }

    /// The same, as it was read from a snapshot; `None` if it is more than any rank keeps and earns.
    #[must_use]
    pub(super) fn at_most(self, kept: u64) -> Option<Self> {
        let most = kept + (1 << 32);
        (self.left.get() <= most && self.spent.get() <= 1 << 62).then_some(self)
    }

    /// Asks for units of work. Returns false if fewer are left; from then on every request is
    /// refused.
    #[must_use]
    pub(super) fn spend(&self, units: usize) -> bool {
        let units = units as u64;
        if self.exhausted.get() || self.left.get() < units {
            self.exhausted.set(true);
            return false;
        }
        self.left.set(self.left.get() - units);
        self.note(units);
        true
    }

    /// Counts work that is done whether or not effort is left.
    pub(super) fn note(&self, units: u64) {
        self.spent.set(self.spent.get() + units);
    }

    /// Whether some work was refused.
    #[must_use]
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    /// The units spent or counted so far.
    #[must_use]
    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    /// Adds units that may be spent.
    pub(super) fn earn(&mut self, units: usize) {
        self.left.set(self.left.get() + units as u64);
    }

    /// Starts over: keeps at most `most` of the units that are left, and forgets what was spent or
    /// refused.
    pub(super) fn renew(&mut self, most: u64) {
        *self = Self::of(self.left.get().min(most));
    }
}

#[cfg(test)]
mod tests {
    use super::Effort;

    #[test]
    fn what_is_refused_once_is_refused_until_it_begins_anew() {
        let mut effort = Effort::of(10);
        assert!(effort.spend(4));
        assert!(!effort.spend(7));
        assert!(!effort.spend(1), "6 are left, but work was refused");
        assert!(effort.is_exhausted());
        effort.renew(100);
        assert!(effort.spend(6));
        assert!(!effort.is_exhausted());
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_earned_adds_to_it() {
        let mut effort = Effort::of(10);
        effort.renew(3);
        effort.earn(2);
        assert!(effort.spend(5));
        assert!(!effort.spend(1));
    }

    #[test]
    fn work_done_in_any_case_is_counted_and_costs_nothing() {
        let effort = Effort::of(2);
        effort.note(50);
        assert!(effort.spend(2));
        assert_eq!(effort.spent(), 52);
    }
}
