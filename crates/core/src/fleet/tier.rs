//! Where a copy is kept, nearest tier first, and sets of such tiers.

use serde::{Deserialize, Serialize};

/// The tiers in order of distance from the accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// On the accelerator.
    Gpu,
    /// In the host's memory.
    Cpu,
    /// On disk, on another host, or anywhere else that a connector keeps it.
    Storage,
}

impl Tier {
    /// All tiers, nearest first.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Cpu, Self::Storage];

    /// The name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Storage => "storage",
        }
    }
}

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct TierSet(u8);

impl TierSet {
    /// The accelerator alone.
    pub const GPU: Self = Self(1);

    /// Whether the set has the tier.
    #[must_use]
    pub fn contains(self, tier: Tier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the two sets have a tier in common.
    #[must_use]
    pub(super) fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds a tier.
    pub(super) fn insert(&mut self, tier: Tier) {
        self.0 |= 1 << tier as u8;
    }

    /// Removes a tier.
    pub(super) fn remove(&mut self, tier: Tier) {
        self.0 &= !(1 << tier as u8);
    }

    /// The tiers of the set, nearest first.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |t| self.contains(*t))
    }

    /// The set of GPU alone, then the sets with each further tier of `present` added in turn.
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
