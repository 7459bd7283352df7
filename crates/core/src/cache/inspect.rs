//! What a cache shows about itself, for statistics, tests and people. Nothing here changes the
//! cache.

use super::Cache;
use super::retention::{Checkpoint, Checkpoints};
use super::step::io::{BlockInfo, TableProgress};
use crate::blocks::{BlockId, NULL_BLOCK};
use crate::error::Result;
use crate::hash::Digest;

impl Cache {
    /// Describes each of the blocks.
    ///
    /// # Errors
    /// `InvalidValue` for a block that does not exist.
    pub fn describe(&self, blocks: &[BlockId]) -> Result<Vec<BlockInfo>> {
        self.check_blocks(blocks)?;
        let pool = &self.core.pool;
        let key = |block: BlockId| {
            let key = pool.key(block)?;
            let digest = *pool.index.digest(key.entry);
            Some((
                key.group,
                digest,
                pool.num_tokens(block),
                pool.author(block),
            ))
        };
        let describe = |&block: &BlockId| BlockInfo {
            num_references: pool.refs(block),
            key: key(block),
        };
        Ok(blocks.iter().map(describe).collect())
    }

    /// The groups and hashes of the states that are written in this step. No request can resume
    /// from them before the next step.
    pub fn fresh_states(&self) -> impl Iterator<Item = (u16, &Digest)> {
        let fresh = self.core.fresh.iter();
        fresh.map(|(digest, group)| (*group, digest))
    }

    /// How far each table of a request has been processed.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn cursors(&self, id: u64) -> Result<impl Iterator<Item = TableProgress>> {
        let tables = self.request(id)?.tables().iter();
        Ok(tables.map(|table| TableProgress {
            num_registered: table.num_cached,
            last_state: table.state.last,
        }))
    }

    /// Everything findable: group, hash, and the copies, oldest first. This visits the whole index.
    pub fn cached(&self) -> impl Iterator<Item = (u16, &Digest, Vec<BlockId>)> {
        let index = &self.core.pool.index;
        index.keys().map(|key| {
            (
                key.group,
                index.digest(key.entry),
                index.copies(key).collect(),
            )
        })
    }

    /// The free queue, next victim first. Blocks that checkpoints keep are not in it.
    pub fn free_queue(&self) -> impl Iterator<Item = BlockId> {
        self.core.pool.queue()
    }

    /// The checkpoints that can be let go when the free queue is empty, least value first, under
    /// retention by value.
    pub fn checkpoints(&self) -> impl Iterator<Item = Checkpoint> {
        let checkpoints = self.core.checkpoints.iter();
        checkpoints.flat_map(|all| all.queued(&self.core.pool))
    }

    /// The bytes held by blocks, hashes and checkpoints, by capacity. This visits the checkpoints.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let checkpoints = self.core.checkpoints.as_ref();
        self.core.pool.bytes() + checkpoints.map_or(0, Checkpoints::bytes)
    }

    /// Checks everything. `outside` are the references that the caller holds.
    ///
    /// # Panics
    /// Unless blocks, hashes and requests agree.
    pub fn check_integrity(&self, outside: &[BlockId]) {
        let pool = &self.core.pool;
        pool.check_integrity();
        if let Some(checkpoints) = &self.core.checkpoints {
            checkpoints.check_integrity(pool);
        }
        let mut refs = vec![0; pool.num_blocks()];
        let tables = self.requests.values().flat_map(|r| r.tables());
        for table in tables.clone() {
            let nulls = &table.blocks[..table.num_null() as usize];
            assert!(
                nulls.iter().all(|&block| block == NULL_BLOCK),
                "a block among those given back"
            );
        }
        let held = tables.flat_map(|table| table.blocks.iter().copied());
        let ends = self.held_by_copies();
        for block in held.chain(ends).chain(outside.iter().copied()) {
            refs[block.index()] += 1;
        }
        self.core.held.check_integrity(outside);
        for (block, &num_references) in (0u32..).zip(&refs).skip(1) {
            let block = BlockId(block);
            assert_eq!(
                pool.refs(block),
                num_references,
                "references of block {block}"
            );
        }
    }
}
