//! One request's blocks for one step: the blocks of the hit are adopted, new ones are allocated,
//! and full ones are registered.
//!
//! Every group's part of a hit gets its references before any group allocates, so no group evicts
//! what another group is about to reuse.

use super::commit::commit;
use super::io::{Allocation, Need, NoFit};
use super::lengths::Lengths;
use super::plan::{Fit, Plan};
use super::saved_state::note_saved;
use super::state::{self, StateStep};
use crate::blocks::{BlockId, NULL_BLOCK, count};
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::{Request, SharedTail, Table};

/// One request in a step.
pub(in crate::cache) struct Stepper<'a> {
    pub core: &'a mut Core,
    pub request: &'a mut Request,
    /// What the step has handed out.
    pub done: &'a mut Allocation,
}

impl Stepper<'_> {
    /// Serves the request as planned, unless it does not fit. Appends to `done`, group by group, the
    /// new blocks and their number.
    pub(in crate::cache) fn allocate(&mut self, mut plan: Plan<'_>, reserved: usize) -> Fit {
        let Self { core, request, .. } = self;
        if !plan.renew(core, request) {
            return Err(NoFit::HitEvicted);
        }
        plan.fit(core, request, reserved)?;
        let Plan { need, lengths, .. } = &plan;
        core.statistics.count_start(request, need);
        note_saved(core, request, lengths);
        self.adopt(&plan);
        self.extend(&plan);
        self.note_written(&plan);
        let Self { core, request, .. } = self;
        if let Some(junction) = need.junction {
            request.junction = junction;
        }
        if !need.delay_commit {
            let end = lengths.main.min(request.num_tokens());
            commit(core, request, end, Some(lengths.total));
        }
        if request.num_computed_tokens < request.num_prompt_tokens {
            request.by_value.step_ends.push(lengths.main);
        }
        // The commit needs to know where the step began, so this is set last.
        request.note_step(lengths.total, lengths.main);
        Ok(())
    }

    /// Gives the request the blocks of its hit, and blocks for tokens that were computed elsewhere.
    fn adopt(&mut self, plan: &Plan<'_>) {
        let Self { core, request, .. } = self;
        let need = plan.need;
        if request.is_tracked() {
            return;
        }
        if let Some(checkpoints) = &mut core.checkpoints {
            checkpoints.note_start(request);
            checkpoints.note_return(request);
        }
        if plan.hits.is_empty() && need.num_external_tokens == 0 {
            return;
        }
        let all = plan.lengths.local + need.num_external_tokens;
        for (index, table) in request.tables_mut().iter_mut().enumerate() {
            let group = &core.groups[index];
            if !group.kind.follows_tokens() {
                continue;
            }
            let hits = plan.hits.of(index);
            let skipped = (group.skipped(all) / group.block) as usize;
            let kept = &hits[skipped.min(hits.len())..];
            for &block in kept {
                core.pool.touch(block);
            }
            table.blocks.resize(skipped, NULL_BLOCK);
            table.nulls = count(skipped);
            table.blocks.extend_from_slice(kept);
            table.num_cached = Some(count(table.blocks.len()));
            note_shared_tail(group, table, kept, plan.lengths.local);
        }
        if need.num_hit_tokens > 0
            && let Some(checkpoints) = &mut core.checkpoints
        {
            checkpoints.note_resume(&mut core.pool, request, need.num_hit_tokens);
        }
        if need.num_external_tokens > 0 {
            self.extend_external(need, all);
        }
    }

    /// Gives the request blocks for the first `all` tokens, which are loaded from elsewhere.
    fn extend_external(&mut self, need: &Need, all: u32) {
        let Self { core, request, .. } = self;
        for (index, table) in request.tables_mut().iter_mut().enumerate() {
            let group = core.groups[index];
            let wanted = match group.kind {
                Kind::Ring => 1,
                Kind::Cross | Kind::Nothing => 0,
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } | Kind::State { .. } => {
                    if group.skipped(all) >= all {
                        continue;
                    }
                    all.div_ceil(group.block) as usize
                }
            };
            let start = table.blocks.len();
            core.take(wanted.saturating_sub(start), &mut table.blocks);
            if !need.loading_groups.contains(&group.index) {
                core.zeroing.note(&group, &table.blocks[start..]);
            }
        }
    }

    /// Gives the request blocks for what this step computes.
    fn extend(&mut self, plan: &Plan<'_>) {
        let Self {
            core,
            request,
            done,
        } = self;
        let id = request.id;
        for (index, table) in request.tables_mut().iter_mut().enumerate() {
            let group = core.groups[index];
            let before = done.blocks.len();
            match group.kind {
                Kind::State { speculative } => {
                    let step = StateStep {
                        group: &group,
                        speculative,
                        lengths: &plan.lengths,
                        saves: table.state.saved.is_some(),
                    };
                    state::extend(core, &step, id, table, &mut done.blocks);
                }
                Kind::Cross => {
                    let encoder = plan.need.num_encoder_tokens;
                    extend_table(core, &group, table, encoder, &mut done.blocks);
                }
                Kind::Ring => extend_table(core, &group, table, 1, &mut done.blocks),
                Kind::Nothing => {}
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                    extend_table(core, &group, table, plan.lengths.slots, &mut done.blocks);
                }
            }
            done.counts.push(count(done.blocks.len() - before));
        }
    }

    /// Notes the blocks that the step writes. The copy of a shared tail counts as empty before the
    /// step, because a device need not make copies one after the other.
    fn note_written(&mut self, plan: &Plan<'_>) {
        let core = &mut *self.core;
        let Lengths { local, main, .. } = plan.lengths;
        let has_hit = !plan.hits.is_empty();
        let is_one_token = local + 1 >= main && !has_hit; // What ends before it was there.
        if is_one_token || !core.config.hits_end_inside_blocks() {
            return;
        }
        for (group, table) in core.groups.iter().zip(self.request.tables()) {
            let first = local / group.block;
            let written = if has_hit { first * group.block } else { local };
            let blocks = table.blocks.iter().skip(first as usize);
            let blocks = blocks.filter(|&&block| block != NULL_BLOCK);
            core.being_written
                .extend(blocks.map(|&block| (block, written)));
        }
    }
}

fn extend_table(
    core: &mut Core,
    group: &Group,
    table: &mut Table,
    tokens: u32,
    out: &mut Vec<BlockId>,
) {
    if let Some(tail) = table.shared_tail.take() {
        let copy = core.take_one();
        core.redirect(group, table, tail, copy);
        core.zeroing.note_anyway(group, &[copy]);
        out.push(copy);
    }
    let required = tokens.div_ceil(group.block) as usize;
    let start = table.blocks.len();
    core.take(required.saturating_sub(start), &mut table.blocks);
    core.zeroing.note(group, &table.blocks[start..]);
    out.extend_from_slice(&table.blocks[start..]);
}

/// Notes the last adopted block if the request continues inside that block.
///
/// ```text
/// blocks of 8    |   0   |   1   |   2   |     a hit of 20 tokens ends inside block 2, which is
///                |-------- hit ------|         shared: this request writes to a copy
/// ```
fn note_shared_tail(group: &Group, table: &mut Table, kept: &[BlockId], local: u32) {
    if let Some(&block) = kept.last()
        && !local.is_multiple_of(group.block)
    {
        let position = local / group.block;
        table.shared_tail = Some(SharedTail { position, block });
        table.num_cached = Some(position);
    }
}
