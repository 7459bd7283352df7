//! Blocks that a running request reads no more: behind a window, of an earlier chunk, of an older
//! state.

use super::allocate::Store;
use super::group::Kind;
use super::request::Request;
use super::state;
use crate::blocks::{BlockId, NULL_BLOCK, signed};

impl Store {
    /// Gives back what nothing computed after `processed` tokens reads.
    pub(super) fn free_skipped(&mut self, request: &mut Request, processed: u32) {
        for (group, table) in self.groups.iter().zip(&mut request.tables) {
            if let Kind::State { .. } = group.kind {
                state::free_skipped(&mut self.pool, group, table, processed);
                continue;
            }
            let skipped = group.skipped(processed) / group.block;
            let end = (skipped as usize).min(table.blocks.len());
            // From the end down to what was given back before.
            let start = table.blocks[..end]
                .iter()
                .rposition(|&block| block == NULL_BLOCK)
                .map_or(0, |position| position + 1);
            if start < end {
                let freed = &mut table.blocks[start..end];
                self.pool.free(freed.iter().rev().copied());
                freed.fill(NULL_BLOCK);
            }
        }
    }

    /// How many blocks `free_skipped` would add to the free queue.
    pub(super) fn count_skipped(&self, request: &Request, processed: u32) -> i64 {
        let groups = self.groups.iter().zip(&request.tables);
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
}
