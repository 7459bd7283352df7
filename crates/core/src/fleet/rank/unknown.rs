//! How much an engine's block pool on the GPU may hold of which nothing is known.
//!
//! A pool has a fixed number of blocks, and a cached block holds one entry of one group. Of `N`
//! blocks of which `K` are known to hold an entry, at most `N - K` hold an unknown one. An unknown
//! entry comes into being only where knowledge is lost, because every store is told: so the number
//! never grows by itself, and each removal of an entry that was not known to be there takes one
//! away. A rank that has lost its history therefore comes to know its pool again.
//!
//! Invariant: `PoolKnowledge::unknown` is never smaller than the number of entries on the GPU that are held and not
//! counted, whatever engines say, as long as the rule is in use (`Rank::unknown_on_gpu`).

use super::Rank;
use crate::fleet::pod::publisher::Publisher;
use crate::fleet::state::State;
use crate::fleet::tier::{Tier, TierSet};

impl Rank {
    /// The blocks that can hold an entry: one is the engine's null block.
    fn pool_size(&self) -> Option<u64> {
        let blocks = self.catalog.config.num_gpu_blocks?;
        Some(u64::from(blocks.get()) - 1)
    }

    /// The blocks that are not known to hold an entry.
    fn not_known(&self) -> u64 {
        let size = self.pool_size().unwrap_or(u64::MAX);
        size.saturating_sub(self.slots.num_on_gpu())
    }

    /// The most entries on the GPU that may be held and are not counted; `None` where counting does
    /// not tell: the size of the pool is not given, an entry need not have a block of its own, a
    /// report need not be a new copy, an engine may look up groups that are not listed, or removals
    /// may be missing.
    pub(in crate::fleet) fn unknown_on_gpu(&self) -> Option<u64> {
        let config = &self.catalog.config;
        let topology = self.catalog.topology()?;
        let has_one_each = config.publisher == Publisher::Vllm
            && self.counts_copies
            && !config.full_reports
            && !config.hidden.extra_keys
            && !self.catalog.shows_components
            && !topology.partial_hits
            && !self.slots.channels.has_interior_on_gpu()
            && !self.pool.is_uncounted;
        let is_told = self.catalog.is_configured() && !self.state.missed_removal;
        self.pool_size()?;
        (has_one_each && is_told).then_some(self.pool.unknown)
    }

    /// The same, where it makes a difference: 0 if the history of the GPU is complete.
    pub(in crate::fleet) fn hidden_on_gpu(&self) -> u64 {
        let is_incomplete =
            self.state.forgot.contains(Tier::Gpu) || self.state.feed_state == State::Degraded;
        let hidden = is_incomplete.then(|| self.unknown_on_gpu());
        hidden.flatten().unwrap_or(0)
    }

    /// Whether lost history no longer matters, because nothing unknown is left on the GPU.
    pub(in crate::fleet) fn knows_pool(&self) -> bool {
        self.state.feed_state == State::Degraded && self.unknown_on_gpu() == Some(0)
    }

    /// Whether what is held on these tiers is bounded by what is known, although history is lost.
    pub(in crate::fleet) fn is_bounded_on(&self, tiers: TierSet) -> bool {
        let is_counted = self.unknown_on_gpu().is_some();
        let mut lost = self.state.forgot;
        if is_counted {
            lost.remove(Tier::Gpu);
        }
        let is_known = match self.state.feed_state {
            State::Exact => true,
            State::Degraded => is_counted && tiers == TierSet::GPU,
            State::Rebuilding | State::Stale => false,
        };
        is_known && !lost.overlaps(tiers)
    }

    /// Any block that is not known to hold an entry may hold an unknown one.
    pub(in crate::fleet) fn know_nothing_else(&mut self) {
        self.pool.is_lost = true;
        self.pool.unknown = self.not_known();
    }

    /// The feed has said how completely it knows the history. If some is lost and it has not told of
    /// a loss, anything may be missing since it was complete.
    pub(in crate::fleet) fn note_feed_state(&mut self) {
        match self.state.feed_state {
            State::Exact => self.pool.is_lost = false,
            State::Degraded if !self.pool.is_lost => self.know_nothing_else(),
            State::Degraded | State::Rebuilding | State::Stale => {}
        }
    }

    /// The pool is empty.
    pub(in crate::fleet) fn know_pool_is_empty(&mut self) {
        (self.pool.unknown, self.pool.is_lost) = (0, false);
    }

    /// Entries that are held are forgotten.
    pub(in crate::fleet) fn forget_of_pool(&mut self, entries: u64) {
        self.pool.unknown = self.pool.unknown.saturating_add(entries);
    }

    /// Stores were told on a tier, and not counted.
    pub(in crate::fleet) fn leave_uncounted(&mut self, tier: Tier) {
        self.pool.is_uncounted |= tier == Tier::Gpu;
    }

    /// A store was counted as a whole. If more entries are held than the pool has blocks, its size is wrong, or
    /// entries do not have a block each.
    pub(in crate::fleet) fn count_pool(&mut self) {
        let Some(size) = self.pool_size() else {
            return;
        };
        self.pool.unknown = self.pool.unknown.min(self.not_known());
        if self.slots.num_on_gpu() > size && self.unknown_on_gpu().is_some() {
            self.contradict("contradicts_num_gpu_blocks");
        }
    }

    /// Entries of a group were removed that were not counted. Where entries may end inside blocks,
    /// they may have been such, which are not looked up and do not count.
    pub(in crate::fleet) fn remove_unknown(&mut self, group: u16, tier: Tier, entries: u64) {
        let groups = self.catalog.configured_groups();
        let block = groups.and_then(|groups| groups.get(usize::from(group)));
        let hash = self.catalog.configured_hash_block();
        if tier == Tier::Gpu && block.is_some_and(|group| Some(group.block_size) == hash) {
            self.pool.unknown = self.pool.unknown.saturating_sub(entries);
        }
    }
}
