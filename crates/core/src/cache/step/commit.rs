//! How computed tokens become blocks that other requests can find, and the events that say so.

use std::ops::Range;

use smallvec::SmallVec;

use crate::blocks::{BlockId, Entries, Key, ListedBlock, NULL_BLOCK, StoreEvent, count};
use crate::cache::core::Core;
use crate::cache::findable::Findable;
use crate::cache::group::{Group, Kind};
use crate::cache::request::{Request, SavedState, SharedTail, StateTail, Table};
use crate::cache::retention::Keep;
use crate::hash::Digest;

/// Registers the whole blocks of the first `num_tokens` tokens, group by group. `start` is where the
/// step begins that computes the last of them, if it is the step at hand.
pub(in crate::cache) fn commit(
    core: &mut Core,
    request: &mut Request,
    num_tokens: u32,
    start: Option<u32>,
) {
    let mut committer = Committer {
        boundaries: core.boundaries.expected(request),
        entries: Entries::default(),
        start: start.filter(|_| !core.config.follows_vllm),
        end: num_tokens,
        core,
    };
    for index in 0..committer.core.groups.len() {
        let group = committer.core.groups[index];
        if !group.cacheable {
            continue;
        }
        let tokens = committer.cacheable_tokens(&group);
        let mut table = std::mem::take(&mut request.tables_mut()[index]);
        committer.commit_group(request, &group, &mut table, tokens);
        request.tables_mut()[index] = table;
    }
    if let Some(checkpoints) = &mut core.checkpoints {
        checkpoints.note_progress(&mut core.pool, request, num_tokens);
    }
}

/// One commit, group by group.
struct Committer<'a> {
    core: &'a mut Core,
    /// The boundaries where a resume is expected, in tokens.
    boundaries: SmallVec<[u32; 3]>,
    /// The entries of the hashes that earlier groups have registered.
    entries: Entries,
    /// The number of tokens before the step; `None` if what is registered was computed earlier.
    start: Option<u32>,
    end: u32,
}

impl Committer<'_> {
    fn commit_group(&mut self, request: &Request, group: &Group, table: &mut Table, tokens: u32) {
        let first = table.num_cached.unwrap_or(0);
        // A block whose hash also covers the tokens after it has to wait for those tokens.
        let hashed = count(request.hashes.len()) * self.core.config.topology.hash_block_size;
        let end = tokens.min(hashed) / group.block;
        if first < end {
            for run in unregistered_runs(self.core, request, group, table, first..end) {
                self.register_blocks(request, group, table, run);
            }
            table.num_cached = Some(end);
        }
        match group.kind {
            Kind::Full if group.block != self.core.config.topology.hash_block_size => {
                self.register_prompt_tail(request, group, table, tokens);
            }
            Kind::State { .. } => {
                self.register_state_tail(request, group, table, tokens);
                for position in first..end {
                    self.core.note_fresh(table.blocks[position as usize]);
                    self.core
                        .note_kept(request.id, table.blocks[position as usize]);
                }
            }
            Kind::Full
            | Kind::Window { .. }
            | Kind::Chunk { .. }
            | Kind::Cross
            | Kind::Ring
            | Kind::Nothing => {}
        }
    }

    /// The position of the state at which a step begins inside a block, if the step passes the end of
    /// that block. The block keeps the older state, so it is not the one that its position says.
    fn passed_state(&self, group: &Group) -> Option<u32> {
        let start = self.start?;
        let position = start / group.block;
        let is_inside = !start.is_multiple_of(group.block);
        let is_passed = self.end > (position + 1) * group.block;
        let is_state = matches!(group.kind, Kind::State { .. });
        (is_state && is_inside && is_passed).then_some(position)
    }

    /// The number of tokens whose blocks may be registered: whole units of a hit and, for a group
    /// that a draft head reads, one more block.
    fn cacheable_tokens(&self, group: &Group) -> u32 {
        let topology = &self.core.config.topology;
        let settled = self
            .end
            .saturating_sub(self.core.config.num_reprefillable_tokens);
        if self.core.groups.len() == 1 {
            return settled;
        }
        let align = |tokens: u32| {
            if topology.partial_hits {
                tokens
            } else {
                tokens / topology.alignment * topology.alignment
            }
        };
        let aligned = align(self.end);
        if group.eagle && aligned > 0 {
            settled.min(align(settled) + group.block)
        } else {
            aligned
        }
    }

    fn register_blocks(
        &mut self,
        request: &Request,
        group: &Group,
        table: &Table,
        positions: Range<u32>,
    ) {
        let passed = self.passed_state(group);
        let core = &mut *self.core;
        let hash_block = core.config.topology.hash_block_size;
        let (retention, alignment) = (core.config.retention, core.config.hit_alignment());
        let keep = Keep::new(group, retention, alignment, &self.boundaries);
        let span = positions.start as usize..positions.end as usize;
        let mut blocks = table.blocks[span].iter();
        // Looked at together, because each is read from somewhere else.
        let have_keys = blocks.any(|&block| core.pool.key(block).is_some());
        let mut listed: SmallVec<[ListedBlock; 16]> = SmallVec::new();
        for position in positions.clone() {
            let block = table.blocks[position as usize];
            let is_kept = keep.as_ref().is_none_or(|keep| keep.keeps(position));
            if block == NULL_BLOCK || !is_kept || passed == Some(position) {
                continue;
            }
            let end = (position + 1) * group.block;
            let Some(digest) = request.hash_at(end, hash_block) else {
                debug_assert!(false, "block {position} is committed before it is hashed");
                continue;
            };
            // Until now the block may have been found at a boundary inside it; now it is a whole
            // block.
            if have_keys {
                core.forget(block);
            }
            // Groups register the same hashes one after the other.
            let hint = self.entries.of(end / hash_block);
            let key = core.pool.key_of(digest, group.index, hint);
            core.pool.register(block, key, end, request.author());
            core.steps.note(request, block);
            note_findable(core, request, group, block, *digest, end);
            self.entries.note(end / hash_block, key.entry);
            if core.log.is_on() {
                let (digest, start) = (*digest, end - group.block);
                listed.push(ListedBlock { digest, start });
            }
        }
        if core.log.is_on() {
            let span = positions.start * group.block..positions.end * group.block;
            note_stored(core, request, group, &listed, span, group.block);
        }
    }

    /// Makes the block in which the prompt ends findable, so a resend can resume inside it.
    fn register_prompt_tail(
        &mut self,
        request: &Request,
        group: &Group,
        table: &Table,
        tokens: u32,
    ) {
        let hash_block = self.core.config.topology.hash_block_size;
        // A resend reuses all tokens except one; the look-up for a draft head reads one unit more.
        let most = request.num_prompt_tokens - u32::from(!group.eagle);
        let boundary = most / hash_block * hash_block;
        if boundary == 0 || boundary > tokens || boundary.is_multiple_of(group.block) {
            return;
        }
        if let Some(&block) = table.blocks.get((boundary / group.block) as usize) {
            self.register_inside(request, group, block, boundary);
        }
    }

    /// Makes the state at the end of this step findable, if a request is expected to resume there.
    fn register_state_tail(
        &mut self,
        request: &Request,
        group: &Group,
        table: &mut Table,
        tokens: u32,
    ) {
        if let Some(saved) = table.state.saved {
            self.register_saved(request, group, table, saved);
            return;
        }
        let hash_block = self.core.config.topology.hash_block_size;
        if !self.keeps_state_at(request, tokens) {
            return;
        }
        let position = tokens.div_ceil(group.block) - 1;
        let Some(&block) = table.blocks.get(position as usize) else {
            return;
        };
        // The hash does not exist yet if it also covers tokens that are not there.
        let Some(&digest) = request.hash_at(tokens, hash_block) else {
            return;
        };
        if block == NULL_BLOCK {
            return;
        }
        self.register_inside(request, group, block, tokens);
        self.core.fresh.insert((digest, group.index));
        if !tokens.is_multiple_of(group.block) {
            table.shared_tail = Some(SharedTail { position, block });
            table.state.tail = Some(StateTail {
                block,
                num_tokens: tokens,
            });
            table.num_cached = Some(position);
        }
    }

    /// Whether the state that a step leaves after `tokens` is kept even if the boundary is inside a
    /// block. It is kept at the last boundary of the prompt, and at a junction where the step
    /// itself ends. A state after the prompt is not kept, because the next decoded token overwrites
    /// it.
    fn keeps_state_at(&self, request: &Request, tokens: u32) -> bool {
        let unit = self.core.config.topology.hash_block_size;
        let prompt = request.num_prompt_tokens;
        let is_prompt_end = tokens == self.core.boundaries.last_state(prompt, unit);
        let is_junction = self.core.config.partial_junctions
            && tokens == request.junction
            && tokens.is_multiple_of(unit)
            && (request.num_computed_tokens + 1..=prompt).contains(&tokens);
        tokens > 0 && (is_prompt_end || is_junction)
    }

    /// Makes a block findable at a boundary inside it, or again at its end.
    fn register_inside(&mut self, request: &Request, group: &Group, block: BlockId, tokens: u32) {
        let hash_block = self.core.config.topology.hash_block_size;
        let Some(&digest) = request.hash_at(tokens, hash_block) else {
            return; // The hash also covers tokens that are not there yet.
        };
        if block == NULL_BLOCK {
            return;
        }
        let entry = self.core.pool.index.find(&digest);
        let is_known = entry.is_some_and(|entry| {
            let group = group.index;
            self.core.pool.is_registered(block, Key { entry, group })
        });
        if is_known {
            return;
        }
        if self.core.pool.key(block).is_some() && self.core.pool.num_tokens(block) < tokens {
            self.core.forget(block);
        }
        let key = self.core.pool.key_of(&digest, group.index, None);
        self.core
            .pool
            .register(block, key, tokens, request.author());
        self.core.steps.note(request, block);
        note_findable(self.core, request, group, block, digest, tokens);
        let start = tokens - hash_block;
        let listed = [ListedBlock { digest, start }];
        note_stored(
            self.core,
            request,
            group,
            &listed,
            start..tokens,
            hash_block,
        );
    }

    /// Makes a saved state findable, if a request is expected to resume there. Its block holds only
    /// this state, so the key that the block got from its position is forgotten.
    fn register_saved(
        &mut self,
        request: &Request,
        group: &Group,
        table: &Table,
        saved: SavedState,
    ) {
        let SavedState { tokens, position } = saved;
        let Some(&block) = table.blocks.get(position as usize) else {
            return;
        };
        if block == NULL_BLOCK {
            return;
        }
        if !self.is_worth_keeping(request, group, tokens) {
            self.core.forget(block);
            return;
        }
        let hash_block = self.core.config.topology.hash_block_size;
        let digest = request.hash_at(tokens, hash_block).copied();
        let Some(digest) = digest.filter(|_| self.core.pool.num_tokens(block) != tokens) else {
            return;
        };
        self.core.forget(block);
        self.register_inside(request, group, block, tokens);
        self.core.fresh.insert((digest, group.index));
    }

    fn is_worth_keeping(&self, request: &Request, group: &Group, tokens: u32) -> bool {
        let alignment = self.core.config.hit_alignment();
        let last = self
            .core
            .boundaries
            .last_state(request.num_prompt_tokens, alignment);
        let is_retained = || {
            let keep = Keep::new(group, self.core.config.retention, alignment, &[]);
            keep.is_none_or(|keep| keep.keeps(tokens / group.block - 1))
        };
        tokens == last
            || tokens == request.junction
            || (tokens.is_multiple_of(group.block) && is_retained())
    }
}

/// Notes that a hash began to find a block, unless it holds a state.
fn note_findable(
    core: &mut Core,
    request: &Request,
    group: &Group,
    block: BlockId,
    hash: Digest,
    num_tokens: u32,
) {
    if matches!(group.kind, Kind::State { .. }) {
        return;
    }
    let findable = Findable {
        group: group.index,
        block,
        hash,
        num_tokens,
        request: request.id,
    };
    core.findable.note(&core.pool, findable);
}

/// Tells in an event of blocks of `block_size` tokens that became findable.
fn note_stored(
    core: &mut Core,
    request: &Request,
    group: &Group,
    listed: &[ListedBlock],
    span: Range<u32>,
    block_size: u32,
) {
    let hash_block = core.config.topology.hash_block_size;
    core.log.stored(&StoreEvent {
        source: request.source(),
        group: group.index,
        listed,
        parent: request.hash_at(span.start, hash_block).copied(),
        span,
        block_size,
    });
}

/// These positions without those that a rewind left registered, as runs of consecutive ones.
fn unregistered_runs(
    core: &Core,
    request: &Request,
    group: &Group,
    table: &Table,
    positions: Range<u32>,
) -> SmallVec<[Range<u32>; 1]> {
    let mut runs: SmallVec<[Range<u32>; 1]> = SmallVec::new();
    let mut start = positions.start;
    for position in positions.start..positions.end.min(table.rewound) {
        if is_registered_whole(core, request, group, table, position) {
            runs.push(start..position);
            start = position + 1;
        }
    }
    runs.push(start..positions.end);
    runs.retain(|run| run.start < run.end);
    runs
}

fn is_registered_whole(
    core: &Core,
    request: &Request,
    group: &Group,
    table: &Table,
    position: u32,
) -> bool {
    let (block, end) = (
        table.blocks[position as usize],
        (position + 1) * group.block,
    );
    let hash = request.hash_at(end, core.config.topology.hash_block_size);
    core.pool.num_tokens(block) == end
        && core.pool.key(block).is_some_and(|key| {
            key.group == group.index && Some(core.pool.index.digest(key.entry)) == hash
        })
}
