//! Calls on single blocks, apart from any request: for connectors, which pin blocks and fill them,
//! and for whoever makes a block findable under a hash of its own.
//!
//! What a caller takes or holds here is its own to free. A hash that is given or taken away here is
//! told to nobody; what eviction takes is recorded as ever.

use super::group::Keep;
use super::{Cache, Digest, Error, Need, Result};
use crate::blocks::{BlockId, Key, NULL_BLOCK};

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
        self.store.take(count, &mut taken);
        Ok(taken)
    }

    /// Blocks that `allocate` would take for a need, with those of its hit that are free; negative
    /// where the request has some to spare, and more than there are where it has to wait for the
    /// next step. `is_admission`: as if a group never held more than it reserves.
    ///
    /// # Errors
    /// As `allocate`; nothing changes.
    pub fn blocks_needed(&mut self, need: &Need, is_admission: bool) -> Result<i64> {
        self.with(need.request, |store, request| {
            store.blocks_needed(request, need, is_admission)
        })
    }

    /// Takes one more reference of each block, out of the free queue where it is the first.
    ///
    /// # Errors
    /// `InvalidValue` for a block that does not exist; nothing has changed.
    pub fn hold_blocks(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        for &block in blocks {
            self.store.pool.touch(block);
        }
        Ok(())
    }

    /// Makes a block findable in a group by a hash, behind the blocks that are found by it already.
    /// The first hash of a block says how many tokens it covers.
    ///
    /// # Errors
    /// `InvalidValue` for a block or a group that does not exist, and for the null block.
    pub fn register(
        &mut self,
        block: BlockId,
        (group, digest): (u16, &Digest),
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
        let key = self.store.pool.key_of(digest, group, None);
        self.store.pool.register(block, key, num_tokens);
        Ok(())
    }

    /// Takes one hash of a block away; returns whether the block was found by it.
    pub fn unregister(&mut self, block: BlockId, (group, digest): (u16, &Digest)) -> bool {
        let Some(key) = self.key_if_held((group, digest)) else {
            return false;
        };
        let is_found = self.store.pool.index.copies(key).any(|copy| copy == block);
        if is_found {
            self.store.drop_checkpoints_of(block);
            self.store.pool.unregister_key(block, key);
            self.forget_quiet_steps();
        }
        is_found
    }

    /// The blocks that are found in a group by a hash, oldest first.
    #[must_use]
    pub fn holders(&self, group: u16, digest: &Digest) -> Vec<BlockId> {
        self.key_if_held((group, digest))
            .map(|key| self.store.pool.index.copies(key).collect())
            .unwrap_or_default()
    }

    /// Which of a group's blocks `start..end` the retention keeps of a request, if others are
    /// expected to resume at `boundaries`, in tokens; `None`: all of them.
    ///
    /// # Errors
    /// `InvalidValue` for a group that does not exist.
    pub fn kept_blocks(
        &self,
        group: u16,
        (start, end): (u32, u32),
        boundaries: &[u32],
    ) -> Result<Option<Vec<bool>>> {
        let Some(group) = self.store.groups.get(usize::from(group)) else {
            return Err(Error::InvalidValue(format!(
                "group {group} does not exist; there are {}",
                self.num_groups()
            )));
        };
        let alignment = self.store.config.hit_alignment();
        let keep = Keep::new(group, self.store.config.retention, alignment, boundaries);
        Ok(keep.map(|keep| (start..end).map(|block| keep.keeps(block)).collect()))
    }

    fn key_if_held(&self, (group, digest): (u16, &Digest)) -> Option<Key> {
        let entry = self.store.pool.index.find(digest)?;
        (usize::from(group) < self.num_groups()).then_some(Key { entry, group })
    }
}
