//! What the ranks of one class hold along a request, a bit for each rank.

use std::sync::Arc;

use crate::fleet::pod::view::View;
use crate::rule::Holdings;

/// The words of one class for one set of tiers, for each group of the topology.
#[derive(Debug, Default, Clone)]
pub(in crate::fleet) struct Words {
    /// For each group, one word per boundary: the holders of the block that ends there.
    pub(in crate::fleet) whole: Vec<Vec<u64>>,
    /// The same for entries inside blocks; empty if the engine has none.
    pub(in crate::fleet) partial: Vec<Vec<u64>>,
}

impl Words {
    /// Calls `evaluate` with these words in the form that the rule takes.
    pub(in crate::fleet) fn with_held<T>(
        &self,
        unit: u32,
        evaluate: impl FnOnce(&Holdings<'_>) -> T,
    ) -> T {
        let whole: Vec<&[u64]> = self.whole.iter().map(Vec::as_slice).collect();
        let partial: Vec<&[u64]> = self.partial.iter().map(Vec::as_slice).collect();
        evaluate(&Holdings {
            unit,
            whole: &whole,
            partial: &partial,
        })
    }

    /// The words of one group: whole blocks, and entries within blocks.
    #[must_use]
    pub(in crate::fleet) fn of(&self, group: usize) -> (&[u64], &[u64]) {
        (
            &self.whole[group],
            self.partial.get(group).map_or(&[], Vec::as_slice),
        )
    }
}

/// What one rank holds along a request.
#[derive(Debug, Clone)]
pub(in crate::fleet) struct RankPresence {
    /// What its class holds.
    pub(in crate::fleet) class: Arc<ClassPresence>,
    /// The rank's lane there.
    pub(in crate::fleet) lane: u32,
    /// Why the answer is a bound, if it is, as far as the request is the reason.
    pub(in crate::fleet) reason: &'static str,
}

/// What the ranks of one class hold along a request.
#[derive(Debug)]
pub(in crate::fleet) struct ClassPresence {
    /// The view that the rule is evaluated with.
    pub(in crate::fleet) view: Arc<View>,
    /// The number of tokens from one word to the next.
    pub(in crate::fleet) unit: u32,
    /// The words that the answer was read from.
    pub(in crate::fleet) words: Words,
}
