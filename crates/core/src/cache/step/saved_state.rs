//! States that the engine's backend saves inside a step, before the step's end.
//!
//! ```text
//! position   0      1      2       3
//!            null   null   saved   run       one step of three blocks and a half
//! ```
//! The saved state need not be the one at the end of its position. It is the state at the last
//! boundary worth resuming at, wherever in the step that boundary is.

use super::lengths::Lengths;
use crate::blocks::NULL_BLOCK;
use crate::cache::config::Retention;
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::{Request, SavedState, Table};

impl SavedState {
    /// What a step of these lengths saves for a group, if the backend can save states. If only
    /// prompt ends are kept, only the step that ends the prompt saves a state.
    pub(super) fn of_step(
        core: &Core,
        request: &Request,
        group: &Group,
        table: &Table,
        lengths: &Lengths,
    ) -> Option<Self> {
        let every = group.checkpoint_alignment?;
        let Kind::State { speculative } = group.kind else {
            return None;
        };
        let (start, end) = (lengths.total, lengths.main);
        let unit = core.config.topology.hash_block_size;
        let least_end = if matches!(core.config.retention, Retention::Interval(0)) {
            request.num_prompt_tokens.max(request.num_tokens() - 1)
        } else {
            0
        };
        let tokens = core.boundaries.last_state(end, core.config.hit_alignment());
        let position = end.div_ceil(group.block).checked_sub(2)?;
        let is_on_the_way = start + unit <= tokens && tokens < end;
        // A state can be saved neither to the block that the step reads nor to the one in which it
        // ends.
        let is_between = position >= start.div_ceil(group.block);
        let can_save = end >= least_end
            && start.is_multiple_of(unit)
            && is_between
            && is_on_the_way
            && (tokens - start).is_multiple_of(every);
        let is_draft = |at: u32| {
            let drafts = if table.state.allocated {
                speculative as usize
            } else {
                0
            };
            at as usize + drafts >= table.blocks.len()
        };
        let is_free = |at: u32| is_draft(at) || table.blocks[at as usize] == NULL_BLOCK;
        (can_save && is_free(position)).then_some(Self { tokens, position })
    }
}

/// Remembers what the current step saves.
pub(super) fn note_saved(core: &Core, request: &mut Request, lengths: &Lengths) {
    for (index, group) in core.groups.iter().enumerate() {
        let table = &request.tables()[index];
        let saved = SavedState::of_step(core, request, group, table, lengths);
        request.tables_mut()[index].state.saved = saved;
    }
}
