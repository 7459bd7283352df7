//! What the device has to do before a step runs: copies to make, blocks to zero.
//!
//! Both ends of a copy are held from the moment that the copy is decided on. Who takes the work of a
//! step drops them when the step has run; else the next step does, as it starts:
//!
//! ```text
//! allocate      decides on a copy; both ends get a reference
//! take_work     hands the copy out; the references stay
//! start_step    the copy has been made: the references go
//! ```
//! A copy that was decided on and not taken is kept until it is taken.

use hashbrown::HashMap;

use super::state::KeptState;
use super::{BlockId, Cache};

/// A copy to be made before a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub source: BlockId,
    /// The block to write.
    pub destination: BlockId,
}

impl BlockCopy {
    fn ends(&self) -> [BlockId; 2] {
        [self.source, self.destination]
    }
}

/// The work of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Blocks to copy, in this order.
    pub copies: Vec<BlockCopy>,
    /// New blocks of groups that need zeroing.
    pub blocks_to_zero: Vec<BlockId>,
    /// States that became findable in this step; those of requests that ended are not among them.
    pub kept_states: Vec<KeptState>,
}

impl Cache {
    /// A new step: the one before has run. The states that it registered are written, and the ends
    /// of the copies that were taken for it are freed.
    pub fn start_step(&mut self) {
        self.store.fresh.clear();
        self.store.kept_states.clear();
        let ends = std::mem::take(&mut self.store.being_copied);
        self.store.pool.free(ends);
    }

    /// Takes the work of a step. Both ends of each copy are held until the next step starts, or,
    /// if `caller_frees`, until the caller frees them.
    pub fn take_work(&mut self, caller_frees: bool) -> Work {
        let store = &mut self.store;
        let copies: Vec<_> = store.copies.iter_mut().flat_map(std::mem::take).collect();
        if !caller_frees {
            store
                .being_copied
                .extend(copies.iter().flat_map(BlockCopy::ends));
        }
        Work {
            copies,
            blocks_to_zero: store.to_zero.iter_mut().flat_map(std::mem::take).collect(),
            kept_states: std::mem::take(&mut store.kept_states),
        }
    }

    /// Forgets everything that is cached, unless a block is in use; returns whether it was done.
    /// A copy that was taken is no use: nobody reads its ends by their hashes.
    pub fn reset(&mut self) -> bool {
        let pool = &self.store.pool;
        if self.num_free_blocks() + self.num_only_copied() + 1 != pool.num_blocks() {
            return false;
        }
        self.store.forget_checkpoints();
        self.store.pool.clear();
        self.store.fresh.clear();
        self.store.log.cleared();
        true
    }

    /// Blocks that nothing holds but copies which were taken in this step.
    fn num_only_copied(&self) -> usize {
        let mut held: HashMap<BlockId, u32> = HashMap::new();
        for &block in &self.store.being_copied {
            *held.entry(block).or_insert(0) += 1;
        }
        let is_only_copied =
            |(block, count): &(&BlockId, &u32)| self.store.pool.refs(**block) == **count;
        held.iter().filter(is_only_copied).count()
    }

    /// References that copies hold: of those decided on, and of those taken in this step.
    pub(super) fn held_by_copies(&self) -> impl Iterator<Item = BlockId> {
        let pending = self.store.copies.iter().flatten();
        let ends = pending.flat_map(BlockCopy::ends);
        ends.chain(self.store.being_copied.iter().copied())
    }
}
