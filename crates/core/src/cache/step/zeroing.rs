//! Which blocks the device zeroes before a step runs.
//!
//! New blocks of groups that need it are listed when a request gets them. A load that runs after
//! the step would race with that, so the blocks that it fills are left out. If the load fails, the
//! blocks that it left unwritten are listed after all, before they are computed.

use super::io::Need;
use crate::blocks::{BlockId, NULL_BLOCK};
use crate::cache::Cache;
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::Request;
use crate::error::{Error, Result};

/// A group's index and its blocks that are left unwritten.
pub(in crate::cache) type Unwritten = (usize, Vec<BlockId>);

impl Cache {
    /// Lists a request's blocks from `start_token` on for zeroing, in the groups that need it. A
    /// ring is listed whole, and blocks for an encoder's tokens never, because no load fills them.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` if `start_token` is inside a block, or if others hold or
    /// find a block. Then nothing has changed.
    pub fn record_blocks_for_zeroing(&mut self, id: u64, start_token: u32) -> Result<()> {
        self.with(id, |core, request| {
            let has_others = |_: &Group, _: usize, block| core.has_others(block);
            let unwritten = core.all_unwritten(request, start_token, has_others)?;
            core.list_for_zeroing(unwritten);
            Ok(())
        })
    }
}

impl Core {
    pub(in crate::cache) fn note_zeroing(&mut self, group: &Group, blocks: &[BlockId]) {
        if group.needs_zeroing {
            self.to_zero[usize::from(group.index)].extend_from_slice(blocks);
        }
    }

    /// Refuses groups that do not exist.
    pub(in crate::cache) fn check_loading(&self, need: &Need) -> Result<()> {
        let num_groups = self.groups.len();
        let mut groups = need.loading_groups.iter();
        match groups.find(|&&group| usize::from(group) >= num_groups) {
            Some(group) => Err(Error::InvalidValue(format!(
                "request {}: loading_groups names group {group}; the cache has {num_groups}",
                need.request
            ))),
            None => Ok(()),
        }
    }

    pub(in crate::cache) fn list_for_zeroing(&mut self, unwritten: Vec<Unwritten>) {
        for (group, blocks) in unwritten {
            self.to_zero[group].extend(blocks);
        }
    }

    /// A request's blocks from `start_token` on, of the groups that need zeroing. `is_used` says of a
    /// block at a position of a group whether others hold or find it.
    pub(in crate::cache) fn all_unwritten(
        &self,
        request: &Request,
        start_token: u32,
        is_used: impl Fn(&Group, usize, BlockId) -> bool,
    ) -> Result<Vec<Unwritten>> {
        let groups = self.groups.iter().filter(|group| group.needs_zeroing);
        let unwritten = groups.map(|group| {
            let blocks = unwritten(request, group, start_token)?;
            match blocks.iter().find(|&&(at, block)| is_used(group, at, block)) {
                Some((_, block)) => Err(Error::InvalidValue(format!(
                    "request {}: zeroing from token {start_token} would wipe block {block} of group \
                     {}, which others hold or find; forget it, and take a fresh one",
                    request.id, group.index
                ))),
                None => Ok((
                    usize::from(group.index),
                    blocks.into_iter().map(|(_, block)| block).collect(),
                )),
            }
        });
        unwritten.collect()
    }

    /// Whether anybody but the block's one owner holds or finds it.
    fn has_others(&self, block: BlockId) -> bool {
        self.pool.refs(block) > 1 || self.pool.key(block).is_some()
    }
}

/// The position of the first block that a request writes if it computes its tokens from this one
/// on. A ring is written whole, and blocks for an encoder's tokens never.
pub(in crate::cache) fn first_written(group: &Group, start_token: u32) -> usize {
    match group.kind {
        Kind::Cross | Kind::Nothing => usize::MAX,
        Kind::Ring => 0,
        Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } | Kind::State { .. } => {
            (start_token / group.block) as usize
        }
    }
}

/// The positions and blocks that a request writes from a token on, without null blocks.
fn unwritten(request: &Request, group: &Group, start_token: u32) -> Result<Vec<(usize, BlockId)>> {
    if group.kind.follows_tokens() && !start_token.is_multiple_of(group.block) {
        return Err(Error::InvalidValue(format!(
            "request {}: zeroing from token {start_token} would wipe the beginning of a block of \
             group {}; start at a multiple of {}",
            request.id, group.index, group.block
        )));
    }
    let table = &request.tables()[usize::from(group.index)];
    let blocks = table.blocks.iter().copied().enumerate();
    let unwritten = blocks.skip(first_written(group, start_token));
    Ok(unwritten
        .filter(|(_, block)| *block != NULL_BLOCK)
        .collect())
}
