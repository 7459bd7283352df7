//! What a request gets back: bounds per rank and set of tiers.

use std::sync::Arc;

use smallvec::SmallVec;

use super::pod::Member;
use super::state::State;
use super::tier::TierSet;

/// Reusable tokens: at least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// At least this many.
    pub lower: u32,
    /// At most this many.
    pub upper: u32,
}

/// What a token is worth on each tier, in the order of `Tier::ALL`.
pub(super) type Weights = [f64; 3];

/// The answer for one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// How far its history is known.
    pub state: State,
    /// For the tiers asked for.
    pub bounds: Bounds,
    /// Tokens that its full-attention groups hold, whatever the others lack; without such a group,
    /// those covered by the blocks of any group.
    pub present: u32,
    /// Per set of tiers.
    pub tiers: SmallVec<[(TierSet, Bounds); 3]>,
    /// Wire index of the group that ends the prefix, and the boundary in tokens that it refuses.
    pub limiting: Option<(u16, u32)>,
    /// Tokens of the best lower bound, each times the weight of its tier; or what the strategy
    /// asked for says.
    pub score: f64,
    /// The strategy asked for has a score for this rank; otherwise `score` is 0 and says nothing.
    pub has_score: bool,
}

impl Row {
    /// Whether the answer is exact rather than a bound.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.state == State::Exact && self.bounds.lower == self.bounds.upper
    }

    /// How the answer is to be read: `exact`, `bound`, or `unknown` where it has no score.
    #[must_use]
    pub fn exactness(&self) -> &'static str {
        match (self.has_score, self.is_exact()) {
            (false, _) => "unknown",
            (true, true) => "exact",
            (true, false) => "bound",
        }
    }

    /// The answer for a pod that is not registered: nothing is known of it.
    #[must_use]
    pub fn of_stranger(upper: u32, tiers: TierSet) -> Self {
        let bounds = Bounds { lower: 0, upper };
        Self {
            state: State::Stale,
            bounds,
            present: 0,
            tiers: [(tiers, bounds)].into_iter().collect(),
            limiting: None,
            score: 0.0,
            has_score: false,
        }
    }
}

/// An answer: `rows[i]` is that of `roster[i]`, in the order of pod names, then ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The ranks asked for.
    pub roster: Arc<[Member]>,
    /// One row per rank.
    pub rows: Vec<Row>,
    /// Units of work on what is undecided and on what lies after each boundary: grows with the
    /// request and with what is undecided along it, hardly faster.
    pub effort: u64,
}
