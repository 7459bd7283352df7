//! Which blocks the device zeroes before a step runs.
//!
//! New blocks of groups that need it are listed when a request gets them. A load that runs after
//! the step would race with that, so the blocks that it fills are left out. If the load fails, the
//! blocks that it left unwritten are listed after all, before they are computed.

use crate::blocks::{BlockId, NULL_BLOCK};
use crate::cache::group::{Group, Kind};
use crate::cache::request::Request;
use crate::error::{Error, Result};

/// A group's index and its blocks that are left unwritten.
pub(in crate::cache) type Unwritten = (usize, Vec<BlockId>);

/// For each group, the blocks to be zeroed before they are used.
#[derive(Debug, Clone)]
pub(in crate::cache) struct Zeroing(Vec<Vec<BlockId>>);

impl Zeroing {
    pub(in crate::cache) fn new(num_groups: usize) -> Self {
        Self(vec![Vec::new(); num_groups])
    }

    /// Lists new blocks, if their group needs it.
    pub(super) fn note(&mut self, group: &Group, blocks: &[BlockId]) {
        if group.needs_zeroing {
            self.note_anyway(group, blocks);
        }
    }

    pub(super) fn note_anyway(&mut self, group: &Group, blocks: &[BlockId]) {
        self.0[usize::from(group.index)].extend_from_slice(blocks);
    }

    /// Lists blocks that a failed load has left unwritten.
    pub(in crate::cache) fn list(&mut self, unwritten: Vec<Unwritten>) {
        for (group, blocks) in unwritten {
            self.0[group].extend(blocks);
        }
    }

    /// Takes the blocks, group by group.
    pub(super) fn take(&mut self) -> Vec<BlockId> {
        self.0.iter_mut().flat_map(std::mem::take).collect()
    }
}

/// A request's blocks from `start_token` on, of the groups that need zeroing. `is_used` says of a
/// block at a position of a group whether others hold or find it.
pub(in crate::cache) fn all_unwritten(
    groups: &[Group],
    request: &Request,
    start_token: u32,
    is_used: impl Fn(&Group, usize, BlockId) -> bool,
) -> Result<Vec<Unwritten>> {
    let groups = groups.iter().filter(|group| group.needs_zeroing);
    let unwritten = groups.map(|group| {
        let blocks = unwritten(request, group, start_token)?;
        match blocks
            .iter()
            .find(|&&(at, block)| is_used(group, at, block))
        {
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
