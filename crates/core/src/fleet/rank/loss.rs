//! What one rank loses at once: by a clear, a restart, a loss or a memory limit.
//!
//! Losing everything costs one pass over the table and one over the presence bits, however the
//! copies are spread. It holds the index for some milliseconds per million blocks.

use hashbrown::HashSet;
use smallvec::SmallVec;

use super::Rank;
use super::unidentified::Unidentified;
use crate::fleet::pod::adapters::Adapters;
use crate::fleet::pod::engine_chain::EngineChain;
use crate::fleet::pod::sizes::Sizes;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::planes::PlaneId;
use crate::fleet::presence::slots::{
    Channel, ChannelId, ChannelKey, EngineKey, SlotId, Slots, Whereabouts,
};
use crate::fleet::tier::Tier;

/// Clearing a page of a plane costs as much as clearing this many bits one by one.
const BITS_PER_PAGE: usize = 4;

impl Rank {
    /// Handles a clear: the engine dropped what it keeps on the GPU, and on other tiers if its
    /// clears empty these; copies elsewhere are in doubt from now on.
    pub(in crate::fleet) fn clear(&mut self, shared: &mut SharedPresence<'_>) {
        let stirred = self.slots.take_stirred();
        self.effort.note(stirred.len() as u64);
        match stirred.len() {
            0 => {}
            few if few < self.pages(shared) * BITS_PER_PAGE => {
                for slot in stirred {
                    self.clear_slot(slot, shared);
                }
            }
            _ => self.clear_slots(stirred, shared),
        }
        self.slots.sharing.forget();
        self.forget_silent();
        for tier in Tier::ALL {
            if self.is_cleared(tier) {
                self.state.forgot.remove(tier);
            }
        }
        self.know_pool_is_empty();
        self.state.forget_missed();
    }

    /// Whether a clear empties a tier.
    fn is_cleared(&self, tier: Tier) -> bool {
        self.catalog.config.publisher.clears(tier)
    }

    /// Does the part of a clear that looks at this many slots. Returns true if the clear is
    /// complete. If all copies are on tiers that it empties, the clear is done at once, which is
    /// quick.
    pub(in crate::fleet) fn clear_some(
        &mut self,
        most: usize,
        shared: &mut SharedPresence<'_>,
    ) -> bool {
        let is_cleared = |(_, channel): (ChannelId, Channel)| self.is_cleared(channel.key.tier);
        if self.slots.num_stirred() <= most || self.slots.channels.iter().all(is_cleared) {
            self.clear(shared);
            return true;
        }
        self.effort.note(most as u64);
        self.forget_silent();
        for slot in self.slots.take_some_stirred(most) {
            self.clear_slot(slot, shared);
        }
        false
    }

    /// The number of pages in which the rank may have presence bits.
    fn pages(&self, shared: &SharedPresence<'_>) -> usize {
        let planes = self.slots.channels.planes().iter();
        planes.map(|&plane| shared.planes.num_pages(plane)).sum()
    }

    /// Clears many slots. If a slot has copies on emptied tiers only, its bits are not looked at one
    /// by one; they are cleared for each plane as a whole.
    fn clear_slots(&mut self, slots: Vec<SlotId>, shared: &mut SharedPresence<'_>) {
        let is_cleared = |(_, channel): &(ChannelId, Channel)| self.is_cleared(channel.key.tier);
        let emptied = self.slots.channels.iter().filter(is_cleared);
        let mask = Slots::mask_of(emptied.clone().map(|(id, _)| id));
        let planes: HashSet<PlaneId> = emptied.map(|(_, channel)| channel.plane).collect();
        for slot in slots {
            if self.slots.drop_within(slot, mask) {
                self.retire_if_bare(slot);
            } else {
                self.clear_slot(slot, shared);
            }
        }
        for &plane in &planes {
            shared.planes.clear_all(plane, self.column.bit);
        }
        self.slots.sharing.show_nothing_in(&planes);
    }

    /// Handles a restart of the engine: hashes may mean other prefixes now.
    pub(in crate::fleet) fn restart(
        &mut self,
        shared: &mut SharedPresence<'_>,
        chain: EngineChain,
    ) {
        self.clear(shared);
        if self.slots.holds_nothing() {
            self.forget_everything(shared);
        } else {
            self.forget_what_is_not_held(shared);
        }
        self.chain = chain;
        self.adapters = Adapters::default();
        self.state.contradicted = None;
        self.catalog.sizes = Sizes::default();
        self.saw_media = false;
        self.unidentified = Unidentified::default();
        self.is_format_confirmed = false;
    }

    fn forget_what_is_not_held(&mut self, shared: &mut SharedPresence<'_>) {
        let slots: Vec<SlotId> = self
            .slots
            .iter()
            .filter(|&s| !self.slots.is_held(s))
            .collect();
        for slot in slots {
            self.forget_name(slot, shared);
        }
        self.limbo.sweep(&mut self.slots);
    }

    fn clear_slot(&mut self, slot: SlotId, shared: &mut SharedPresence<'_>) {
        let held: SmallVec<[ChannelId; 8]> = self.slots.held_channels(slot).collect();
        for channel in held {
            let key = self.slots.channels.get(channel).key;
            if key.doubted || self.is_cleared(key.tier) {
                continue;
            }
            let copies = self.slots.copies(slot, channel);
            self.add_doubts(slot, key, copies, shared.planes);
        }
        let publisher = self.catalog.config.publisher;
        let is_gone = |key: ChannelKey| !key.doubted || publisher.clears(key.tier);
        self.drop_channels(slot, is_gone, shared);
        self.retire_if_bare(slot);
    }

    /// Drops all copies of some channels at a slot.
    fn drop_channels(
        &mut self,
        slot: SlotId,
        drops: impl Fn(ChannelKey) -> bool,
        shared: &mut SharedPresence<'_>,
    ) {
        let held: SmallVec<[ChannelId; 8]> = self.slots.held_channels(slot).collect();
        for channel in held {
            let Channel { key, plane, .. } = self.slots.channels.get(channel);
            if drops(key) {
                self.slots.drop_copies(slot, channel);
                self.clear_presence(slot, plane, shared.planes);
            }
        }
    }

    /// Drops everything that is held on any tier, because it is no longer known to be there.
    pub(in crate::fleet) fn lose(&mut self, shared: &mut SharedPresence<'_>) {
        self.show_nothing(shared);
        self.slots.drop_all();
        self.slots.sharing.forget();
        self.forget_silent();
        self.state.forgot = Tier::ALL.into_iter().collect();
        self.state.forget_missed();
        self.know_nothing_else();
    }

    fn show_nothing(&self, shared: &mut SharedPresence<'_>) {
        for &plane in self.slots.channels.planes() {
            shared.planes.clear_all(plane, self.column.bit);
        }
    }

    /// Forgets every name, and with it every copy. The nodes are released later, in portions.
    pub(in crate::fleet) fn forget_everything(&mut self, shared: &mut SharedPresence<'_>) {
        self.show_nothing(shared);
        drop(self.limbo.take_all());
        self.forget_silent();
        self.doomed = Vec::new();
        shared.nodes.let_go(self.slots.take_all());
    }

    /// Forgets everything, whatever state an interrupted change has left the rank in.
    pub(in crate::fleet) fn discard(&mut self, shared: &mut SharedPresence<'_>) {
        self.forget_everything(shared);
        self.slots.sharing.forget();
        self.state.forgot = Tier::ALL.into_iter().collect();
        self.know_nothing_else();
        self.state.is_midway = false;
        self.counts.refuse("internal_error", 1);
    }

    /// Remembers the tiers that have a copy here: what they hold is no longer completely known.
    fn forget_copies(&mut self, slot: SlotId) {
        self.forget_of_pool(self.slots.copies_on_gpu(slot));
        for channel in self.slots.held_channels(slot) {
            self.state
                .forgot
                .insert(self.slots.channels.get(channel).key.tier);
        }
    }

    /// Forgets what is likely of groups that no event tells of.
    fn forget_silent(&mut self) {
        if let Some(silent) = &mut self.silent {
            silent.clear();
        }
    }

    /// The same, for the page of one hash.
    pub(in crate::fleet) fn forget_page(&mut self, hash: EngineKey) {
        if let Some(silent) = &mut self.silent {
            silent.forget(hash);
        }
    }

    /// Forgets a placed hash with all its copies. Returns true if it had any.
    pub(in crate::fleet) fn evict(
        &mut self,
        slot: SlotId,
        shared: &mut SharedPresence<'_>,
    ) -> bool {
        debug_assert!(matches!(
            self.slots.whereabouts(slot),
            Whereabouts::Placed(_)
        ));
        let is_held = self.slots.is_held(slot);
        self.forget_copies(slot);
        self.forget_page(self.slots.key(slot, shared.nodes));
        self.drop_channels(slot, |_| true, shared);
        self.forget_name(slot, shared);
        is_held
    }

    /// Forgets everything, to free memory.
    pub(in crate::fleet) fn evict_everything(&mut self, shared: &mut SharedPresence<'_>) {
        for (_, channel) in self.slots.channels.iter() {
            self.state.forgot.insert(channel.key.tier);
        }
        self.counts
            .refuse("forgotten_for_memory", self.slots.len() as u64);
        self.forget_of_pool(self.slots.num_on_gpu());
        self.forget_everything(shared);
    }

    /// Forgets everything undecided. Its slots, which stand nowhere and hold nothing from now on,
    /// are forgotten later, in portions.
    pub(in crate::fleet) fn evict_limbo(&mut self) {
        for slot in self.limbo.take_all() {
            self.effort.note(1);
            self.forget_copies(slot);
            self.slots.drop_all_of(slot);
            if let Some(hash) = self.slots.own_key(slot) {
                self.forget_page(hash);
            }
            self.doomed.push(slot);
        }
    }

    /// Forgets at most `most` of the slots that stand nowhere. Returns how many it forgot: fewer
    /// than `most` mean that none is left.
    pub(in crate::fleet) fn forget_doomed(
        &mut self,
        most: usize,
        shared: &mut SharedPresence<'_>,
    ) -> usize {
        let rest = self.doomed.len().saturating_sub(most);
        let some = self.doomed.split_off(rest);
        for &slot in &some {
            self.drop_channels(slot, |_| true, shared);
            self.slots.forget(slot);
        }
        if rest == 0 {
            self.doomed = Vec::new();
        }
        some.len()
    }
}
