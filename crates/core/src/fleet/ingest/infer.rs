//! What a store and a removal of full-attention pages mean for the groups of which no event tells.

use smallvec::SmallVec;

use super::apply::Slice;
use super::intake::Target;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::Nodes;
use crate::fleet::presence::planes::Planes;
use crate::fleet::presence::slots::{ChannelId, ChannelKey, EngineKey, SlotId, Whereabouts};
use crate::fleet::rank::Rank;
use crate::fleet::silent::{AllChanges, CERTAIN, LIKELY, SilentGroup, SilentGroups};
use crate::fleet::tier::Tier;
use crate::prefix::PrefixKey;
use crate::spec::SpecKind;
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
    /// Notes how long a prompt a store has told of, now that its parent may have a place. What lies
    /// elsewhere than on the pod's own GPU says nothing of what its engine has computed.
    pub(in crate::fleet) fn note_reach(&mut self, stored: &Stored) {
        let is_reused = !stored.kind.is_some_and(SpecKind::is_never_reused);
        if self.rank.catalog.reach.is_enough() || !is_reused || !stored.is_on_own_gpu() {
            return;
        }
        let slots = &self.rank.slots;
        let parent = stored
            .parent
            .and_then(|parent| slots.find_parent(parent, self.shared.nodes));
        let before = match parent.map(|slot| slots.whereabouts(slot)) {
            Some(Whereabouts::Placed(node)) => self.shared.nodes.place(node).boundary,
            Some(Whereabouts::Limbo(_)) | None => 0,
        };
        let reach = &mut self.rank.catalog.reach;
        self.learned |= reach.note(before, stored.tokens.len, stored.block_size);
    }

    /// Infers what silent groups hold after a store that has been counted.
    pub(in crate::fleet) fn infer_from_store(&mut self, stored: &Stored) {
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
        let parent = stored.parent.and_then(|hash| self.find(hash));
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
        let work = self.rank.mark(stored.parent, hashes, &mut self.shared);
        self.progress.work(work);
    }

    /// Lets a request whose pages are there now leave its marks, which are then to be shown.
    pub(in crate::fleet) fn settle_route(&mut self) {
        if let Some(silent) = &mut self.rank.silent
            && silent.is_routed()
        {
            silent.settle_route(false);
            let looks = silent.take_looks();
            self.rank.effort.note(looks as u64);
            self.progress.work(looks);
        }
    }

    /// Shows as many of these marks as the slice's work allows. Returns whether all are shown.
    pub(in crate::fleet) fn show_route(&mut self) -> bool {
        let most = self.progress.left;
        let shown = self.rank.show_some(most, &mut self.shared);
        self.progress.work(shown);
        shown < most
    }

    /// Pages are copied to the host, probably with the windows and states that they have.
    fn infer_on_host(&mut self, hashes: &[EngineKey], groups: SilentGroups) {
        if let Some(silent) = &mut self.rank.silent {
            silent.stop_routing();
        }
        for group in groups {
            let [gpu, host] =
                [Tier::Gpu, Tier::Cpu].map(|tier| self.inferred_channel(LIKELY, group, tier));
            for &hash in hashes {
                let slot = self.find(hash);
                if let Some(slot) = slot.filter(|slot| self.rank.slots.holds(*slot, gpu)) {
                    self.infer_copy(slot, host);
                }
            }
        }
    }

    fn find(&self, hash: EngineKey) -> Option<SlotId> {
        self.rank.slots.find(hash, self.shared.nodes)
    }

    fn infer_copy(&mut self, slot: SlotId, channel: ChannelId) {
        self.rank.infer_copy(slot, channel, &mut self.shared);
    }

    /// Counts pages as held by a silent group. A page that is told of twice is in two trees of the
    /// engine, so which of them has it is not known.
    fn infer_held(&mut self, tail: &[EngineKey], told: ChannelId, channel: ChannelId) {
        let slots = tail.iter().map(|&hash| self.find(hash));
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
    pub(in crate::fleet) fn infer_from_removal(&mut self, removed: &Removed, hashes: &[EngineKey]) {
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
                    if let Some(slot) = self.find(hash) {
                        self.withdraw(slot, channel);
                    }
                }
            }
        }
    }

    fn inferred_channel(&mut self, base: u16, group: SilentGroup, tier: Tier) -> ChannelId {
        (self.rank).inferred_channel(base, group, tier, self.shared.planes)
    }

    fn withdraw(&mut self, slot: SlotId, channel: ChannelId) {
        self.rank.withdraw(slot, channel, self.shared.planes);
    }
}

impl Rank {
    /// Does at most so much of what is to be done before a request is noted: notes the keys of pages,
    /// lets the request before leave its marks, and shows them. Returns whether all is done.
    pub(in crate::fleet) fn begin_route(
        &mut self,
        most: usize,
        shared: &mut SharedPresence<'_>,
    ) -> bool {
        let is_told = self.is_on_gpu_alone();
        let Some(silent) = self.silent.as_mut().filter(|_| is_told) else {
            return true;
        };
        let hashes = silent.take_unkeyed(most);
        if !hashes.is_empty() {
            self.note_keys(&hashes, shared.nodes);
            return false;
        }
        silent.settle_route(true);
        // The batches that follow do not pay for this.
        silent.take_looks();
        self.show_some(most, shared) < most
    }

    /// Notes a request that a gateway sent to the engine, by the keys at the ends of its pages. What
    /// requests find on a host tier, and what that leaves, is not known, so there stores tell more.
    pub(in crate::fleet) fn route(&mut self, keys: Vec<PrefixKey>, (prompt, produced): (u32, u32)) {
        let is_told = self.is_on_gpu_alone();
        if let Some(silent) = self.silent.as_mut().filter(|_| is_told) {
            let is_cut_short = silent.route(keys, prompt, produced);
            self.counts
                .refuse("long_silent_walk", u64::from(is_cut_short));
        }
    }

    /// Shows at most so many changes of each group that a request has left. Returns how many.
    pub(in crate::fleet) fn show_some(
        &mut self,
        most: usize,
        shared: &mut SharedPresence<'_>,
    ) -> usize {
        let Some(silent) = &mut self.silent else {
            return 0;
        };
        let changes = silent.take_unshown(most);
        let shown = changes.iter().map(Vec::len).max();
        self.show_changes(changes, shared);
        shown.unwrap_or(0)
    }

    /// Notes the keys of pages that have a place.
    fn note_keys(&mut self, hashes: &[EngineKey], nodes: &Nodes) {
        let Some(silent) = &mut self.silent else {
            return;
        };
        for &hash in hashes {
            let place = self
                .slots
                .find(hash, nodes)
                .map(|slot| self.slots.whereabouts(slot));
            if let Some(Whereabouts::Placed(node)) = place {
                silent.note_key(hash, nodes.key(node));
            }
        }
    }

    /// Notes what a store changes of the probable copies. Returns the work of this.
    fn mark(
        &mut self,
        parent: Option<EngineKey>,
        hashes: &[EngineKey],
        shared: &mut SharedPresence<'_>,
    ) -> usize {
        let Some(silent) = &mut self.silent else {
            return 0;
        };
        let changes = silent.note_store(parent, hashes);
        let (work, is_cut_short) = silent.work();
        let changes = silent.queue(changes);
        if silent.is_routed() {
            self.note_keys(hashes, shared.nodes);
        }
        self.show_changes(changes, shared);
        self.effort.note(work);
        self.counts
            .refuse("long_silent_walk", u64::from(is_cut_short));
        usize::try_from(work).unwrap_or(usize::MAX)
    }

    /// Shows what has changed of each group's probable copies. Nothing is likely at a hash that is not
    /// known any longer.
    fn show_changes(&mut self, changes: AllChanges, shared: &mut SharedPresence<'_>) {
        let groups = self.silent.as_ref().map(|silent| silent.groups.clone());
        for (group, changes) in groups.into_iter().flatten().zip(changes) {
            let channel = self.inferred_channel(LIKELY, group, Tier::Gpu, shared.planes);
            for (hash, is_there) in changes {
                match self.slots.find(hash, shared.nodes) {
                    Some(slot) if is_there => self.infer_copy(slot, channel, shared),
                    Some(slot) => self.withdraw(slot, channel, shared.planes),
                    None => self.forget_page(hash),
                }
            }
        }
    }

    fn infer_copy(&mut self, slot: SlotId, channel: ChannelId, shared: &mut SharedPresence<'_>) {
        if !self.slots.holds(slot, channel) {
            self.add_copy(slot, channel, shared);
        }
    }

    fn withdraw(&mut self, slot: SlotId, channel: ChannelId, planes: &mut Planes) {
        if self.slots.drop_copies(slot, channel) {
            self.clear_presence(slot, self.slots.channels.get(channel).plane, planes);
            self.retire_if_bare(slot);
        }
    }

    /// The channel of a group's certain or likely copies on a tier.
    fn inferred_channel(
        &mut self,
        base: u16,
        group: SilentGroup,
        tier: Tier,
        planes: &mut Planes,
    ) -> ChannelId {
        self.channel(inferred(base + group.index, tier), planes)
    }

    /// Panics unless what is likely of silent groups is shown by copies.
    pub(in crate::fleet) fn check_silent(&self, nodes: &Nodes) {
        let Some(silent) = &self.silent else {
            return;
        };
        silent.check_integrity();
        assert!(self.shows_marks(nodes), "a marked page has a copy");
    }

    /// Whether each page at which something is likely has a copy that shows it, or is about to get one.
    pub(in crate::fleet) fn shows_marks(&self, nodes: &Nodes) -> bool {
        let mut marked = self.silent.iter().flat_map(|silent| silent.marked());
        marked.all(|(group, hash, will_be_shown)| {
            let channel = self.slots.channels.find(inferred(group, Tier::Gpu));
            let held = self.slots.find(hash, nodes).zip(channel);
            let is_shown = held.is_some_and(|(slot, channel)| self.slots.holds(slot, channel));
            will_be_shown.unwrap_or(is_shown)
        })
    }

    /// Whether what is inferred of silent groups is certain. A refused event may have stored a page
    /// after a leaf, and how an engine with further tiers moves windows and states between them is not
    /// known.
    pub(in crate::fleet) fn can_promise_silent(&self) -> bool {
        self.state.missed.is_none() && self.is_on_gpu_alone()
    }

    fn is_on_gpu_alone(&self) -> bool {
        let mut channels = self.slots.channels.iter();
        channels.all(|(_, channel)| channel.key.tier == Tier::Gpu)
    }
}
