//! Calls on single blocks, without any request. Connectors hold blocks and fill them, and some make
//! a block findable under a hash of their own.
//!
//! The caller frees what it takes or holds here, and `held` counts that. No event tells about a
//! hash that is given or removed here, but evictions are recorded as always.

use std::ops::Range;

use super::shared_prefix::num_common_blocks;
use crate::blocks::{Author, BlockId, Key, NULL_BLOCK};
use crate::cache::Cache;
use crate::cache::retention::Keep;
use crate::cache::step::io::Need;
use crate::cache::step::plan::Plan;
use crate::error::{Error, Result};
use crate::hash::Digest;

impl Cache {
    /// Takes the next victims and gives each one reference.
    ///
    /// # Errors
    /// `InvalidValue` if fewer blocks are free. Then nothing has changed.
    pub fn take_blocks(&mut self, count: usize) -> Result<Vec<BlockId>> {
        let free = self.num_free_blocks();
        if count > free {
            return Err(Error::InvalidValue(format!(
                "{count} blocks asked for, {free} are free"
            )));
        }
        let mut taken = Vec::with_capacity(count);
        self.core.take(count, &mut taken);
        self.core.held.add(taken.iter().copied());
        Ok(taken)
    }

    /// The number of blocks that `allocate` would take for a need, including the free ones of its
    /// hit. It is negative if the request has some to spare, and larger than the pool if the
    /// request has to wait for the next step. With `is_admission`, no group counts more than it
    /// reserves.
    ///
    /// # Errors
    /// The same as for `allocate`; nothing changes.
    pub fn blocks_needed(&mut self, need: &Need, is_admission: bool) -> Result<i64> {
        self.with(need.request, |core, request| {
            let plan = Plan::new(core, request, need)?;
            Ok(plan.blocks_needed(core, request, is_admission))
        })
    }

    /// Adds a reference to each block. The first one takes the block out of the free queue.
    ///
    /// # Errors
    /// `UnknownBlock`. Then nothing has changed.
    pub fn hold_blocks(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        for &block in blocks {
            self.core.pool.touch(block);
        }
        let num_held = self.core.held.add(blocks.iter().copied());
        self.core.statistics.num_held_blocks += num_held;
        Ok(())
    }

    /// Drops one reference of each block that the caller holds. The first block given is evicted
    /// first.
    ///
    /// # Errors
    /// `UnknownBlock`; `InvalidValue` for a block that the caller does not hold as often. Then
    /// nothing has changed.
    pub fn free_blocks(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        self.core.held.remove(blocks)?;
        self.core.pool.free(blocks.iter().copied());
        Ok(())
    }

    /// The number of blocks of which the caller holds a reference.
    #[must_use]
    pub fn num_held_blocks(&self) -> usize {
        self.core.held.num_blocks()
    }

    pub(in crate::cache) fn check_blocks(&self, blocks: &[BlockId]) -> Result<()> {
        let num_blocks = self.core.pool.num_blocks();
        match blocks.iter().find(|block| block.index() >= num_blocks) {
            Some(&block) => Err(Error::UnknownBlock { block, num_blocks }),
            None => Ok(()),
        }
    }

    /// For each group, the number of leading blocks that all of these requests hold. The count ends
    /// at a block that was given back, because that block is no longer read.
    ///
    /// # Errors
    /// `UnknownRequest` or `GivenTwice`.
    pub fn num_common_prefix_blocks(&self, ids: &[u64]) -> Result<Vec<u32>> {
        self.check_distinct(ids.iter().copied())?;
        let tables = ids.iter().filter_map(|&id| self.tables(id).ok());
        Ok(num_common_blocks(tables).unwrap_or_else(|| vec![0; self.num_groups()]))
    }

    /// Drops the hashes of blocks, in this order. The blocks stay with their owners.
    ///
    /// # Errors
    /// `UnknownBlock`. Then nothing has changed.
    pub fn forget(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        for &block in blocks {
            self.core.forget(block);
        }
        self.forget_quiet_steps();
        Ok(())
    }

    /// Makes a block findable in a group by a hash, after the blocks that the hash already finds.
    /// `num_tokens` is how many tokens the hash covers; it is kept for the block's first hash only.
    ///
    /// # Errors
    /// `UnknownBlock`; `InvalidValue` for a group that does not exist, and for the null block.
    pub fn register(
        &mut self,
        block: BlockId,
        group: u16,
        digest: &Digest,
        num_tokens: u32,
    ) -> Result<()> {
        self.check_blocks(&[block])?;
        let num_groups = self.num_groups();
        if block == NULL_BLOCK || usize::from(group) >= num_groups {
            return Err(Error::InvalidValue(format!(
                "block {block} in group {group}: the null block is never cached, and there are \
                 {num_groups} groups"
            )));
        }
        let key = self.core.pool.key_of(digest, group, None);
        let pool = &mut self.core.pool;
        pool.register(block, key, num_tokens, Author::NOBODY);
        Ok(())
    }

    /// Removes one hash of a block. Returns whether the hash found the block.
    pub fn unregister(&mut self, block: BlockId, group: u16, digest: &Digest) -> bool {
        let Some(key) = self.key_if_held(group, digest) else {
            return false;
        };
        let is_found = self.core.pool.index.copies(key).any(|copy| copy == block);
        if is_found {
            self.core.drop_checkpoints_of(block);
            self.core.pool.unregister_key(block, key);
            self.forget_quiet_steps();
        }
        is_found
    }

    /// The blocks of a group that a hash finds, oldest first.
    #[must_use]
    pub fn holders(&self, group: u16, digest: &Digest) -> Vec<BlockId> {
        self.key_if_held(group, digest)
            .map(|key| self.core.pool.index.copies(key).collect())
            .unwrap_or_default()
    }

    /// For each of these positions of a group, whether the retention keeps the block of a request,
    /// if other requests are expected to resume at `boundaries`, in tokens. `None` means all of
    /// them.
    ///
    /// # Errors
    /// `InvalidValue` for a group that does not exist.
    pub fn kept_blocks(
        &self,
        group: u16,
        positions: Range<u32>,
        boundaries: &[u32],
    ) -> Result<Option<Vec<bool>>> {
        let Some(group) = self.core.groups.get(usize::from(group)) else {
            return Err(Error::InvalidValue(format!(
                "group {group} does not exist; there are {}",
                self.num_groups()
            )));
        };
        let alignment = self.core.config.hit_alignment();
        let keep = Keep::new(group, self.core.config.retention, alignment, boundaries);
        Ok(keep.map(|keep| positions.map(|block| keep.keeps(block)).collect()))
    }

    fn key_if_held(&self, group: u16, digest: &Digest) -> Option<Key> {
        let entry = self.core.pool.index.find(digest)?;
        (usize::from(group) < self.num_groups()).then_some(Key { entry, group })
    }
}
