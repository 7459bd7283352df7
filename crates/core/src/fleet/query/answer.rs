//! What a request gets back: bounds for each rank and set of tiers.

use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use smallvec::SmallVec;

use crate::fleet::pod::Member;
use crate::fleet::state::State;
use crate::fleet::tier::TierSet;

/// The bounds of the reusable tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Bounds {
    /// At least this many tokens can be reused.
    pub lower: u32,
    /// At most this many tokens can be reused.
    pub upper: u32,
}

/// The weight of a token on each tier, in the order of `Tier::ALL`.
pub(in crate::fleet) type Weights = [f64; 3];

/// How an answer is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Exactness {
    /// The bounds are equal: the engine reuses exactly this many tokens.
    Exact,
    /// The true value lies within the bounds.
    Bound,
    /// The requested strategy has no score for this rank: `score` is 0 and means nothing.
    Unknown,
}

/// The group that ends a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Limiting {
    /// Its index on the wire; `None` for a pod whose events carry no index.
    pub group: Option<u16>,
    /// The first boundary, in tokens, that the group refuses.
    pub boundary: u32,
}

/// The answer for one rank. Serialised, it is a row of the HTTP answer without the name of the
/// rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// How completely the rank's history is known.
    pub state: State,
    /// The bounds for the requested tiers.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Whether the bounds hold for certain although the state is not exact: history is lost, and the
    /// size of the engine's pool bounds what was in it.
    #[serde(skip)]
    pub is_counted: bool,
    /// The most likely number of reusable tokens, for the requested tiers: within the bounds, and
    /// promised only where they are equal.
    pub expected: u32,
    /// How the row is to be read.
    pub exactness: Exactness,
    /// The tokens that the rank's full-attention groups hold, whatever the other groups lack. For a
    /// rank without such a group, the tokens that the blocks of any group cover.
    pub present: u32,
    /// The tokens that can be reused once the rank has what was promised to it: nothing more than
    /// what it has now, if nothing is.
    #[serde(skip)]
    pub coming: u32,
    /// `present`, once the rank has what was promised to it.
    #[serde(skip)]
    pub present_soon: u32,
    /// The bounds for each set of tiers.
    #[serde(serialize_with = "by_name")]
    pub tiers: SmallVec<[(TierSet, Bounds); 3]>,
    /// The group that ends the prefix; `None` if no group does.
    pub limiting: Option<Limiting>,
    /// The tokens that are likely reusable from all tiers, each times the weight of its tier, or the
    /// score of the requested strategy.
    pub score: f64,
}

impl Row {
    /// Whether the bounds are what the engine reuses.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let is_sure = self.state == State::Exact || self.is_counted;
        is_sure && self.bounds.lower == self.bounds.upper
    }

    /// Sets the score of the strategy, after the state and the bounds were set. `None` means that
    /// the strategy has no score for this rank.
    pub(in crate::fleet) fn set_score(&mut self, score: Option<f64>) {
        self.score = score.unwrap_or(0.0);
        self.exactness = match (score, self.is_exact()) {
            (None, _) => Exactness::Unknown,
            (Some(_), true) => Exactness::Exact,
            (Some(_), false) => Exactness::Bound,
        };
    }

    /// The row for a rank of which nothing is held for certain, and at most `upper` tokens.
    #[must_use]
    pub fn of_nothing(state: State, upper: u32, tiers: &[TierSet]) -> Self {
        let bounds = Bounds { lower: 0, upper };
        Self {
            state,
            bounds,
            is_counted: false,
            expected: 0,
            exactness: Exactness::Unknown,
            present: 0,
            coming: 0,
            present_soon: 0,
            tiers: tiers.iter().map(|&set| (set, bounds)).collect(),
            limiting: None,
            score: 0.0,
        }
    }
}

/// An answer: `rows[i]` belongs to `roster[i]`. The order is by pod name, then by rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The requested ranks.
    pub roster: Arc<[Member]>,
    /// One row per rank.
    pub rows: Vec<Row>,
    /// The units of work on undecided hashes and on lookahead. They grow with the request and with
    /// what is undecided along it, and hardly faster.
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
