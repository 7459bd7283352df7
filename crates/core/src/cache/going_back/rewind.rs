//! A running request goes back in place: it keeps its blocks, and computes its last tokens again.
//!
//! ```text
//! blocks of 4     |  0  |  1  |  2  |  3  |  4  |      a rewind to 10 tokens
//!                 |--- stay ---|.|--- again ----|      the blocks 2, 3 and 4 are written again
//! ```
//! The cursors go back too, so blocks that are computed again are registered again, with their
//! events. A block with a hash of more tokens than the boundary loses its hashes now, with their
//! events, if no one except this request refers to it. If someone else does, the hashes stay: the
//! same tokens are computed into the block again, so it holds what its hashes say, before, meanwhile
//! and after. The invariant has two conditions. A block that holds garbage is given to `forget`, whoever
//! refers to it; and tokens before the end of a block that stays findable are not replaced, which
//! `truncate` makes sure of.

use crate::blocks::{BlockId, NULL_BLOCK, count};
use crate::cache::core::Core;
use crate::cache::group::Group;
use crate::cache::request::{Request, Table};
use crate::error::Result;
use crate::rule::first_read;

impl Core {
    /// Whether a request can be rewound. No state is kept for it.
    pub(super) fn check_rewind(&self, request: &Request, num_tokens: u32) -> Result<()> {
        self.check_way_back(request, num_tokens, "rewind", |_| false)
    }

    pub(super) fn rewind(&mut self, request: &mut Request, num_tokens: u32) {
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let first = num_tokens / group.block;
            let table = &mut request.tables_mut()[index];
            for (position, &block) in table.blocks.iter().enumerate().skip(first as usize) {
                if self.forgets(&group, position, block, num_tokens) {
                    self.forget(block);
                }
            }
            if let Some(cached) = &mut table.num_cached {
                table.rewound = table.rewound.max(*cached);
                *cached = first.min(*cached);
            }
        }
        request.by_value.rewind(num_tokens);
        self.statistics.num_rewound_tokens += u64::from(request.num_computed_tokens - num_tokens);
        request.roll_back(num_tokens);
    }

    /// Whether a rewind forgets the block at a position: it has a hash of later tokens, and nobody
    /// else refers to it.
    pub(super) fn forgets(
        &self,
        group: &Group,
        position: usize,
        block: BlockId,
        num_tokens: u32,
    ) -> bool {
        group.cacheable
            && position >= (num_tokens / group.block) as usize
            && self.pool.refs(block) == 1
            && self.pool.num_tokens(block) > num_tokens
    }

    /// The number of tokens that blocks of a request were registered for, except what it has
    /// forgotten since.
    pub(super) fn num_findable_tokens(&self, request: &Request) -> u32 {
        let groups = self.groups.iter().zip(request.tables());
        let findable = groups.map(|(group, table)| {
            let cached = table.num_cached.unwrap_or(0);
            let end = table.rewound.min(count(table.blocks.len()));
            let left = &table.blocks[cached.min(end) as usize..end as usize];
            let left = left.iter().map(|&block| self.pool.num_tokens(block));
            left.max().unwrap_or(0).max(cached * group.block)
        });
        findable.max().unwrap_or(0)
    }
}

/// The first block given back of those that a token at the boundary reads, or that are written
/// again.
pub(super) fn gone(group: &Group, table: &Table, num_tokens: u32) -> Option<usize> {
    let first = first_read(&group.spec, num_tokens).min(num_tokens) / group.block;
    let kept = table.blocks.iter().enumerate().skip(first as usize);
    kept.filter(|(_, block)| **block == NULL_BLOCK)
        .map(|(position, _)| position)
        .next()
}
