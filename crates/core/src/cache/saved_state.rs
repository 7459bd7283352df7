//! States saved on the way, inside a step, where the engine's backend can.
//!
//! ```text
//! position   0      1      2       3
//!            null   null   saved   run       three blocks and a half in one step
//! ```
//! The state that is saved is not the one at its position's end, but the one at the last boundary
//! that is worth resuming at: wherever in the step that is.

use super::allocate::{Lengths, Store};
use super::commit::last_state_boundary;
use super::config::Retention;
use super::group::{Group, Keep, Kind};
use super::request::{Request, Table};
use crate::blocks::NULL_BLOCK;

/// Where a step saves a state on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SavedState {
    /// Tokens before the state.
    pub tokens: u32,
    /// The position whose block takes it.
    pub position: u32,
}

impl Store {
    pub(super) fn has_eagle(&self) -> bool {
        self.groups.iter().any(|group| group.eagle)
    }

    /// What a step of such lengths saves for a group, if the backend can. Where only prompt ends are
    /// kept, the step that ends the prompt does.
    pub(super) fn saved_by(
        &self,
        request: &Request,
        (group, table): (&Group, &Table),
        lengths: &Lengths,
    ) -> Option<SavedState> {
        let every = group.checkpoint_alignment?;
        let Kind::State { speculative } = group.kind else {
            return None;
        };
        let (start, end) = (lengths.total, lengths.main);
        let unit = self.config.topology.hash_block_size;
        let least_end = if matches!(self.config.retention, Retention::Interval(0)) {
            request.num_prompt_tokens.max(request.num_tokens() - 1)
        } else {
            0
        };
        let tokens = last_state_boundary(end, self.config.hit_alignment(), self.has_eagle());
        let position = end.div_ceil(group.block).checked_sub(2)?;
        let is_on_the_way = start + unit <= tokens && tokens < end;
        // Neither the block that the step reads nor the one that it ends in.
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
        (can_save && is_free(position)).then_some(SavedState { tokens, position })
    }

    /// Remembers what the step at hand saves.
    pub(super) fn note_saved(&self, request: &mut Request, lengths: &Lengths) {
        for (index, group) in self.groups.iter().enumerate() {
            let at = (group, &request.tables[index]);
            let saved = self.saved_by(request, at, lengths);
            request.tables[index].state.saved = saved;
        }
    }

    /// Makes a saved state findable, if somebody is expected to resume there. Its block holds
    /// nothing else, whatever was registered by position.
    pub(super) fn register_saved(
        &mut self,
        request: &Request,
        (group, table): (&Group, &Table),
        SavedState { tokens, position }: SavedState,
    ) {
        let Some(&block) = table.blocks.get(position as usize) else {
            return;
        };
        if block == NULL_BLOCK {
            return;
        }
        if !self.is_worth_keeping(request, group, tokens) {
            self.forget(block);
            return;
        }
        let hash_block = self.config.topology.hash_block_size;
        let digest = request.hash_at(tokens, hash_block).copied();
        let Some(digest) = digest.filter(|_| self.pool.num_tokens(block) != tokens) else {
            return;
        };
        self.forget(block);
        self.register_inside(request, group, block, tokens);
        self.fresh.insert((digest, group.index));
    }

    fn is_worth_keeping(&self, request: &Request, group: &Group, tokens: u32) -> bool {
        let alignment = self.config.hit_alignment();
        let last = last_state_boundary(request.num_prompt_tokens, alignment, self.has_eagle());
        let is_retained = || {
            let keep = Keep::new(group, self.config.retention, alignment, &[]);
            keep.is_none_or(|keep| keep.keeps(tokens / group.block - 1))
        };
        tokens == last
            || tokens == request.junction
            || (tokens.is_multiple_of(group.block) && is_retained())
    }
}
