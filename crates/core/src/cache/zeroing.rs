//! Which blocks the device zeroes before a step runs.
//!
//! New blocks of groups that need it are listed when a request gets them. A load that runs after
//! the step would race with that, so the blocks that it fills are left out. If the load fails, the
//! blocks that it left unwritten are listed after all, before they are computed.

use super::Cache;
use super::core::Core;
use super::group::{Group, Kind};
use super::request::Request;
use super::step::Need;
use crate::blocks::{BlockId, NULL_BLOCK};
use crate::error::{Error, Result};

impl Cache {
    /// Lists a request's blocks from `start_token` on for zeroing, in the groups that need it. A
    /// ring is listed whole, and blocks for an encoder's tokens never, because no load fills them.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` if `start_token` is inside a block, or if others hold or
    /// find a block. Then nothing has changed.
    pub fn record_blocks_for_zeroing(&mut self, id: u64, start_token: u32) -> Result<()> {
        self.with(id, |core, request| {
            let groups = core.groups.iter().filter(|group| group.needs_zeroing);
            let unwritten = groups.map(|group| core.unwritten(request, group, start_token));
            for (group, blocks) in unwritten.collect::<Result<Vec<_>>>()? {
                core.to_zero[group].extend(blocks);
            }
            Ok(())
        })
    }
}

impl Core {
    pub(super) fn note_zeroing(&mut self, group: &Group, blocks: &[BlockId]) {
        if group.needs_zeroing {
            self.to_zero[usize::from(group.index)].extend_from_slice(blocks);
        }
    }

    /// Refuses groups that do not exist.
    pub(super) fn check_loading(&self, need: &Need) -> Result<()> {
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

    /// The group's index, and the request's blocks from `start_token` on, without null blocks.
    fn unwritten(
        &self,
        request: &Request,
        group: &Group,
        start_token: u32,
    ) -> Result<(usize, Vec<BlockId>)> {
        let index = usize::from(group.index);
        let blocks = &request.tables()[index].blocks;
        let start = match group.kind {
            Kind::Cross | Kind::Nothing => blocks.len(),
            Kind::Ring => 0,
            Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } | Kind::State { .. } => {
                if !start_token.is_multiple_of(group.block) {
                    return Err(Error::InvalidValue(format!(
                        "request {}: zeroing from token {start_token} would wipe the beginning of \
                         a block of group {index}; start at a multiple of {}",
                        request.id, group.block
                    )));
                }
                (start_token / group.block) as usize
            }
        };
        let unwritten = blocks.iter().copied().skip(start);
        let unwritten: Vec<BlockId> = unwritten.filter(|&block| block != NULL_BLOCK).collect();
        match unwritten.iter().find(|&&block| self.has_others(block)) {
            Some(block) => Err(Error::InvalidValue(format!(
                "request {}: zeroing from token {start_token} would wipe block {block} of group \
                 {index}, which others hold or find; forget it, and take a fresh one",
                request.id
            ))),
            None => Ok((index, unwritten)),
        }
    }

    /// Whether anybody but the block's one owner holds or finds it.
    fn has_others(&self, block: BlockId) -> bool {
        self.pool.refs(block) > 1 || self.pool.key(block).is_some()
    }
}
