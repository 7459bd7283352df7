//! Counted work: how much of it may still be done for what is at hand.
//!
//! A unit is one look at one thing (a hash, a block, a candidate). Units are counted, never timed:
//! the same input costs the same on every machine. Whoever does work whose amount the input decides
//! asks first ([`Effort::spend`]); what is refused is left undone, and whoever lent the effort sees
//! that ([`Effort::is_exhausted`]) and says what an answer is worth without it. Work that the size of
//! the input itself bounds is only counted ([`Effort::note`]). Nothing here decides what is given up.

use std::cell::Cell;

/// Units of effort that a rank keeps from batch to batch: some 15 to 35 ms of work. The recorded
/// engines never ask for more than 3 000 units in one batch.
pub(super) const MOST_EFFORT_KEPT: u64 = 1 << 18;
/// What may still be spent, and what was. It is lent shared, so that looking can be charged too.
#[derive(Debug, Default)]
pub(super) struct Effort {
    left: Cell<u64>,
    spent: Cell<u64>,
    exhausted: Cell<bool>,
}

impl Effort {
    /// This many units.
    #[must_use]
    pub(super) fn of(units: u64) -> Self {
        Self {
            left: Cell::new(units),
            ..Self::default()
        }
    }

    /// Asks for work. False: not that much is left, and nothing is from now on.
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

    /// Counts work that is done in any case.
    pub(super) fn note(&self, units: u64) {
        self.spent.set(self.spent.get() + units);
    }

    /// Whether some work was refused.
    #[must_use]
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    /// Units spent and counted so far.
    #[must_use]
    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    /// Adds to what may be spent.
    pub(super) fn earn(&mut self, units: usize) {
        self.left.set(self.left.get() + units as u64);
    }

    /// Begins anew: what is left is kept up to `most`; nothing is spent or refused yet.
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
