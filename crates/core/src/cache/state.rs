//! State groups: one running state per request, and the states worth resuming from.
//!
//! ```text
//! position   0      1      2      3      4    5
//!            null   kept   null   last   run  draft      the step before wrote `last`
//! ```
//! A table is indexed by position, but mostly null: a step adds one block however far it goes, and
//! takes the blocks of rejected drafts along.

use super::allocate::{Lengths, Store};
use super::group::Group;
use super::request::Table;
use super::{BlockCopy, Cache, Digest, Result};
use crate::blocks::{BlockId, NULL_BLOCK, Pool, count, signed};

/// A state that others can resume from: what a connector may store. Which block it is in cannot be
/// told from the table, where states move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptState {
    /// Whose tokens it covers.
    pub request: u64,
    /// Its group.
    pub group: u16,
    /// Where it is, or will be once the copies of the step are made.
    pub block: BlockId,
    /// Tokens that it covers.
    pub num_tokens: u32,
}

/// How far a request's table in one group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Leading blocks that need no registering; `None` until the first ones do not.
    pub num_registered: Option<u32>,
    /// Position of the state that the step before wrote.
    pub last_state: Option<u32>,
}

impl Cache {
    /// The groups and hashes of the states that are written in this step: nobody can resume from
    /// them before the next one.
    pub fn fresh_states(&self) -> impl Iterator<Item = (u16, &Digest)> {
        let fresh = self.store.fresh.iter();
        fresh.map(|(digest, group)| (*group, digest))
    }

    /// How far each table of a request is.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn cursors(&self, id: u64) -> Result<impl Iterator<Item = Cursor>> {
        let tables = self.request(id)?.tables.iter();
        Ok(tables.map(|table| Cursor {
            num_registered: table.num_cached,
            last_state: table.state.last,
        }))
    }

    /// Takes, of each group, the state at the last boundary of a request's prompt, where that lies
    /// inside a block: it holds what it says for as long as no more tokens are computed.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn take_state_tails(&mut self, id: u64) -> Result<Vec<KeptState>> {
        self.with(id, |_, request| {
            let tables = (0u16..).zip(&mut request.tables);
            let tails = tables.filter_map(|(group, table)| {
                let (block, num_tokens) = table.state.tail.take()?;
                Some(KeptState {
                    request: id,
                    group,
                    block,
                    num_tokens,
                })
            });
            Ok(tails.collect())
        })
    }
}

impl Store {
    /// Notes a state that was registered, if it was.
    pub(super) fn note_kept(&mut self, request: u64, block: BlockId) {
        if let Some(key) = self.pool.key(block) {
            self.kept_states.push(KeptState {
                request,
                group: key.group,
                block,
                num_tokens: self.pool.num_tokens(block),
            });
        }
    }

    /// Forgets the states of a request whose blocks are given back.
    pub(super) fn forget_kept_states(&mut self, request: u64) {
        self.kept_states.retain(|state| state.request != request);
    }
}

/// One step of one request in a state group.
pub(super) struct Step<'a> {
    pub group: &'a Group,
    pub speculative: u32,
    pub lengths: &'a Lengths,
    /// It saves a state on its way.
    pub saves: bool,
}

/// Blocks that a step takes out of the free queue. More than there are when the hit is a state
/// that is only written in this step: the request has to wait for the next one.
pub(super) fn needed(store: &Store, step: &Step<'_>, table: &Table, hits: &[BlockId]) -> i64 {
    if let Some(&state) = hits.last()
        && let Some(key) = store.pool.key(state)
        && store
            .fresh
            .contains(&(*store.pool.index.digest(key.entry), key.group))
    {
        return i64::from(store.config.num_blocks) + 1;
    }
    let held = table.blocks.len() + hits.len();
    new_blocks(step, table, hits, held) + signed(store.num_evictable(hits))
}

/// Blocks that the step takes beyond those, or fewer: the engine forgets that what was computed
/// elsewhere has a state of its own, and takes it all the same; it counts the state of a hit that
/// lies behind what was computed elsewhere, and leaves it alone.
pub(super) fn uncounted(store: &Store, step: &Step<'_>, table: &Table, hits: &[BlockId]) -> i64 {
    let skipped = (step.group.skipped(step.lengths.total) / step.group.block) as usize;
    let kept = &hits[skipped.min(hits.len())..];
    let (held, external) = held_before(step.group, table, hits, step.lengths);
    let taken = new_blocks(step, table, kept, held).max(0) + signed(external);
    let counted = new_blocks(step, table, hits, table.blocks.len() + hits.len());
    taken + signed(store.num_evictable(kept)) - counted - signed(store.num_evictable(hits))
}

/// New blocks where so many positions are held already: the state, that of the way, and those of
/// drafts.
fn new_blocks(step: &Step<'_>, table: &Table, hits: &[BlockId], held: usize) -> i64 {
    let Step { group, lengths, .. } = step;
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
    step: &Step<'_>,
    (request, table): (u64, &mut Table),
    out: &mut Vec<BlockId>,
) {
    let Step { group, lengths, .. } = step;
    let drafts = step.speculative as usize;
    let required = lengths.main.div_ceil(group.block) as usize + drafts;
    let before = table.blocks.len();
    if required <= before && table.shared_tail.is_none() && !step.saves {
        table.state.allocated = true;
        return;
    }
    if table.state.allocated {
        table.state.last = Some(count(before - 1 - drafts));
    } else if before > 0 {
        table.state.last = Some(count(before - 1));
    }
    // What is saved on the way goes right before the running state.
    let skipped = required - drafts - 1 - usize::from(step.saves);
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
            if table.state.tail.take().is_some() {
                store.note_kept(request, copy);
            }
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
    store.copies[usize::from(group.index)].push(BlockCopy {
        source,
        destination: copy,
    });
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
