//! What a store and a removal of full-attention pages mean for the groups of which no event tells.

use smallvec::SmallVec;

use super::apply::Slice;
use super::intake::Target;
use super::rank::Rank;
use super::silent::{CERTAIN, SilentGroup};
use super::slots::{ChannelId, ChannelKey, EngineKey, SlotId};
use super::tier::Tier;
use crate::wire::{Component, Removed, Stored};

/// The channel of the copies that a group is inferred to hold on the GPU.
fn inferred(group: u16) -> ChannelKey {
    ChannelKey {
        group,
        partial: false,
        tier: Tier::Gpu,
        remote: false,
        owner: 0,
        doubted: false,
    }
}

impl Slice<'_> {
    /// Infers what silent groups hold after a store that has been counted.
    pub(super) fn infer_from_store(&mut self, stored: &Stored) {
        let Target::Channel(Some(told)) = self.progress.target else {
            return;
        };
        let Some(silent) = &self.rank.silent else {
            return;
        };
        let (groups, never_short) = (silent.groups.clone(), silent.pools.never_short);
        let key = self.rank.slots.channels.get(told).key;
        if key.tier != Tier::Gpu || stored.component.is_some_and(|c| c != Component::Full) {
            return;
        }
        let hashes = self.batch.hashes_of(stored.hashes);
        let parent = stored.parent.and_then(|hash| self.rank.slots.find(hash));
        for group in groups {
            let Some(channel) = self.inferred_channel(group) else {
                continue;
            };
            if let (Some(parent), false) = (parent, never_short) {
                self.withdraw(parent, channel);
            }
            let pages = match group.window_pages {
                None => 1,
                Some(pages) if never_short => pages as usize,
                Some(_) => 0,
            };
            let tail = &hashes[hashes.len() - pages.min(hashes.len())..];
            self.infer_held(tail, told, channel);
        }
    }

    /// Counts pages as held by a silent group. A page that is told of twice is in two trees of the
    /// engine, so which of them has it is not known.
    fn infer_held(&mut self, tail: &[EngineKey], told: ChannelId, channel: ChannelId) {
        let slots = tail.iter().map(|&hash| self.rank.slots.find(hash));
        let slots: SmallVec<[Option<SlotId>; 16]> = slots.collect();
        for slot in slots.into_iter().flatten() {
            if self.rank.slots.copies(slot, told) > 1 {
                self.withdraw(slot, channel);
            } else if !self.rank.slots.holds(slot, channel) {
                self.rank.add_copy(slot, channel, &mut self.shared);
            }
        }
    }

    /// Ends what was inferred of pages that are removed.
    pub(super) fn infer_from_removal(&mut self, removed: &Removed, hashes: &[EngineKey]) {
        let is_full = removed.component.is_none_or(|c| c == Component::Full);
        let (Some(silent), Target::Key(key)) = (&self.rank.silent, self.progress.target) else {
            return;
        };
        if key.tier != Tier::Gpu || !is_full {
            return;
        }
        for group in silent.groups.clone() {
            let Some(channel) = self
                .rank
                .slots
                .channels
                .find(inferred(CERTAIN + group.index))
            else {
                continue;
            };
            for &hash in hashes {
                if let Some(slot) = self.rank.slots.find(hash) {
                    self.withdraw(slot, channel);
                }
            }
        }
    }

    fn inferred_channel(&mut self, group: SilentGroup) -> Option<ChannelId> {
        let key = inferred(CERTAIN + group.index);
        self.rank.channel_of_store(key, self.shared.planes)
    }

    fn withdraw(&mut self, slot: SlotId, channel: ChannelId) {
        if self.rank.slots.drop_copies(slot, channel) {
            let plane = self.rank.slots.channels.get(channel).plane;
            self.rank.hide(slot, plane, self.shared.planes);
            self.rank.retire_if_bare(slot);
        }
    }
}

impl Rank {
    /// Whether what is inferred of silent groups is certain. A refused event may have stored a page
    /// after a leaf, and how an engine with further tiers moves windows and states between them is not
    /// known.
    pub(super) fn can_promise_silent(&self) -> bool {
        let mut channels = self.slots.channels.iter();
        self.missed.is_none() && channels.all(|(_, channel)| channel.key.tier == Tier::Gpu)
    }
}
