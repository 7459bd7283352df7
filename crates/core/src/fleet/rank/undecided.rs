//! What batches may spend on the undecided hashes of one rank, in work and in memory.
//!
//! Invariant: whatever a batch says, its effort is bounded by its own size and by what quiet batches
//! before it left, and limbo is above its limit by at most one batch. Beyond either bound,
//! everything undecided is forgotten. This makes the rank's answers bounds, and a reason is
//! counted. It happens between batches, when no batch uses slots.

use super::Rank;
use crate::fleet::effort::MOST_EFFORT_KEPT;

/// The units of effort that a store earns per listed hash.
const UNITS_PER_HASH: usize = 1;
/// The number of tokens of a store that earn one unit of effort.
const TOKENS_PER_UNIT: u32 = 4;

impl Rank {
    /// Begins a batch. The effort that earlier batches left is kept up to a bound, so a quiet rank
    /// may do much work once, but no rank may do so for long.
    pub(in crate::fleet) fn begin_batch(&mut self) {
        self.effort.renew(MOST_EFFORT_KEPT);
    }

    /// Adds the effort that a store earns by its own size, for looking at what is undecided.
    pub(in crate::fleet) fn earn(&mut self, num_hashes: u32, num_tokens: u32) {
        let tokens = num_tokens / TOKENS_PER_UNIT;
        self.effort
            .earn(num_hashes as usize * UNITS_PER_HASH + tokens as usize);
    }

    /// Ends a batch, when its slots are no longer used: forgets what is undecided if it took too
    /// much work or memory. Returns the units of effort that the batch took.
    pub(in crate::fleet) fn end_batch(&mut self) -> u64 {
        if self.effort.is_exhausted() {
            self.evict_limbo();
            self.counts.refuse("too_much_undecided", 1);
        }
        self.bound_limbo();
        self.effort.spent()
    }

    /// Brings limbo under its limit. Hashes that no held hash depends on go first, if at least half
    /// of limbo consists of them. If limbo is then still above half of its limit, everything goes,
    /// so the next check is at least half of the limit away.
    pub(in crate::fleet) fn bound_limbo(&mut self) {
        if self.limbo.bytes() <= self.limbo_limit {
            return;
        }
        self.limbo.sweep_if_half_goes(&mut self.slots);
        if self.limbo.bytes() > self.limbo_limit / 2 {
            self.evict_limbo();
            self.counts.refuse("forgotten_undecided", 1);
        }
    }
}
