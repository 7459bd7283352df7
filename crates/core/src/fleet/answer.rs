//! What a request gets back: bounds per rank and set of tiers.

use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use smallvec::SmallVec;

use super::pod::Member;
use super::state::State;
use super::tier::TierSet;

/// Reusable tokens: at least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Bounds {
    /// At least this many.
    pub lower: u32,
    /// At most this many.
    pub upper: u32,
}

/// What a token is worth on each tier, in the order of `Tier::ALL`.
pub(super) type Weights = [f64; 3];

/// How an answer is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// The bounds are equal, and it is what the engine reuses.
    Exact,
    /// The truth lies within the bounds.
    Bound,
    /// The strategy asked for has no score for this rank: `score` is 0 and says nothing.
    Unknown,
}

/// The group that ends a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limiting {
    /// Its index on the wire; `None` for a pod whose events carry none.
    pub group: Option<u16>,
    /// The first boundary, in tokens, that it refuses.
    pub boundary: u32,
}

/// The answer for one rank. Serialised, it is a row of the HTTP answer, but for the rank's name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// How far its history is known.
    pub state: State,
    /// The bounds for the tiers asked for.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// How the row is to be read.
    pub exactness: Exactness,
    /// Tokens that its full-attention groups hold, whatever the others lack; without such a group,
    /// those covered by the blocks of any group.
    pub present: u32,
    /// The bounds for each set of tiers.
    #[serde(serialize_with = "by_name")]
    pub tiers: SmallVec<[(TierSet, Bounds); 3]>,
    /// The group that ends the prefix; `None` where none does.
    pub limiting: Option<Limiting>,
    /// Tokens of the best lower bound, each times the weight of its tier; or what the strategy
    /// asked for says.
    pub score: f64,
}

impl Row {
    /// Whether the bounds are what the engine reuses.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.state == State::Exact && self.bounds.lower == self.bounds.upper
    }

    /// Fills in what the strategy says, once the state and the bounds are there; `None`: it has no
    /// score for this rank.
    pub(super) fn set_score(&mut self, score: Option<f64>) {
        self.score = score.unwrap_or(0.0);
        self.exactness = match (score, self.is_exact()) {
            (None, _) => Exactness::Unknown,
            (Some(_), true) => Exactness::Exact,
            (Some(_), false) => Exactness::Bound,
        };
    }

    /// The answer for a pod that is not registered: nothing is known of it.
    #[must_use]
    pub fn of_stranger(upper: u32, tiers: TierSet) -> Self {
        let bounds = Bounds { lower: 0, upper };
        Self {
            state: State::Stale,
            bounds,
            exactness: Exactness::Unknown,
            present: 0,
            tiers: [(tiers, bounds)].into_iter().collect(),
            limiting: None,
            score: 0.0,
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

/// Writes the bounds of each set of tiers under the name of the set.
fn by_name<S: Serializer>(tiers: &[(TierSet, Bounds)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(tiers.len()))?;
    for (set, bounds) in tiers {
        map.serialize_entry(&set.name(), bounds)?;
    }
    map.end()
}
