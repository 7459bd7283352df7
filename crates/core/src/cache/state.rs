//! State groups: one running state per request, and the states worth resuming from.
//!
//! ```text
//! position   0      1      2      3      4    5
//!            null   kept   null   last   run  draft      the step before wrote `last`
//! ```
//! A table is indexed by position, but mostly null: a step adds one block however far it goes, and
//! takes the blocks of rejected drafts along.

use super::allocate::{Lengths, Store};
use super::commit;
use super::group::Group;
use super::pool::{BlockId, NULL_BLOCK, Pool};
use super::request::Table;

/// Blocks that a step takes out of the free queue. More than there are when the hit is a state
/// that is only written in this step: the request has to wait for the next one.
pub(super) fn needed(
    store: &Store,
    (group, speculative): (&Group, u32),
    table: &Table,
    hits: &[BlockId],
    lengths: &Lengths,
) -> i64 {
    if let Some(&state) = hits.last()
        && let Some(key) = store.pool.key(state)
        && store
            .fresh
            .contains(&(*store.pool.index.digest(key.entry), key.group))
    {
        return i64::from(store.config.num_blocks) + 1;
    }
    let count = |blocks: usize| i64::try_from(blocks).unwrap_or(i64::MAX);
    let required = i64::from(lengths.main.div_ceil(group.block) + speculative);
    let shares_tail = (!hits.is_empty() && !lengths.local.is_multiple_of(group.block))
        || table.shared_tail.is_some();
    let (held, external) = held_before(group, table, hits, lengths);
    let mut new = required - count(held);
    if shares_tail {
        new = new.max(0) + 1;
    }
    if new > 0 {
        let drafts = if table.state.allocated {
            0
        } else {
            speculative
        };
        new = new.min(1 + i64::from(shares_tail) + i64::from(drafts));
    }
    new += count(external);
    new + count(store.num_evictable(hits))
}

/// Positions that the table covers before the step's own state is added, and how many new blocks
/// what was computed elsewhere takes of them.
fn held_before(
    group: &Group,
    table: &Table,
    hits: &[BlockId],
    lengths: &Lengths,
) -> (usize, usize) {
    let held = table.blocks.len() + hits.len();
    if lengths.total <= lengths.local || table.num_cached.is_some() {
        return (held, 0);
    }
    let covered = lengths.total.div_ceil(group.block) as usize;
    let skipped = (group.skipped(lengths.total) / group.block) as usize;
    (covered.max(held), covered.saturating_sub(held.max(skipped)))
}

/// Adds the running state of this step; appends what is new, null blocks included.
pub(super) fn extend(
    store: &mut Store,
    (group, speculative): (&Group, u32),
    table: &mut Table,
    lengths: &Lengths,
    out: &mut Vec<BlockId>,
) {
    let drafts = speculative as usize;
    let required = lengths.main.div_ceil(group.block) as usize + drafts;
    let before = table.blocks.len();
    if required <= before && table.shared_tail.is_none() {
        table.state.allocated = true;
        return;
    }
    if table.state.allocated {
        table.state.last = Some(commit::count(before - 1 - drafts));
    } else if before > 0 {
        table.state.last = Some(commit::count(before - 1));
    }
    let skipped = required - drafts - 1;
    if before < skipped {
        table.blocks.resize(skipped, NULL_BLOCK);
    }
    if table.state.allocated {
        for position in (before - drafts..before).take_while(|&position| position < skipped) {
            let draft = std::mem::replace(&mut table.blocks[position], NULL_BLOCK);
            table.blocks.push(draft);
        }
    }
    let missing = required.saturating_sub(table.blocks.len());
    let shared = table.shared_tail.take();
    let copy = shared.map(|_| store.take_one());
    let mut new = Vec::with_capacity(missing);
    store.take(missing, &mut new);
    if let (Some(shared), Some(copy)) = (shared, copy) {
        if table.state.allocated {
            preserve(store, group, shared.1, copy);
        } else {
            store.redirect(group, table, shared, copy);
            out.push(copy);
        }
    }
    out.extend_from_slice(&table.blocks[before.min(table.blocks.len())..]);
    out.extend_from_slice(&new);
    table.blocks.extend(new);
    table.state.allocated = true;
}

/// The request goes on in its own block, whose state others may resume from: the copy takes that
/// over, and is filled before this step overwrites the source.
fn preserve(store: &mut Store, group: &Group, source: BlockId, copy: BlockId) {
    store.pool.move_keys(source, copy);
    if let Some(checkpoints) = &mut store.checkpoints {
        checkpoints.moved(&mut store.pool, source, copy);
    }
    store.copies[usize::from(group.index)].push((source, copy));
    store.pool.touch(source);
    if let Some(key) = store.pool.key(copy) {
        let digest = *store.pool.index.digest(key.entry);
        store.fresh.insert((digest, key.group));
    }
}

/// The state that the step before last wrote, if nothing reads it any more.
pub(super) fn superseded(group: &Group, table: &Table, processed: u32) -> Option<u32> {
    let last = table.state.last?;
    (last + 1 < processed.div_ceil(group.block)).then_some(last)
}

/// Gives back the states that nothing computed after `processed` tokens reads.
pub(super) fn free_skipped(pool: &mut Pool, group: &Group, table: &mut Table, processed: u32) {
    let end = (group.skipped(processed) / group.block).min(commit::count(table.blocks.len()));
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
