//! At which boundaries prompts have keys.

use smallvec::SmallVec;

use crate::divisors::gcd;

/// The boundaries of a list of keys, and how many tokens after each of them a hash covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) struct KeyStep {
    /// Tokens from one boundary to the next.
    pub(in crate::fleet) unit: u32,
    /// Tokens after a boundary that the engine's hash of it also covers.
    pub(in crate::fleet) lookahead: u32,
    /// Tokens per page where chains stand under salts made of their first hashes; else 0.
    pub(in crate::fleet) page: u32,
}

/// A step of each kind: of each lookahead and page.
type Kinds = SmallVec<[KeyStep; 1]>;

/// So many kinds are remembered: a fleet has one or two.
const MOST: usize = 4;

/// The boundaries at which hashes of a model have stood, whatever became of their pods.
#[derive(Debug, Default)]
pub(in crate::fleet) struct StepKinds {
    all: Kinds,
    num_dropped: u64,
}

impl StepKinds {
    /// Adds the boundaries of a rank. Of too many kinds, the one that came first is dropped.
    pub(in crate::fleet) fn note(&mut self, step: KeyStep) {
        merge(&mut self.all, step);
        if self.all.len() > MOST {
            self.all.remove(0);
            self.num_dropped += 1;
        }
    }

    /// Steps that visit all these boundaries, and those of ranks that there are now.
    pub(in crate::fleet) fn with(&self, ranks: impl Iterator<Item = KeyStep>) -> Kinds {
        let mut all = self.all.clone();
        for step in ranks {
            merge(&mut all, step);
        }
        all
    }

    /// How many kinds of steps were dropped.
    #[must_use]
    pub(in crate::fleet) fn num_dropped(&self) -> u64 {
        self.num_dropped
    }

    /// How many kinds are forgotten if these are.
    #[must_use]
    pub(in crate::fleet) fn num_lost(&self) -> u64 {
        self.num_dropped + self.all.len() as u64
    }
}

/// Makes the step of the same kind visit these boundaries too, or adds the kind.
fn merge(all: &mut Kinds, step: KeyStep) {
    let is_alike = |own: &&mut KeyStep| (own.lookahead, own.page) == (step.lookahead, step.page);
    match all.iter_mut().find(is_alike) {
        Some(own) => own.unit = gcd(own.unit, step.unit),
        None => all.push(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(unit: u32, lookahead: u32) -> KeyStep {
        KeyStep {
            unit,
            lookahead,
            page: 0,
        }
    }

    fn noted(all: &[KeyStep]) -> StepKinds {
        let mut steps = StepKinds::default();
        for &step in all {
            steps.note(step);
        }
        steps
    }

    #[test]
    fn steps_of_one_kind_are_one_that_visits_the_boundaries_of_both() {
        let steps = noted(&[step(16, 0), step(48, 0), step(24, 0)]);
        assert_eq!(steps.with(std::iter::empty()).as_slice(), [step(8, 0)]);
    }

    #[test]
    fn of_too_many_kinds_the_first_is_dropped_and_counted_but_not_that_of_a_rank() {
        let steps = noted(&[1, 2, 3, 4, 1, 5].map(|lookahead| step(16, lookahead)));
        let kinds = |ranks: &[KeyStep]| {
            let all = steps.with(ranks.iter().copied());
            all.iter().map(|step| step.lookahead).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[]), [2, 3, 4, 5]);
        assert_eq!(kinds(&[step(8, 1)]), [2, 3, 4, 5, 1]);
        assert_eq!(steps.num_dropped(), 1);
    }
}
