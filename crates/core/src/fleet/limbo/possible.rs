//! Boundaries of one request where undecided hashes may stand.
//!
//! The boundaries are kept as one bit each, separately for each kind of copy. The size therefore
//! depends on the length of the request only, however many hashes may stand at one boundary. Which
//! hash that might be is not kept.

use hashbrown::HashMap;

use crate::fleet::tier::Tier;

/// What the rule needs to know of a copy: its group, whether it is a whole or an interior block,
/// its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CopyKind {
    /// Group index on the wire.
    pub group: u16,
    /// Whether the copy is smaller than the group's block.
    pub partial: bool,
    /// The tier that the copy is on.
    pub tier: Tier,
}

/// Boundaries where copies of one kind may stand, counted in units of the positions, from 1 on.
#[derive(Debug, Default)]
pub(crate) struct PossibleBoundaries {
    anywhere: bool,
    /// Bit `i % 64` of word `i / 64`: boundary `i + 1`.
    bits: Vec<u64>,
}

impl PossibleBoundaries {
    /// Adds boundary `at`, counted in units from 1 on.
    pub(super) fn insert(&mut self, at: usize) {
        let (word, bit) = ((at - 1) / 64, (at - 1) % 64);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] |= 1 << bit;
    }

    fn is_empty(&self) -> bool {
        !self.anywhere && self.bits.is_empty()
    }

    /// Calls `show` with each boundary up to `count`.
    pub(crate) fn each(&self, count: usize, mut show: impl FnMut(usize)) {
        if self.anywhere {
            (1..=count).for_each(show);
            return;
        }
        for (at, &word) in self.bits.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                show(at * 64 + left.trailing_zeros() as usize + 1);
                left &= left - 1;
            }
        }
    }
}

/// Boundaries of a request where undecided hashes of one rank may stand.
#[derive(Debug, Default)]
pub(crate) struct Possible {
    places: HashMap<CopyKind, PossibleBoundaries>,
    /// Tokens from one position to the next.
    pub unit: u32,
    /// Whether nothing can be excluded, because there was more to look at than one answer may.
    pub everything: bool,
}

impl Possible {
    /// An empty set for positions with this unit.
    #[must_use]
    pub(super) fn along(unit: u32) -> Self {
        Self {
            unit,
            ..Self::default()
        }
    }

    /// Whether no undecided hash may stand at any boundary.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        !self.everything && self.places.values().all(PossibleBoundaries::is_empty)
    }

    /// Each kind of copy, with the boundaries where copies of that kind may stand.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CopyKind, &PossibleBoundaries)> {
        self.places.iter().map(|(&kind, places)| (kind, places))
    }

    /// The boundaries where copies of this kind may stand.
    pub(super) fn places(&mut self, kind: CopyKind) -> &mut PossibleBoundaries {
        self.places.entry(kind).or_default()
    }

    /// Notes that copies of this kind may stand at every boundary.
    pub(super) fn insert_anywhere(&mut self, kind: CopyKind) {
        self.places.entry(kind).or_default().anywhere = true;
    }
}
