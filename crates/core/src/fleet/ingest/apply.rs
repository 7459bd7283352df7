//! From a decoded batch to names and copies.
//!
//! A batch is processed in pieces, which end at clears. Within a piece all dense stores are named
//! first (the place of a hash never changes, and groups come in any order), then copies are counted
//! in wire order. Both stop within an event when the slice's work is used up (`intake`), and the
//! next slice continues there.

use std::ops::Range;

use super::intake::{BatchProgress, Phase, TOKENS_PER_HASH, Target};
use super::naming::{NamedChain, Naming, is_dense};
use super::sparse_naming::is_one;
use crate::fleet::keys::texts::Marks;
use crate::fleet::keys::units::Units;
use crate::fleet::pod::catalog::{Contradiction, GroupNews};
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::slots::{ChannelId, ChannelKey, SlotId, Whereabouts};
use crate::fleet::rank::Rank;
use crate::fleet::tier::Tier;
use crate::wire::{Batch, Component, Event, Medium, RefusalReason, Removed, Span, Stored};

/// One rank, the shared part of its model, and the batch that is applied to it.
pub(in crate::fleet) struct Slice<'a> {
    /// The rank that the batch belongs to.
    pub rank: &'a mut Rank,
    /// The boundaries and bits of the model.
    pub shared: SharedPresence<'a>,
    /// The numbers that texts and lookahead tokens add to keys.
    pub marks: &'a Marks,
    /// Prepared steps by block size.
    pub units: &'a mut Units,
    /// The batch that is being applied.
    pub batch: &'a Batch,
    /// How far the batch has been applied.
    pub progress: &'a mut BatchProgress,
    /// Whether the slice has changed what is known of the groups.
    pub learned: bool,
}

impl<'a> Slice<'a> {
    /// Applies as much of the batch as the slice's work allows. Returns whether the whole batch is
    /// applied.
    pub(in crate::fleet) fn run(&mut self) -> bool {
        loop {
            match self.progress.phase {
                Phase::Begin => self.begin(),
                Phase::Name => self.name(),
                Phase::Count => self.count(),
                Phase::Show => self.show(),
                Phase::Trim => self.trim(),
                Phase::Done => break,
            }
            if self.progress.left == 0 {
                break;
            }
        }
        self.rank.state.is_midway = self.progress.phase != Phase::Done;
        !self.rank.state.is_midway
    }

    fn begin(&mut self) {
        self.rank.counts.messages += 1;
        self.rank.forget_doomed(usize::MAX, &mut self.shared);
        self.rank.begin_batch();
        for refusal in &self.batch.refused {
            self.progress.applied.refused += 1;
            let reason = refusal.reason;
            if reason == RefusalReason::LargeGroup {
                // The rank's answers depend on what it holds in that group, and that is not known.
                self.rank.contradict(reason.name());
            } else {
                self.rank.counts.refuse(reason.name(), 1);
            }
        }
        self.next_piece();
    }

    /// Goes on to the next piece: the events up to the next clear, or to the end of the batch.
    fn next_piece(&mut self) {
        let start = self.progress.piece.end;
        let events = &self.batch.events[start..];
        let clear = events.iter().position(|e| matches!(e, Event::Cleared));
        let len = clear.map_or(events.len(), |at| at + 1);
        self.progress.piece = start..start + len;
        self.progress.begin_piece();
        self.progress.phase = Phase::Name;
        if len == 0 {
            self.settle_route();
            self.progress.phase = Phase::Show;
        }
    }

    fn show(&mut self) {
        if self.show_route() {
            // No slot of this batch is needed any longer.
            self.progress.applied.effort = self.rank.end_batch();
            self.progress.phase = Phase::Trim;
        }
    }

    fn trim(&mut self) {
        let forgotten = self.rank.trim(&mut self.shared, self.progress.left);
        self.progress.work(forgotten);
        if self.progress.left > 0 {
            self.progress.phase = Phase::Done;
        }
    }

    fn naming(&mut self) -> Naming<'_, 'a> {
        Naming {
            rank: self.rank,
            shared: &mut self.shared,
            marks: self.marks,
            units: self.units,
            keys: &mut self.progress.keys,
            batch: self.batch,
        }
    }

    /// Learns the groups from the stores of the piece, and names its dense stores.
    fn name(&mut self) {
        let batch = self.batch;
        while self.progress.left > 0 && self.progress.event < self.progress.piece.end {
            match &batch.events[self.progress.event] {
                Event::Stored(stored) if stored.is_by_hash_alone() => {
                    self.name_store(&stored.by_hash_alone());
                }
                Event::Stored(stored) => self.name_store(stored),
                Event::Removed(_) | Event::Cleared | Event::Refused(_) => self.named(None),
            }
        }
        if self.progress.event == self.progress.piece.end {
            if !self.progress.grown.is_empty() {
                self.regrade();
                return;
            }
            self.progress.event = self.progress.piece.start;
            self.progress.phase = Phase::Count;
        }
    }

    /// Regrades as many slots as the slice's work allows.
    fn regrade(&mut self) {
        let (from, most) = (self.progress.regraded, self.progress.left);
        let grown = &self.progress.grown;
        let end = (self.rank).regrade(grown, from..from.saturating_add(most), &mut self.shared);
        self.progress.work(end - from);
        self.progress.regraded = end;
        if end - from < most {
            self.progress.regraded = 0;
            self.progress.grown.clear();
        }
    }

    fn name_store(&mut self, stored: &Stored) {
        let begun = self.progress.chain.take();
        let Some(mut chain) = begun.or_else(|| self.begin_store(stored)) else {
            return;
        };
        let blocks = stored.hashes.len as usize;
        let count = self.progress.take(blocks - chain.done(), stored.block_size);
        let mut slots = std::mem::take(&mut self.progress.slots);
        self.naming().extend(stored, &mut chain, count, &mut slots);
        self.progress.slots = slots;
        if chain.done() < blocks {
            self.progress.chain = Some(chain);
        } else {
            let end = self.progress.slots.len();
            let named = end - blocks..end;
            if stored.lora_name.is_some() {
                self.note_load(stored, named.clone());
            }
            // Reading back what was just written would have to wait until it has reached memory.
            self.progress.previous = Some(named.clone());
            self.named(Some(named));
        }
    }

    /// Learns from a store, and begins to name it, unless it has nothing to name.
    fn begin_store(&mut self, stored: &Stored) -> Option<NamedChain> {
        self.rank.earn(stored.hashes.len, stored.tokens.len);
        self.learned |= self.learn(stored);
        if !is_dense(stored) {
            self.progress.previous = None;
            self.named(None);
            return None;
        }
        if stored.same_as_previous && self.progress.previous.is_some() {
            self.named(self.progress.previous.clone());
            return None;
        }
        Some(self.naming().begin(stored))
    }

    /// Finishes the naming of the current event. A dense store has these slots.
    fn named(&mut self, slots: Option<Range<usize>>) {
        self.progress.named.push(slots);
        self.progress.next_event();
    }

    fn learn(&mut self, stored: &Stored) -> bool {
        let news = GroupNews {
            group: stored.group,
            kind: stored.kind,
            window: stored.window,
            block_size: stored.block_size,
            span: if stored.is_on_own_gpu() {
                stored.tokens.len
            } else {
                0
            },
            lookahead: self.batch.lookahead_span(stored, 0).len,
        };
        self.rank.unidentified.media |= stored.has_mm_keys;
        let group = self.rank.catalog.resolve(stored.group);
        let showed_components = self.rank.catalog.shows_components;
        if self.rank.catalog.note_components(stored) {
            self.rank.contradict(Contradiction::Group.reason());
        }
        if stored.component.is_some_and(|c| c != Component::Full) {
            // What is learned of groups is how full attention is published.
            return self.rank.catalog.shows_components != showed_components;
        }
        let sizes = self.rank.catalog.note_size(news);
        self.learned |= sizes.tells_of_parts;
        if sizes.contradicts {
            self.rank
                .counts
                .refuse(Contradiction::BlockSize.reason(), 1);
        }
        let before = self.rank.catalog.block_size(group);
        match self.rank.catalog.learn(news) {
            Ok(false) => self.rank.catalog.shows_components != showed_components,
            Ok(true) => {
                if self.rank.silent.is_none() {
                    self.rank.silent = self.rank.catalog.silent().map(Box::new);
                }
                let has_grown = before > 0 && self.rank.catalog.block_size(group) > before;
                if has_grown && !self.progress.grown.contains(&group) {
                    self.progress.grown.push(group);
                }
                true
            }
            Err(contradiction) => {
                self.rank.contradict(contradiction.reason());
                false
            }
        }
    }

    /// Counts the copies of the piece, in wire order.
    fn count(&mut self) {
        let batch = self.batch;
        while self.progress.left > 0 && self.progress.event < self.progress.piece.end {
            match &batch.events[self.progress.event] {
                Event::Stored(stored) if stored.is_by_hash_alone() => {
                    self.count_store(&stored.by_hash_alone());
                }
                Event::Stored(stored) => self.count_store(stored),
                Event::Removed(removed) => self.remove(removed),
                Event::Cleared => self.clear(),
                Event::Refused(untold) => {
                    self.rank.miss(*untold);
                    self.progress.next_event();
                }
            }
        }
        if self.progress.event == self.progress.piece.end {
            self.next_piece();
        }
    }

    /// Applies a clear, to as many slots as the slice's work allows.
    fn clear(&mut self) {
        let most = self.progress.left;
        if self.rank.clear_some(most, &mut self.shared) {
            self.progress.applied.cleared += 1;
            self.progress.work(self.rank.slots.len());
            self.progress.next_event();
        } else {
            self.progress.work(most);
        }
    }

    fn count_store(&mut self, stored: &Stored) {
        let blocks = stored.hashes.len as usize;
        let at = self.progress.event - self.progress.piece.start;
        let named = self.progress.named[at].clone();
        if self.progress.hashes == 0 {
            self.progress.applied.stored += blocks as u64;
        }
        let from = self.progress.hashes;
        let by_tokens = named.is_some();
        if let Some(named) = named {
            let count = self.progress.take(blocks - from, 0);
            let first = named.start + from;
            let slots = std::mem::take(&mut self.progress.slots);
            self.store(stored, &slots[first..first + count], by_tokens);
            self.progress.slots = slots;
            self.progress.hashes += count;
        } else {
            let mut slots = std::mem::take(&mut self.progress.sparse);
            let count = self.look_up(stored, &mut slots);
            self.store(stored, &slots[from..from + count], by_tokens);
            self.progress.sparse = slots;
            self.progress.hashes += count;
        }
        if self.progress.hashes == blocks {
            self.infer_from_store(stored);
            self.rank.count_pool();
            self.note_reach(stored);
            self.progress.previous_was_sparse = !by_tokens;
            self.progress.next_event();
        }
    }

    /// The channel for the copies of the current store. It is looked up once per event, because a
    /// look-up counts refusals.
    fn channel(&mut self, stored: &Stored) -> Option<ChannelId> {
        if let Target::Channel(channel) = self.progress.target {
            return channel;
        }
        let group = (self.rank.catalog).group_of(stored.group, stored.component);
        let whole = self.rank.catalog.block_size(group);
        let key = ChannelKey {
            partial: stored.block_size != 0 && stored.block_size < whole,
            ..self.channel_key(group, stored.medium, stored.remote, stored.owner)
        };
        let channel = self.rank.channel_of_store(key, self.shared.planes);
        if let (0, Some(channel)) = (stored.block_size, channel) {
            self.learned |= self.rank.slots.channels.note_placeholder(channel);
        }
        self.progress.target = Target::Channel(channel);
        channel
    }

    /// Finds the slots of a sparse store, as many as the slice's work allows. A store that has to
    /// be known as a whole is not divided.
    fn look_up(&mut self, stored: &Stored, slots: &mut Vec<SlotId>) -> usize {
        let blocks = stored.hashes.len as usize;
        let from = self.progress.hashes;
        if stored.same_as_previous && self.progress.previous_was_sparse {
            return self.progress.take(blocks - from, 0);
        }
        if from == 0 {
            slots.clear();
        }
        if is_one(stored) {
            if from == 0 {
                self.naming().sparse(stored, 0..blocks, slots);
                self.progress
                    .work((stored.tokens.len / TOKENS_PER_HASH) as usize);
            }
            return self.progress.take(blocks - from, 0);
        }
        let is_too_long = from == 0 && !stored.tokens.is_empty();
        self.rank
            .counts
            .refuse("long_sparse_store", u64::from(is_too_long));
        let count = self.progress.take(blocks - from, 0);
        self.naming().sparse(stored, from..from + count, slots);
        count
    }

    fn store(&mut self, stored: &Stored, slots: &[SlotId], by_tokens: bool) {
        let channel = self.channel(stored);
        let Some(channel) = channel else {
            for &slot in slots {
                self.rank.retire_if_bare(slot);
            }
            return;
        };
        for &slot in slots {
            match self.rank.slots.whereabouts(slot) {
                Whereabouts::Placed(_) if by_tokens => self.rank.counts.placed.tokens += 1,
                Whereabouts::Placed(_) => self.rank.counts.placed.join += 1,
                Whereabouts::Limbo(entry) => self.rank.limbo.mention(entry),
            }
            if stored.components.is_none() {
                self.rank.add_copy(slot, channel, &mut self.shared);
            }
        }
        if let Some(listed) = stored.components {
            self.replace_components(listed, channel, slots);
        }
    }

    fn remove(&mut self, removed: &Removed) {
        let key = if let Target::Key(key) = self.progress.target {
            key
        } else {
            let group = (self.rank.catalog).group_of(removed.group, removed.component);
            self.channel_key(group, removed.medium, removed.remote, removed.owner)
        };
        self.progress.target = Target::Key(key);
        let hashes = &self.batch.hashes_of(removed.hashes)[self.progress.hashes..];
        let count = self.progress.take(hashes.len(), 0).min(hashes.len());
        self.infer_from_removal(removed, &hashes[..count]);
        let mut found = 0;
        for &hash in &hashes[..count] {
            if let Some(slot) = self.rank.slots.find(hash, self.shared.nodes) {
                if self.rank.catalog.shows_components && removed.component.is_none() {
                    self.remove_other_components(slot, key);
                }
                found += u64::from(self.rank.remove_copy(slot, key, self.shared.planes));
            }
        }
        let unknown = count as u64 - found;
        self.rank.counts.refuse("removed_unknown", unknown);
        self.rank.remove_unknown(key.group, key.tier, unknown);
        self.progress.applied.removed += found;
        self.progress.hashes += count;
        if count == hashes.len() {
            self.progress.next_event();
        }
    }

    fn channel_key(
        &mut self,
        group: u16,
        medium: Medium,
        remote: bool,
        owner: Option<Span>,
    ) -> ChannelKey {
        let tier = match medium {
            // A copy on another machine has to be loaded, whichever tier it is on there.
            Medium::Gpu | Medium::Cpu if remote => Tier::Storage,
            Medium::Gpu => Tier::Gpu,
            Medium::Cpu => Tier::Cpu,
            Medium::Storage => Tier::Storage,
            Medium::Other(_) => {
                self.rank.counts.refuse("unknown_medium", 1);
                Tier::Storage
            }
        };
        let owner = self.marks.owner(owner.map(|o| self.batch.text(o)));
        ChannelKey {
            group,
            partial: false,
            tier,
            remote,
            owner,
            doubted: false,
        }
    }
}
