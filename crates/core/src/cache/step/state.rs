//! State groups: one running state per request, and the states worth resuming from.
//!
//! ```text
//! position   0      1      2      3      4    5
//!            null   kept   null   last   run  draft      the step before wrote `last`
//! ```
//! A table is indexed by position, but most positions are null: however far a step goes, it adds
//! one block for its running state, and it uses the blocks of rejected drafts again.

use super::lengths::Lengths;
use crate::blocks::{BlockId, NULL_BLOCK, Pool, count, signed};
use crate::cache::core::Core;
use crate::cache::group::Group;
use crate::cache::request::Table;

/// One step of one request in a state group.
pub(super) struct StateStep<'a> {
    pub group: &'a Group,
    pub speculative: u32,
    pub lengths: &'a Lengths,
    /// Whether the step saves a state before its end.
    pub saves: bool,
}

/// The number of blocks that a step takes out of the free queue, as the engine counts them.
pub(super) fn needed(core: &Core, step: &StateStep<'_>, table: &Table, hits: &[BlockId]) -> i64 {
    let held = table.blocks.len() + hits.len();
    new_blocks(step, table, hits, held) + signed(core.num_evictable(hits))
}

/// How many blocks the step takes beyond those that `needed` counts; negative if it takes fewer.
///
/// `needed` counts as vLLM does, which errs in two ways when tokens are loaded from elsewhere. It
/// leaves out the block for the state that is loaded, although the step takes one. And it counts
/// the state of the hit as leaving the free queue, although no request adopts a state that lies
/// before the tokens that are loaded. The true number is
///
/// ```text
/// taken     = new(kept hits, with the loaded state) + loaded state + free among kept hits
/// counted   = new(all hits)                                       + free among all hits
/// uncounted = taken - counted
/// ```
///
/// For example, take a hit of 16 tokens, 16 loaded tokens and 16 new ones, in blocks of 16. The
/// hit's state is at position 0, and free. `needed` counts the new running state and the hit's
/// state: 2. The step skips position 0 and takes the loaded state (position 1) and the running
/// state (position 2): also 2, so 0 are uncounted. If a request holds the hit's state already,
/// `needed` counts 1, and 1 is uncounted.
pub(super) fn uncounted(core: &Core, step: &StateStep<'_>, table: &Table, hits: &[BlockId]) -> i64 {
    let skipped = (step.group.skipped(step.lengths.total) / step.group.block) as usize;
    let kept = &hits[skipped.min(hits.len())..];
    let held = held_before(step.group, table, hits, step.lengths);
    let taken = new_blocks(step, table, kept, held.positions).max(0) + signed(held.num_loaded);
    let counted = new_blocks(step, table, hits, table.blocks.len() + hits.len());
    taken + signed(core.num_evictable(kept)) - counted - signed(core.num_evictable(hits))
}

/// The number of new blocks of a step if this many positions are already held: for the running
/// state, a saved state, a copy of a shared tail, and drafts.
fn new_blocks(step: &StateStep<'_>, table: &Table, hits: &[BlockId], held: usize) -> i64 {
    let StateStep { group, lengths, .. } = step;
    let required = i64::from(lengths.main.div_ceil(group.block) + step.speculative);
    let shares_tail = (!hits.is_empty() && !lengths.local.is_multiple_of(group.block))
        || table.shared_tail.is_some();
    let new = required - signed(held);
    let new = if shares_tail { new.max(0) + 1 } else { new };
    let drafts = if table.state.allocated {
        0
    } else {
        step.speculative
    };
    new.min(1 + i64::from(shares_tail) + i64::from(step.saves) + i64::from(drafts))
}

/// What a table covers before the step's own state is added.
struct HeldBefore {
    positions: usize,
    /// How many of the positions are new blocks, for tokens that were computed elsewhere.
    num_loaded: usize,
}

fn held_before(group: &Group, table: &Table, hits: &[BlockId], lengths: &Lengths) -> HeldBefore {
    let held = table.blocks.len() + hits.len();
    if lengths.total <= lengths.local || table.num_cached.is_some() {
        return HeldBefore {
            positions: held,
            num_loaded: 0,
        };
    }
    let covered = lengths.total.div_ceil(group.block) as usize;
    let skipped = (group.skipped(lengths.total) / group.block) as usize;
    HeldBefore {
        positions: covered.max(held),
        num_loaded: covered.saturating_sub(held.max(skipped)),
    }
}

/// Adds the running state of this step. Appends the new blocks to `out`, including null blocks.
pub(super) fn extend(
    core: &mut Core,
    step: &StateStep<'_>,
    request: u64,
    table: &mut Table,
    out: &mut Vec<BlockId>,
) {
    let StateStep { group, lengths, .. } = step;
    let drafts = step.speculative as usize;
    let required = lengths.main.div_ceil(group.block) as usize + drafts;
    let before = table.blocks.len();
    if required <= before && table.shared_tail.is_none() && !step.saves {
        table.state.allocated = true;
        return;
    }
    // The state that the step saves before its end goes right before the running state.
    skip_to(
        table,
        required - drafts - 1 - usize::from(step.saves),
        drafts,
    );
    let missing = required.saturating_sub(table.blocks.len());
    let shared = table.shared_tail.take();
    let copy = shared.map(|_| core.take_one());
    let mut new = Vec::with_capacity(missing);
    core.take(missing, &mut new);
    if let (Some(shared), Some(copy)) = (shared, copy) {
        if table.state.allocated {
            preserve(core, group, shared.block, copy);
            if table.state.tail.take().is_some() {
                core.note_kept(request, copy);
            }
        } else {
            core.redirect(group, table, shared, copy);
            out.push(copy);
        }
    }
    out.extend_from_slice(&table.blocks[before.min(table.blocks.len())..]);
    out.extend_from_slice(&new);
    table.blocks.extend(new);
    table.state.allocated = true;
}

/// Notes which state the step before wrote, and fills the positions before `skipped` with null
/// blocks. The blocks of rejected drafts among them move to the end of the table.
fn skip_to(table: &mut Table, skipped: usize, drafts: usize) {
    let before = table.blocks.len();
    if table.state.allocated {
        table.state.last = Some(count(before - 1 - drafts));
    } else if before > 0 {
        table.state.last = Some(count(before - 1));
    }
    if before < skipped {
        table.blocks.resize(skipped, NULL_BLOCK);
    }
    if table.state.allocated {
        for position in (before - drafts..before).take_while(|&position| position < skipped) {
            let draft = std::mem::replace(&mut table.blocks[position], NULL_BLOCK);
            table.blocks.push(draft);
        }
    }
}

/// Lets a request continue in its own block although other requests may resume from the state in
/// it. The copy takes over the block's hashes, and is filled before this step overwrites the
/// source.
fn preserve(core: &mut Core, group: &Group, source: BlockId, copy: BlockId) {
    core.pool.move_keys(source, copy);
    if let Some(checkpoints) = &mut core.checkpoints {
        checkpoints.moved(&mut core.pool, source, copy);
    }
    core.note_copy(group, source, copy);
    core.pool.touch(source);
    core.note_fresh(copy);
}

/// The position of the state that the step before last wrote, if it is no longer read.
pub(super) fn superseded(group: &Group, table: &Table, processed: u32) -> Option<u32> {
    let last = table.state.last?;
    (last + 1 < processed.div_ceil(group.block)).then_some(last)
}

/// Gives back the states that no token computed after `processed` tokens reads.
pub(super) fn free_skipped(pool: &mut Pool, group: &Group, table: &mut Table, processed: u32) {
    let end = (group.skipped(processed) / group.block).min(count(table.blocks.len()));
    let start = table.state.retired;
    if start < end {
        let retired = &mut table.blocks[start as usize..end as usize];
        pool.free(retired.iter().rev().copied());
        retired.fill(NULL_BLOCK);
        table.state.retired = end;
    }
    if let Some(last) = superseded(group, table, processed) {
        let state = std::mem::replace(&mut table.blocks[last as usize], NULL_BLOCK);
        pool.free([state]);
    }
}
