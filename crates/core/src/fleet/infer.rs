//! What a store and a removal of full-attention pages mean for the groups of which no event tells.

use smallvec::SmallVec;

use super::apply::Slice;
use super::intake::Target;
use super::rank::Rank;
use super::silent::{CERTAIN, LIKELY, SilentGroup, SilentGroups};
use super::slots::{ChannelId, ChannelKey, EngineKey, SlotId};
use super::tier::Tier;
use crate::wire::{Component, Removed, Stored};

/// The channel of the copies that a group is inferred to hold on a tier.
fn inferred(group: u16, tier: Tier) -> ChannelKey {
    ChannelKey {
        group,
        partial: false,
        tier,
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
        let hashes = self.batch.hashes_of(stored.hashes);
        match self.rank.slots.channels.get(told).key.tier {
            _ if stored.component.is_some_and(|c| c != Component::Full) => return,
            Tier::Gpu => {}
            Tier::Cpu => return self.infer_on_host(hashes, groups),
            Tier::Storage => return,
        }
        let parent = stored.parent.and_then(|hash| self.rank.slots.find(hash));
        for group in groups {
            let channel = self.inferred_channel(CERTAIN, group, Tier::Gpu);
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
        self.mark(stored.parent, hashes);
    }

    /// Notes what a store changes of the probable copies.
    fn mark(&mut self, parent: Option<EngineKey>, hashes: &[EngineKey]) {
        let Some(silent) = &mut self.rank.silent else {
            return;
        };
        let changes = silent.note_store(parent, hashes);
        let groups = silent.groups.clone();
        for (group, changes) in groups.into_iter().zip(changes) {
            let channel = self.inferred_channel(LIKELY, group, Tier::Gpu);
            for (hash, is_there) in changes {
                match self.rank.slots.find(hash) {
                    Some(slot) if is_there => self.infer_copy(slot, channel),
                    Some(slot) => self.withdraw(slot, channel),
                    None => {}
                }
            }
        }
    }

    /// Pages are copied to the host, probably with the windows and states that they have.
    fn infer_on_host(&mut self, hashes: &[EngineKey], groups: SilentGroups) {
        for group in groups {
            let [gpu, host] =
                [Tier::Gpu, Tier::Cpu].map(|tier| self.inferred_channel(LIKELY, group, tier));
            for &hash in hashes {
                let slot = self.rank.slots.find(hash);
                if let Some(slot) = slot.filter(|slot| self.rank.slots.holds(*slot, gpu)) {
                    self.infer_copy(slot, host);
                }
            }
        }
    }

    fn infer_copy(&mut self, slot: SlotId, channel: ChannelId) {
        if !self.rank.slots.holds(slot, channel) {
            self.rank.add_copy(slot, channel, &mut self.shared);
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
            } else {
                self.infer_copy(slot, channel);
            }
        }
    }

    /// Ends what was inferred of pages that are removed.
    pub(super) fn infer_from_removal(&mut self, removed: &Removed, hashes: &[EngineKey]) {
        let is_full = removed.component.is_none_or(|c| c == Component::Full);
        let Target::Key(key) = self.progress.target else {
            return;
        };
        let Some(silent) = &mut self.rank.silent else {
            return;
        };
        if key.tier == Tier::Storage || !is_full {
            return;
        }
        if key.tier == Tier::Gpu {
            for &hash in hashes {
                silent.forget(hash);
            }
        }
        for group in silent.groups.clone() {
            for base in [CERTAIN, LIKELY] {
                let Some(channel) =
                    (self.rank.slots.channels).find(inferred(base + group.index, key.tier))
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
    }

    /// The channel of a group's certain or likely copies.
    fn inferred_channel(&mut self, base: u16, group: SilentGroup, tier: Tier) -> ChannelId {
        let key = inferred(base + group.index, tier);
        self.rank.channel(key, self.shared.planes)
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
    /// Panics unless what is likely of silent groups is shown by copies.
    pub(super) fn check_silent(&self) {
        let Some(silent) = &self.silent else {
            return;
        };
        silent.check_integrity();
        for (group, hash) in silent.marked() {
            let slot = self.slots.find(hash).expect("a marked page has a slot");
            let channel = self.slots.channels.find(inferred(group, Tier::Gpu));
            assert!(channel.is_some_and(|channel| self.slots.holds(slot, channel)));
        }
    }

    /// Whether what is inferred of silent groups is certain. A refused event may have stored a page
    /// after a leaf, and how an engine with further tiers moves windows and states between them is not
    /// known.
    pub(super) fn can_promise_silent(&self) -> bool {
        let mut channels = self.slots.channels.iter();
        self.missed.is_none() && channels.all(|(_, channel)| channel.key.tier == Tier::Gpu)
    }
}
