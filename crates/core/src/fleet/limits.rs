//! How much an index holds, and what it forgets above its limits.

use super::Index;
use super::model::Model;

/// No engine has more data-parallel ranks than this.
pub(super) const MAX_RANKS: u32 = 4096;

/// Memory is compared with its limit once in so many batches: measuring walks every rank.
pub(super) const CHECK_EVERY: u32 = 256;

impl Index {
    /// Bytes held, by capacity and estimate.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.models.values().map(Model::bytes).sum::<usize>() + self.decoder.arena_bytes()
    }

    /// Brings memory under its limits now (it happens by itself from time to time).
    pub fn enforce_limits(&mut self) {
        let limit = self.options.limbo_limit_bytes;
        for model in self.models.values_mut() {
            for column in 0..model.ranks.len() {
                model.with_rank(column, |rank, shared| {
                    if rank.limbo.bytes() > limit {
                        rank.evict_limbo(shared);
                        rank.refuse("forgotten_undecided", 1);
                    }
                });
            }
        }
        if self.options.memory_limit_bytes > 0 && self.bytes() > self.options.memory_limit_bytes {
            self.models.values_mut().for_each(Model::forget_oldest);
        }
    }
}
