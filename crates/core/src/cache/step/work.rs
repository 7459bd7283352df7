//! The work of the device before a step runs: copies to make, and blocks to zero.
//!
//! Both ends of a copy are held from the moment when the copy is decided on. They are dropped when
//! the next step starts, unless the caller of `take_work` frees them itself:
//!
//! ```text
//! allocate      decides on a copy; both ends get a reference
//! take_work     hands the copy out; the references stay
//! start_step    the copy has been made: the references go
//! ```
//! A copy that was decided on but not taken yet is kept until it is taken.

use hashbrown::HashMap;

use super::io::{KeptState, Work};
use super::zeroing::all_unwritten;
use crate::blocks::BlockId;
use crate::cache::Cache;
use crate::cache::group::Group;
use crate::error::Result;

impl Cache {
    /// Starts a new step, because the step before has run. The blocks and states that it registered
    /// are now written, and the ends of the copies that were taken for it are freed.
    pub fn start_step(&mut self) {
        if !self.core.config.follows_vllm {
            self.core.steps.begin();
        }
        self.core.fresh.clear();
        self.core.being_written.clear();
        self.core.kept_states.clear();
        let ends = std::mem::take(&mut self.core.being_copied);
        self.core.pool.free(ends);
    }

    /// Takes the work of a step, which the device is given now. Both ends of each copy are held until the next step starts or, if
    /// `caller_frees`, until the caller frees them.
    pub fn take_work(&mut self, caller_frees: bool) -> Work {
        let core = &mut self.core;
        core.steps.give();
        let copies: Vec<_> = core.copies.iter_mut().flat_map(std::mem::take).collect();
        let ends = copies.iter().flat_map(|copy| copy.ends());
        if caller_frees {
            core.held.add(ends);
        } else {
            core.being_copied.extend(ends);
        }
        Work {
            copies,
            blocks_to_zero: core.zeroing.take(),
            kept_states: std::mem::take(&mut core.kept_states),
        }
    }

    /// Lists a request's blocks from `start_token` on for zeroing, in the groups that need it. A
    /// ring is listed whole, and blocks for an encoder's tokens never, because no load fills them.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` if `start_token` is inside a block, or if others hold or
    /// find a block. Then nothing has changed.
    pub fn record_blocks_for_zeroing(&mut self, id: u64, start_token: u32) -> Result<()> {
        self.with(id, |core, request| {
            let pool = &core.pool;
            let has_others =
                |_: &Group, _: usize, block| pool.refs(block) > 1 || pool.key(block).is_some();
            let unwritten = all_unwritten(&core.groups, request, start_token, has_others)?;
            core.zeroing.list(unwritten);
            Ok(())
        })
    }

    /// Takes, for each group, the state at the last boundary of a request's prompt, if that lies
    /// inside a block. The block holds this state as long as no more tokens are computed.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn take_state_tails(&mut self, id: u64) -> Result<Vec<KeptState>> {
        self.with(id, |_, request| {
            let tables = (0u16..).zip(request.tables_mut());
            let tails = tables.filter_map(|(group, table)| {
                let tail = table.state.tail.take()?;
                Some(KeptState {
                    request: id,
                    group,
                    block: tail.block,
                    num_tokens: tail.num_tokens,
                })
            });
            Ok(tails.collect())
        })
    }

    /// Forgets everything that is cached, unless a block is in use. Returns whether it did so. The
    /// ends of a copy that was taken do not count as in use, because no request reads them by their
    /// hashes.
    pub fn reset(&mut self) -> bool {
        let pool = &self.core.pool;
        if self.num_free_blocks() + self.num_only_copied() + 1 != pool.num_blocks() {
            return false;
        }
        if let Some(checkpoints) = &mut self.core.checkpoints {
            checkpoints.clear(&mut self.core.pool);
        }
        self.core.pool.clear();
        self.core.steps.clear();
        self.core.fresh.clear();
        self.core.being_written.clear();
        self.core.log.cleared();
        true
    }

    /// The number of blocks that are held only by copies which were taken in this step.
    fn num_only_copied(&self) -> usize {
        let mut held: HashMap<BlockId, u32> = HashMap::new();
        for &block in &self.core.being_copied {
            *held.entry(block).or_insert(0) += 1;
        }
        let is_only_copied =
            |(block, count): &(&BlockId, &u32)| self.core.pool.refs(**block) == **count;
        held.iter().filter(is_only_copied).count()
    }

    /// The references that copies hold: copies that were decided on, and copies taken in this step
    /// whose ends the caller does not free.
    pub(in crate::cache) fn held_by_copies(&self) -> impl Iterator<Item = BlockId> {
        let pending = self.core.copies.iter().flatten();
        let ends = pending.flat_map(|copy| copy.ends());
        ends.chain(self.core.being_copied.iter().copied())
    }
}
