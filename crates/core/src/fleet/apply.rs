//! From a decoded batch to names and copies.
//!
//! A batch is taken in pieces between clears. Within a piece all dense stores are named first
//! (naming is timeless, and groups come in any order), then copies are counted in wire order.

use super::catalog::GroupNews;
use super::naming::{Naming, is_dense};
use super::rank::{Rank, Shared};
use super::slots::{ChannelKey, SlotId, Whereabouts};
use super::texts::{Marks, Texts};
use super::tier::Tier;
use super::units::Units;
use crate::wire::{Batch, Event, Medium, RefusalReason, Removed, Span, Stored};

/// What one batch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Hashes listed by stores.
    pub stored: u64,
    /// Copies removed.
    pub removed: u64,
    /// Clears.
    pub cleared: u64,
    /// Events and details refused.
    pub refused: u64,
    /// Units of work on what is undecided: grows with the batch, hardly faster.
    pub effort: u64,
}

/// Buffers kept from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    slots: Vec<SlotId>,
    named: Vec<Option<(usize, usize)>>,
    /// Groups whose block turned out larger in the piece at hand.
    grown: Vec<u16>,
}

/// One rank, the shared part of its model, and the batch at hand.
pub(super) struct Intake<'a> {
    /// Whose batch it is.
    pub rank: &'a mut Rank,
    /// Boundaries and bits.
    pub shared: Shared<'a>,
    /// Texts.
    pub texts: &'a mut Texts,
    /// What texts and lookahead add to keys.
    pub marks: &'a Marks,
    /// Prepared steps.
    pub units: &'a mut Units,
    /// The batch.
    pub batch: &'a Batch,
    /// Buffers.
    pub scratch: &'a mut Scratch,
}

impl<'a> Intake<'a> {
    /// Takes the batch in. True in the second place: what is known of the groups changed.
    pub(super) fn run(&mut self) -> (Applied, bool) {
        let mut applied = Applied::default();
        let mut learned = false;
        self.rank.messages += 1;
        self.rank.begin_batch();
        for refusal in &self.batch.refused {
            applied.refused += 1;
            let reason = refusal.reason;
            if reason == RefusalReason::LargeGroup {
                // What the rank holds in that group decides its answers, and is not known.
                self.rank.contradict(reason.name());
            } else {
                self.rank.refuse(reason.name(), 1);
            }
        }
        let batch = self.batch;
        for piece in batch
            .events
            .split_inclusive(|e| matches!(e, Event::Cleared))
        {
            learned |= self.name(piece);
            self.count(piece, &mut applied);
        }
        applied.effort = self.rank.end_batch(&mut self.shared);
        self.rank.trim(&mut self.shared);
        (applied, learned)
    }

    fn naming(&mut self) -> Naming<'_, 'a> {
        Naming {
            rank: self.rank,
            shared: &mut self.shared,
            texts: self.texts,
            marks: self.marks,
            units: self.units,
            batch: self.batch,
        }
    }

    /// Learns groups and names the dense stores of a piece.
    fn name(&mut self, piece: &[Event]) -> bool {
        self.scratch.slots.clear();
        self.scratch.named.clear();
        let mut learned = false;
        let mut previous = None;
        for event in piece {
            let Event::Stored(stored) = event else {
                self.scratch.named.push(None);
                continue;
            };
            self.rank.earn(stored.hashes.len, stored.tokens.len);
            learned |= self.learn(stored);
            let named = if !is_dense(stored) {
                None
            } else if stored.same_as_previous && previous.is_some() {
                previous
            } else {
                let mut slots = std::mem::take(&mut self.scratch.slots);
                let first = slots.len();
                self.naming().dense(stored, &mut slots);
                let range = (first, slots.len());
                self.scratch.slots = slots;
                Some(range)
            };
            self.scratch.named.push(named);
            previous = named;
        }
        if !self.scratch.grown.is_empty() {
            self.rank.regrade(&self.scratch.grown, &mut self.shared);
            self.scratch.grown.clear();
        }
        learned
    }

    fn learn(&mut self, stored: &Stored) -> bool {
        let news = GroupNews {
            group: stored.group,
            kind: stored.kind,
            window: stored.window,
            block_size: stored.block_size,
            lookahead: u32::try_from(self.batch.lookahead_of(stored, 0).len()).unwrap_or(u32::MAX),
        };
        let group = self.rank.catalog.resolve(stored.group);
        let before = self.rank.catalog.block_size(group);
        match self.rank.catalog.learn(news) {
            Ok(false) => false,
            Ok(true) => {
                let has_grown = before > 0 && self.rank.catalog.block_size(group) > before;
                if has_grown && !self.scratch.grown.contains(&group) {
                    self.scratch.grown.push(group);
                }
                true
            }
            Err(contradiction) => {
                self.rank.contradict(contradiction.reason());
                false
            }
        }
    }

    /// Counts the copies of a piece, in wire order.
    fn count(&mut self, piece: &[Event], applied: &mut Applied) {
        let mut slots: Vec<SlotId> = Vec::new();
        let mut previous_was_sparse = false;
        for (i, event) in piece.iter().enumerate() {
            match event {
                Event::Stored(stored) => {
                    applied.stored += u64::from(stored.hashes.len);
                    if let Some((first, end)) = self.scratch.named[i] {
                        let named = std::mem::take(&mut self.scratch.slots);
                        self.store(stored, &named[first..end], true);
                        self.scratch.slots = named;
                        previous_was_sparse = false;
                        continue;
                    }
                    if !(stored.same_as_previous && previous_was_sparse) {
                        slots.clear();
                        self.naming().sparse(stored, &mut slots);
                    }
                    self.store(stored, &slots, false);
                    previous_was_sparse = true;
                }
                Event::Removed(removed) => applied.removed += self.remove(removed),
                Event::Cleared => {
                    applied.cleared += 1;
                    self.rank.clear(&mut self.shared);
                }
            }
        }
    }

    fn store(&mut self, stored: &Stored, slots: &[SlotId], by_tokens: bool) {
        let group = self.rank.catalog.resolve(stored.group);
        let whole = self.rank.catalog.block_size(group);
        let key = ChannelKey {
            partial: stored.block_size != 0 && stored.block_size < whole,
            ..self.channel_key(group, stored.medium, stored.remote, stored.owner)
        };
        let Some(channel) = self.rank.channel_of_store(key, self.shared.planes) else {
            for &slot in slots {
                self.rank.retire_if_bare(slot);
            }
            return;
        };
        for &slot in slots {
            match self.rank.slots.whereabouts(slot) {
                Whereabouts::Placed(_) if by_tokens => self.rank.placed.tokens += 1,
                Whereabouts::Placed(_) => self.rank.placed.join += 1,
                Whereabouts::Limbo(entry) => self.rank.limbo.mention(entry),
            }
            self.rank.add_copy(slot, channel, &mut self.shared);
        }
    }

    fn remove(&mut self, removed: &Removed) -> u64 {
        let group = self.rank.catalog.resolve(removed.group);
        let key = self.channel_key(group, removed.medium, removed.remote, removed.owner);
        let hashes = self.batch.hashes_of(removed.hashes);
        let mut found = 0;
        for &hash in hashes {
            if let Some(slot) = self.rank.slots.find(hash) {
                found += u64::from(self.rank.remove_copy(slot, key, self.shared.planes));
            }
        }
        self.rank
            .refuse("removed_unknown", hashes.len() as u64 - found);
        found
    }

    fn channel_key(
        &mut self,
        group: u16,
        medium: Medium,
        remote: bool,
        owner: Option<Span>,
    ) -> ChannelKey {
        let tier = match medium {
            // A copy on another machine has to be loaded, wherever it is there.
            Medium::Gpu | Medium::Cpu if remote => Tier::Storage,
            Medium::Gpu => Tier::Gpu,
            Medium::Cpu => Tier::Cpu,
            Medium::Storage => Tier::Storage,
            Medium::Other(_) => {
                self.rank.refuse("unknown_medium", 1);
                Tier::Storage
            }
        };
        let owner = self.texts.intern(owner.map(|o| self.batch.text(o)));
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
