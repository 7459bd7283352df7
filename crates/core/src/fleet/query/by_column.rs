//! The rows of an answer while they are being filled, found by the columns of their ranks.

use super::answer::Row;
use crate::fleet::tier::TierSet;

/// The rows that are being filled, found by column.
pub(in crate::fleet) struct RowsByColumn<'a> {
    pub(in crate::fleet) rows: &'a mut [Row],
    /// For each row, what is likely over all tiers.
    pub(in crate::fleet) likely: &'a mut [Likely],
    pub(in crate::fleet) positions: &'a [usize],
    /// The sets of tiers that each row is answered for.
    pub(in crate::fleet) tier_sets: &'a [TierSet],
}

impl RowsByColumn<'_> {
    pub(in crate::fleet) fn row(&mut self, column: usize) -> &mut Row {
        &mut self.rows[self.positions[column]]
    }

    pub(in crate::fleet) fn likely(&mut self, column: usize) -> &mut Likely {
        &mut self.likely[self.positions[column]]
    }
}

/// The tokens that one rank most likely reuses.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::fleet) struct Likely {
    /// From all tiers together.
    pub tokens: u32,
    /// From the GPU alone.
    pub on_gpu: u32,
}

impl Likely {
    /// Takes in the number for one set of tiers.
    pub(in crate::fleet) fn add(&mut self, set: TierSet, tokens: u32) {
        self.tokens = self.tokens.max(tokens);
        if set == TierSet::GPU {
            self.on_gpu = tokens;
        }
    }
}
