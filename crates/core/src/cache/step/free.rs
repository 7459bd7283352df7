//! The blocks that a request gives back. While it runs, these are the blocks that it no longer
//! reads (tokens before its window, earlier chunks, older states); when it ends, all its blocks.

use super::state;
use crate::blocks::{BlockId, NULL_BLOCK, Pool, count, signed};
use crate::cache::core::Core;
use crate::cache::group::Kind;
use crate::cache::request::Request;

impl Core {
    /// Gives back the blocks that no token computed after `processed` tokens reads.
    pub(in crate::cache) fn free_skipped(&mut self, request: &mut Request, processed: u32) {
        for (group, table) in self.groups.iter().zip(request.tables_mut()) {
            if let Kind::State { .. } = group.kind {
                state::free_skipped(&mut self.pool, group, table, processed);
                continue;
            }
            let skipped = group.skipped(processed) / group.block;
            let end = (skipped as usize).min(table.blocks.len());
            // The search goes from the end of the skipped blocks down to those that were given back
            // before.
            let start = table.blocks[..end]
                .iter()
                .rposition(|&block| block == NULL_BLOCK)
                .map_or(0, |position| position + 1);
            if start < end {
                let freed = &mut table.blocks[start..end];
                self.pool.free(freed.iter().rev().copied());
                freed.fill(NULL_BLOCK);
                if start <= table.nulls as usize {
                    table.nulls = count(end);
                }
            }
        }
    }

    /// How many blocks `free_skipped` would add to the free queue.
    pub(super) fn count_skipped(&self, request: &Request, processed: u32) -> i64 {
        let groups = self.groups.iter().zip(request.tables());
        let freed = groups.map(|(group, table)| {
            let skipped = group.skipped(processed) / group.block;
            let end = (skipped as usize).min(table.blocks.len());
            let is_state = matches!(group.kind, Kind::State { .. });
            let last_state = is_state
                .then(|| state::superseded(group, table, processed))
                .flatten();
            let is_last = |block: &BlockId| self.pool.refs(*block) == 1;
            let skipped = table.blocks[..end].iter().rev();
            let running = skipped.take_while(|&&block| block != NULL_BLOCK || is_state);
            let beyond = last_state.filter(|&at| at as usize >= end);
            running.filter(|b| **b != NULL_BLOCK && is_last(b)).count()
                + beyond
                    .map(|at| table.blocks[at as usize])
                    .filter(|b| *b != NULL_BLOCK && is_last(b))
                    .map_or(0, |_| 1)
        });
        signed(freed.sum())
    }

    /// Notes that a request is about to give its blocks back, so its last boundary becomes a
    /// checkpoint.
    pub(in crate::cache) fn note_end(&mut self, request: &Request) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.note_end(&mut self.pool, request);
        }
    }

    /// Gives all blocks of a request back, tails first. Blocks that lead to no checkpoint have no
    /// value: they are evicted before blocks that some boundary can still be resumed with.
    pub(in crate::cache) fn give_back(&mut self, request: &mut Request) {
        self.forget_kept_states(request.id);
        self.note_end(request);
        let mut tables = request.clear_tables();
        for (group, table) in self.groups.iter().zip(&mut tables) {
            if self.checkpoints.is_some() && group.kind == Kind::Full {
                free_worthless(&mut self.pool, table);
            }
        }
        for blocks in tables {
            self.pool.free(blocks.into_iter().rev());
        }
    }
}

/// Frees the blocks at the end of a full group's table that no checkpoint needs.
fn free_worthless(pool: &mut Pool, table: &mut Vec<BlockId>) {
    let is_worthless = |block: &&BlockId| !pool.is_kept(**block);
    let count = table.iter().rev().take_while(is_worthless).count();
    for block in table.split_off(table.len() - count) {
        pool.free([block]);
        pool.expedite(block);
    }
}
