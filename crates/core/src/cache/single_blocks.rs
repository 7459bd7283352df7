//! Calls on single blocks, apart from any request: connectors pin blocks and fill them, and some make
//! a block findable under a hash of their own.
//!
//! The caller frees what it takes or holds here. No event tells of a hash that is given or taken away
//! here; evictions are recorded as always.

use std::ops::Range;

use super::Cache;
use super::retention::Keep;
use super::step::Need;
use crate::blocks::{BlockId, Key, NULL_BLOCK};
use crate::error::{Error, Result};
use crate::hash::Digest;
use hashbrown::HashMap;

impl Cache {
    /// Takes the next victims, with one reference each.
    ///
    /// # Errors
    /// `InvalidValue` if fewer are free; nothing has changed.
    pub fn take_blocks(&mut self, count: usize) -> Result<Vec<BlockId>> {
        let free = self.num_free_blocks();
        if count > free {
            return Err(Error::InvalidValue(format!(
                "{count} blocks asked for, {free} are free"
            )));
        }
        let mut taken = Vec::with_capacity(count);
        self.core.take(count, &mut taken);
        Ok(taken)
    }

    /// Blocks that `allocate` would take for a need, with those of its hit that are free; negative
    /// where the request has some to spare, and more than there are where it has to wait for the
    /// next step. `is_admission`: as if a group never held more than it reserves.
    ///
    /// # Errors
    /// As `allocate`; nothing changes.
    pub fn blocks_needed(&mut self, need: &Need, is_admission: bool) -> Result<i64> {
        self.with(need.request, |core, request| {
            core.blocks_needed(request, need, is_admission)
        })
    }

    /// Takes one more reference of each block, out of the free queue where it is the first.
    ///
    /// # Errors
    /// `UnknownBlock`; nothing has changed.
    pub fn hold_blocks(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        for &block in blocks {
            self.core.pool.touch(block);
        }
        Ok(())
    }

    /// Drops one reference each; what is given first is evicted first.
    ///
    /// # Errors
    /// `UnknownBlock`; `InvalidValue` for a block that has no such reference; nothing has changed.
    pub fn free_blocks(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        let mut dropped: HashMap<BlockId, u32> = HashMap::new();
        for &block in blocks.iter().filter(|block| **block != NULL_BLOCK) {
            let count = dropped.entry(block).or_insert(0);
            *count += 1;
            if *count > self.core.pool.refs(block) {
                return Err(Error::InvalidValue(format!(
                    "block {block} is freed {count} times, but has {} references",
                    self.core.pool.refs(block)
                )));
            }
        }
        self.core.pool.free(blocks.iter().copied());
        Ok(())
    }

    pub(super) fn check_blocks(&self, blocks: &[BlockId]) -> Result<()> {
        let num_blocks = self.core.pool.num_blocks();
        match blocks.iter().find(|block| block.index() >= num_blocks) {
            Some(&block) => Err(Error::UnknownBlock { block, num_blocks }),
            None => Ok(()),
        }
    }

    /// Drops the hashes of blocks, in this order; blocks stay with their owners.
    ///
    /// # Errors
    /// `UnknownBlock`; nothing has changed.
    pub fn forget(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        for &block in blocks {
            self.core.forget(block);
        }
        self.forget_quiet_steps();
        Ok(())
    }

    /// Makes a block findable in a group by a hash, after the blocks that are found by it already.
    /// The first hash of a block says how many tokens it covers.
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
        self.core.pool.register(block, key, num_tokens);
        Ok(())
    }

    /// Takes one hash of a block away; returns whether the block was found by it.
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

    /// The blocks that are found in a group by a hash, oldest first.
    #[must_use]
    pub fn holders(&self, group: u16, digest: &Digest) -> Vec<BlockId> {
        self.key_if_held(group, digest)
            .map(|key| self.core.pool.index.copies(key).collect())
            .unwrap_or_default()
    }

    /// Which of a group's blocks at these positions the retention keeps of a request, if others are
    /// expected to resume at `boundaries`, in tokens; `None`: all of them.
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
