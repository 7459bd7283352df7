//! What batches may ask of what is undecided of one rank, in work and in memory.
//!
//! Law: whatever a batch says, its effort is bounded by its size and by what quiet batches before it
//! left, and limbo is above its limit by one batch at most. Beyond either, everything undecided is
//! forgotten, which makes the rank's answers bounds, and a reason is counted. It happens between
//! batches, when nobody holds slots.

use super::effort::MOST_EFFORT_KEPT;
use super::rank::Rank;

/// Units of effort that a store earns per hash that it lists.
const UNITS_PER_HASH: usize = 1;
/// Tokens of a store that earn one unit of effort.
const TOKENS_PER_UNIT: u32 = 4;

impl Rank {
    /// A batch begins: what earlier ones left of the effort is kept up to a bound, so that a quiet
    /// rank may once do much, and none may for long.
    pub(super) fn begin_batch(&mut self) {
        self.effort.renew(MOST_EFFORT_KEPT);
    }

    /// A store's own size pays for looking at what is undecided.
    pub(super) fn earn(&mut self, num_hashes: u32, num_tokens: u32) {
        let tokens = num_tokens / TOKENS_PER_UNIT;
        self.effort
            .earn(num_hashes as usize * UNITS_PER_HASH + tokens as usize);
    }

    /// A batch ends, and nobody holds slots any more: too much work or memory is given up. Returns
    /// the units of effort that the batch took.
    pub(super) fn end_batch(&mut self) -> u64 {
        if self.effort.is_exhausted() {
            self.evict_limbo();
            self.refuse("too_much_undecided", 1);
        }
        self.bound_limbo();
        self.effort.spent()
    }

    /// Brings limbo under its limit. What nothing held depends on goes first, where that is half of
    /// it; else everything goes, so that the next look is as many bytes away.
    pub(super) fn bound_limbo(&mut self) {
        if self.limbo.bytes() <= self.limbo_limit {
            return;
        }
        self.limbo.sweep_if_half_goes(&mut self.slots);
        if self.limbo.bytes() > self.limbo_limit / 2 {
            self.evict_limbo();
            self.refuse("forgotten_undecided", 1);
        }
    }
}
