//! What a request gets back: bounds per rank and set of tiers.

use smallvec::SmallVec;

use super::rank::State;
use super::tier::Tier;

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TierSet(u8);

impl TierSet {
    /// The accelerator alone.
    pub const GPU: Self = Self(1);

    /// Whether it has the tier.
    #[must_use]
    pub fn contains(self, tier: Tier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// Whether it has no tier.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether both have some tier.
    #[must_use]
    pub(super) fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds a tier.
    pub(super) fn insert(&mut self, tier: Tier) {
        self.0 |= 1 << tier as u8;
    }

    /// Takes a tier out.
    pub(super) fn remove(&mut self, tier: Tier) {
        self.0 &= !(1 << tier as u8);
    }

    /// Its tiers, nearest first.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |t| self.contains(*t))
    }

    /// GPU, then each further tier of `present` added in turn.
    #[must_use]
    pub fn cumulative(present: Self) -> Vec<Self> {
        let mut sets = vec![Self::GPU];
        let mut set = Self::GPU;
        for tier in present.iter().filter(|t| *t != Tier::Gpu) {
            set.0 |= 1 << tier as u8;
            sets.push(set);
        }
        sets
    }

    /// The name in answers: `gpu`, `gpu+cpu`, …
    #[must_use]
    pub fn name(self) -> String {
        self.iter().map(Tier::name).collect::<Vec<_>>().join("+")
    }
}

impl FromIterator<Tier> for TierSet {
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        Self(
            tiers
                .into_iter()
                .fold(0, |bits, tier| bits | 1 << tier as u8),
        )
    }
}

/// Reusable tokens: at least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// At least this many.
    pub lower: u32,
    /// At most this many.
    pub upper: u32,
}

/// What a token is worth on each tier, in the order of `Tier::ALL`.
pub type Weights = [f64; 3];

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
