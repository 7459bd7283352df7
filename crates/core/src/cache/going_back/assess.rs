//! The tables of a live cache, as an assessment of failed loads reads them. Nothing is copied.

use super::own_tables::own_tables;
use crate::blocks::{Author, BlockId, Key, Pool};
use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::Request;
use crate::error::Result;
use crate::recovery::{Gap, OwnTables, Tables};
use crate::spec::Topology;

impl Tables for Cache {
    fn topology(&self) -> &Topology {
        &self.core.config.topology
    }

    fn num_blocks(&self) -> usize {
        self.core.pool.num_blocks()
    }

    fn own(&self, request: u64) -> Result<OwnTables<'_>> {
        Ok(own_tables(&self.core, self.request(request)?, None))
    }

    fn may_be_shared(&self, block: BlockId) -> bool {
        self.core.pool.refs(block) > 1
    }

    fn find(&self, request: u64, gap: &Gap<'_>, found: &mut Vec<(u32, BlockId)>) {
        let group = self.core.groups[gap.group];
        if !group.cacheable {
            return;
        }
        match self.request(request) {
            Ok(request) => find(&self.core, request, &group, gap, found),
            Err(_) => find_registered(&self.core.pool, request, &group, gap, found),
        }
    }
}

/// What a request has registered or read at some positions. A hash of a state or of a full block may
/// end inside the block.
fn find(
    core: &Core,
    request: &Request,
    group: &Group,
    gap: &Gap<'_>,
    found: &mut Vec<(u32, BlockId)>,
) {
    let unit = core.config.topology.hash_block_size;
    let is_coarse = matches!(group.kind, Kind::Full | Kind::State { .. });
    let step = if is_coarse { unit } else { group.block };
    let hashed = request.num_tokens().div_ceil(group.block);
    let author = request.author();
    for position in gap.positions.start..gap.positions.end.min(hashed) {
        let start = position * group.block;
        let num_ends = group.block / step - u32::from(!gap.is_empty_at(position));
        let ends = (1..=num_ends).map(|count| start + count * step);
        let is_written =
            |&end: &u32| end > gap.start || end <= gap.start / group.block * group.block;
        for end in ends.filter(is_written) {
            let entry = request
                .hash_at(end, unit)
                .and_then(|hash| core.pool.index.find(hash));
            if let Some(entry) = entry {
                let group = group.index;
                let copies = core.pool.index.copies(Key { entry, group });
                let counts = |&block: &BlockId| {
                    core.pool.author(block) == author || gap.has_read(position, block)
                };
                found.extend(copies.filter(counts).map(|block| (position, block)));
            }
        }
    }
}

/// The same for a request whose tokens are gone. All blocks of the pool are looked at.
fn find_registered(
    pool: &Pool,
    request: u64,
    group: &Group,
    gap: &Gap<'_>,
    found: &mut Vec<(u32, BlockId)>,
) {
    let author = Author::of(request);
    let size = group.block;
    for (block, by, index, num_tokens) in pool.registered() {
        let position = position_of(num_tokens, size);
        let is_other = gap.is_empty_at(position) || num_tokens % size != 0;
        let counts = is_other && (by == author || gap.has_read(position, block));
        if counts && index == group.index && gap.positions.contains(&position) {
            found.push((position, block));
        }
    }
}

/// The position of the block in which a prefix ends.
fn position_of(num_tokens: u32, size: u32) -> u32 {
    num_tokens.div_ceil(size).max(1) - 1
}
