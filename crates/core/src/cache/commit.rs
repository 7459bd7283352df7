//! Computed tokens -> blocks that others can find, and the events that say so.

use smallvec::SmallVec;

use super::allocate::Store;
use super::group::{Group, Keep, Kind};
use super::request::{Request, Table};
use crate::blocks::{BlockId, Key, ListedBlock, NULL_BLOCK, StoreEvent, count};

impl Store {
    /// Registers the whole blocks of the first `num_tokens` tokens, group by group.
    pub(super) fn commit(&mut self, request: &mut Request, num_tokens: u32) {
        let boundaries = self.boundaries(request);
        self.entries.clear();
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            if !group.cacheable {
                continue;
            }
            let tokens = self.cacheable_tokens(&group, num_tokens);
            let mut table = std::mem::take(&mut request.tables[index]);
            self.commit_group(request, &group, &mut table, (tokens, &boundaries));
            request.tables[index] = table;
        }
        self.note_progress(request, num_tokens);
    }

    fn commit_group(
        &mut self,
        request: &Request,
        group: &Group,
        table: &mut Table,
        (tokens, boundaries): (u32, &[u32]),
    ) {
        let first = table.num_cached.unwrap_or(0);
        // A block whose hash also covers tokens behind it waits for them.
        let hashed = count(request.hashes.len()) * self.config.topology.hash_block_size;
        let end = tokens.min(hashed) / group.block;
        if first < end {
            self.register_blocks(request, group, table, (first..end, boundaries));
            table.num_cached = Some(end);
        }
        match group.kind {
            Kind::Full if group.block != self.config.topology.hash_block_size => {
                self.register_prompt_tail(request, group, table, tokens);
            }
            Kind::State { .. } => {
                self.register_state_tail(request, group, table, tokens);
                for position in first..end {
                    self.note_fresh(table.blocks[position as usize]);
                    self.note_kept(request.id, table.blocks[position as usize]);
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

    /// Tokens whose blocks may be registered: whole units of a hit, and one block more where a draft
    /// head's group needs it.
    fn cacheable_tokens(&self, group: &Group, num_tokens: u32) -> u32 {
        let topology = &self.config.topology;
        let settled = num_tokens.saturating_sub(self.config.num_reprefillable_tokens);
        if self.groups.len() == 1 {
            return settled;
        }
        let align = |tokens: u32| {
            if topology.partial_hits {
                tokens
            } else {
                tokens / topology.alignment * topology.alignment
            }
        };
        let aligned = align(num_tokens);
        if group.eagle && aligned > 0 {
            settled.min(align(settled) + group.block)
        } else {
            aligned
        }
    }

    /// Token positions at which a later request is expected to resume: for a resend and for a longer
    /// sibling of the prompt, and where others branch off.
    pub(super) fn boundaries(&self, request: &Request) -> SmallVec<[u32; 3]> {
        let prompt = request.num_prompt_tokens;
        let mut boundaries = SmallVec::new();
        if self.has_eagle() {
            let block = self.config.topology.alignment;
            let behind = |tokens: u32| (tokens / block * block).saturating_sub(block);
            boundaries.extend([behind(prompt.saturating_sub(1)), behind(prompt)]);
        } else {
            boundaries.push(prompt.saturating_sub(1));
        }
        if request.junction > 0 {
            boundaries.push(request.junction);
        }
        boundaries
    }

    fn register_blocks(
        &mut self,
        request: &Request,
        group: &Group,
        table: &Table,
        (positions, boundaries): (std::ops::Range<u32>, &[u32]),
    ) {
        let hash_block = self.config.topology.hash_block_size;
        let keep = Keep::new(
            group,
            self.config.retention,
            self.config.hit_alignment(),
            boundaries,
        );
        let mut listed: SmallVec<[ListedBlock; 16]> = SmallVec::new();
        for position in positions.clone() {
            let block = table.blocks[position as usize];
            if block == NULL_BLOCK || keep.as_ref().is_some_and(|keep| !keep.keeps(position)) {
                continue;
            }
            let end = (position + 1) * group.block;
            let Some(&digest) = request.hash_at(end, hash_block) else {
                debug_assert!(false, "block {position} is committed before it is hashed");
                continue;
            };
            // A block that was found at a boundary inside it is whole now.
            self.forget(block);
            // Groups register the same hashes one after the other.
            let hint = self.entries.of(end / hash_block);
            let key = self.pool.key_of(&digest, group.index, hint);
            self.pool.register(block, key, end);
            self.entries.note(end / hash_block, key.entry);
            if self.log.is_on() {
                let start = end - group.block;
                listed.push(ListedBlock { digest, start });
            }
        }
        if self.log.is_on() {
            let (start, end) = (positions.start * group.block, positions.end * group.block);
            self.log.stored(&StoreEvent {
                source: request.source(),
                group: group.index,
                listed: &listed,
                parent: request.hash_at(start, hash_block).copied(),
                span: start..end,
                block_size: group.block,
            });
        }
    }

    /// Forgets the keys of a block and says so.
    pub(super) fn forget(&mut self, block: BlockId) {
        if self.pool.key(block).is_some() {
            self.drop_checkpoints_of(block);
            for (key, group) in self.pool.forget(block) {
                self.log.removed(key, group);
            }
        }
    }

    /// Lets a full group be resumed where the prompt ends inside one of its blocks.
    fn register_prompt_tail(
        &mut self,
        request: &Request,
        group: &Group,
        table: &Table,
        tokens: u32,
    ) {
        let hash_block = self.config.topology.hash_block_size;
        // A resend reuses all but one token; a draft head's look-up reads one unit more.
        let most = request.num_prompt_tokens - u32::from(!group.eagle);
        let boundary = most / hash_block * hash_block;
        if boundary == 0 || boundary > tokens || boundary.is_multiple_of(group.block) {
            return;
        }
        if let Some(&block) = table.blocks.get((boundary / group.block) as usize) {
            self.register_inside(request, group, block, boundary);
        }
    }

    /// Lets a state group be resumed where this step ends, if somebody is expected to.
    fn register_state_tail(
        &mut self,
        request: &Request,
        group: &Group,
        table: &mut Table,
        tokens: u32,
    ) {
        if let Some(saved) = table.state.saved {
            self.register_saved(request, (group, table), saved);
            return;
        }
        let hash_block = self.config.topology.hash_block_size;
        if !self.keeps_state_at(request, tokens) {
            return;
        }
        let position = tokens.div_ceil(group.block) - 1;
        let Some(&block) = table.blocks.get(position as usize) else {
            return;
        };
        // A hash that also covers tokens which are not there yet finds nothing.
        let Some(&digest) = request.hash_at(tokens, hash_block) else {
            return;
        };
        if block == NULL_BLOCK {
            return;
        }
        self.register_inside(request, group, block, tokens);
        self.fresh.insert((digest, group.index));
        if !tokens.is_multiple_of(group.block) {
            table.shared_tail = Some((position, block));
            table.state.tail = Some((block, tokens));
            table.num_cached = Some(position);
        }
    }

    /// Whether the state that a step leaves after `tokens` is kept even inside a block: at the last
    /// boundary of the prompt, and at a junction that the step itself came to. One behind the prompt
    /// is written again by the next token.
    fn keeps_state_at(&self, request: &Request, tokens: u32) -> bool {
        let unit = self.config.topology.hash_block_size;
        let prompt = request.num_prompt_tokens;
        let is_prompt_end = tokens == last_state_boundary(prompt, unit, self.has_eagle());
        let is_junction = self.config.partial_junctions
            && tokens == request.junction
            && tokens.is_multiple_of(unit)
            && (request.num_computed_tokens + 1..=prompt).contains(&tokens);
        tokens > 0 && (is_prompt_end || is_junction)
    }

    /// Makes a block findable at a boundary inside it, or again at its end.
    pub(super) fn register_inside(
        &mut self,
        request: &Request,
        group: &Group,
        block: BlockId,
        tokens: u32,
    ) {
        let hash_block = self.config.topology.hash_block_size;
        let Some(&digest) = request.hash_at(tokens, hash_block) else {
            return; // It also covers tokens that are not there yet.
        };
        if block == NULL_BLOCK {
            return;
        }
        let entry = self.pool.index.find(&digest);
        let is_known = entry.is_some_and(|entry| {
            let group = group.index;
            self.pool.is_registered(block, Key { entry, group })
        });
        if is_known {
            return;
        }
        if self.pool.key(block).is_some() && self.pool.num_tokens(block) < tokens {
            self.forget(block);
        }
        let key = self.pool.key_of(&digest, group.index, None);
        self.pool.register(block, key, tokens);
        let start = tokens - hash_block;
        self.log.stored(&StoreEvent {
            source: request.source(),
            group: group.index,
            listed: &[ListedBlock { digest, start }],
            parent: request.hash_at(start, hash_block).copied(),
            span: start..tokens,
            block_size: hash_block,
        });
    }

    fn note_fresh(&mut self, block: BlockId) {
        if block != NULL_BLOCK
            && let Some(key) = self.pool.key(block)
        {
            let digest = *self.pool.index.digest(key.entry);
            self.fresh.insert((digest, key.group));
        }
    }
}

/// Where the state of a prompt is worth keeping: its last boundary that a resend can resume at, one
/// unit earlier where a draft head drops one.
#[must_use]
pub(super) fn last_state_boundary(num_tokens: u32, unit: u32, has_eagle: bool) -> u32 {
    if has_eagle {
        (num_tokens / unit * unit).saturating_sub(unit)
    } else {
        num_tokens.saturating_sub(1) / unit * unit
    }
}
