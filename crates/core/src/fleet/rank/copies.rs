//! Adding and removing copies of one rank, and the presence bits that follow from them.
//!
//! A bit is set while some channel of its plane has a copy of a hash that stands at the bit's node.

use std::ops::Range;

use super::Rank;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::planes::{PlaneId, Planes};
use crate::fleet::presence::sharing::Sign;
use crate::fleet::presence::slots::{Channel, ChannelId, ChannelKey, SlotId, Whereabouts};

/// The key of the same copies once they are in doubt.
fn in_doubt(key: ChannelKey) -> ChannelKey {
    ChannelKey {
        doubted: true,
        ..key
    }
}

/// The key of the interior entries of a hash instead of its whole ones, or the reverse.
fn of_other_kind(key: ChannelKey) -> ChannelKey {
    ChannelKey {
        partial: !key.partial,
        ..key
    }
}

impl Rank {
    /// Adds a copy and sets its presence bit. Where copies are counted it is a further one, so those
    /// in doubt stay; elsewhere it is the copy that was in doubt.
    pub(in crate::fleet) fn add_copy(
        &mut self,
        slot: SlotId,
        channel: ChannelId,
        shared: &mut SharedPresence<'_>,
    ) {
        if self.slots.holds(slot, channel) && !self.counts(channel) {
            return;
        }
        let is_first = self.count_copy(slot, channel, shared);
        if is_first && self.slots.channels.has_doubts() && !self.counts(channel) {
            self.drop_doubt(slot, self.slots.channels.get(channel).key, shared.planes);
        }
    }

    /// Whether a second store in a channel is a second copy.
    fn counts(&self, channel: ChannelId) -> bool {
        let tier = self.slots.channels.get(channel).key.tier;
        let config = &self.catalog.config;
        // Copies for several extra keys are told of alike, and each is removed by its own event.
        self.counts_copies && (config.publisher.counts_copies(tier) || config.hidden.extra_keys)
    }

    /// Counts a copy and sets its presence bit; what is in doubt stays in doubt. Returns true if it
    /// is the channel's first copy.
    fn count_copy(
        &mut self,
        slot: SlotId,
        channel: ChannelId,
        shared: &mut SharedPresence<'_>,
    ) -> bool {
        if !self.slots.add_copy(slot, channel) {
            self.note_second_copy(slot, channel, shared);
            return false;
        }
        let bit = self.column.bit;
        if self.slots.set_presence(slot, channel, shared.planes, bit)
            && let Whereabouts::Placed(node) = self.slots.whereabouts(slot)
            && !self.slots.channels.get(channel).key.doubted
        {
            let key = shared.nodes.key(node);
            if !self
                .adapters
                .is_current(key, self.slots.key(slot, shared.nodes))
            {
                self.slots.sharing.mark(Some(key), Sign::TwoHashes);
                self.settle_accounts();
            }
        }
        true
    }

    /// Notes that a hash was stored once more, if that shows that the pod has extra keys: whose copy
    /// is whose is not told, so nothing is certain from there on.
    fn note_second_copy(&mut self, slot: SlotId, channel: ChannelId, shared: &SharedPresence<'_>) {
        let tier = self.slots.channels.get(channel).key.tier;
        let config = &self.catalog.config;
        if config.publisher.stores_once(tier) && !config.hidden.extra_keys {
            let key = match self.slots.whereabouts(slot) {
                Whereabouts::Placed(node) => Some(shared.nodes.key(node)),
                Whereabouts::Limbo(_) => None,
            };
            self.slots.sharing.mark(key, Sign::StoredTwice);
            self.settle_accounts();
        }
    }

    /// Drops a copy that was in doubt, because a store has shown that it is there.
    fn drop_doubt(&mut self, slot: SlotId, key: ChannelKey, planes: &mut Planes) {
        if let Some(twin) = self.slots.channels.find(in_doubt(key))
            && self.slots.drop_copies(slot, twin)
        {
            self.clear_presence(slot, self.slots.channels.get(twin).plane, planes);
        }
    }

    /// Clears the slot's bit in a plane in which the slot no longer has a copy.
    pub(in crate::fleet) fn clear_presence(
        &mut self,
        slot: SlotId,
        plane: PlaneId,
        planes: &mut Planes,
    ) {
        self.slots
            .clear_presence(slot, plane, planes, self.column.bit);
    }

    /// Removes a copy. Returns false if there was none.
    pub(in crate::fleet) fn remove_copy(
        &mut self,
        slot: SlotId,
        key: ChannelKey,
        planes: &mut Planes,
    ) -> bool {
        // A removal does not say whether the block was whole.
        let held = [false, true].map(|partial| {
            let channel = self.slots.channels.find(ChannelKey { partial, ..key })?;
            self.slots.holds(slot, channel).then_some(channel)
        });
        match held {
            [Some(whole), Some(part)] => self.remove_either(slot, whole, part, planes),
            [Some(channel), None] | [None, Some(channel)] => {
                self.remove_certain(slot, channel, planes);
            }
            [None, None] => return self.take_doubt(slot, key, planes),
        }
        true
    }

    /// Removes a copy of the only kind of which a copy is certain. If it is the last, and one of the
    /// other kind is in doubt, either may be the one that is gone.
    fn remove_certain(&mut self, slot: SlotId, channel: ChannelId, planes: &mut Planes) {
        let Channel { key, plane, .. } = self.slots.channels.get(channel);
        let is_last = self.slots.copies(slot, channel) == 1;
        if is_last && self.doubts(slot, of_other_kind(key)) > 0 {
            self.doubt(slot, channel, planes);
            self.take_doubt(slot, key, planes);
        } else if self.slots.remove_copy(slot, channel) == Some(true) {
            self.clear_presence(slot, plane, planes);
            self.retire_if_bare(slot);
        }
    }

    /// Handles the removal of one of two copies when the event does not say which: the last copy of
    /// its kind is put in doubt.
    fn remove_either(
        &mut self,
        slot: SlotId,
        whole: ChannelId,
        part: ChannelId,
        planes: &mut Planes,
    ) {
        let is_last = [whole, part].map(|channel| self.slots.copies(slot, channel) == 1);
        match is_last {
            [false, _] => {
                self.slots.remove_copy(slot, whole);
            }
            [true, false] => {
                self.slots.remove_copy(slot, part);
                self.doubt(slot, whole, planes);
            }
            [true, true] => {
                self.doubt(slot, whole, planes);
                self.doubt(slot, part, planes);
                self.take_doubt(slot, self.slots.channels.get(whole).key, planes);
            }
        }
    }

    /// Puts the copies of a channel in doubt: they may be gone, so they count as possible and not
    /// as certain.
    fn doubt(&mut self, slot: SlotId, channel: ChannelId, planes: &mut Planes) {
        let Channel { key, plane, .. } = self.slots.channels.get(channel);
        let copies = self.slots.copies(slot, channel);
        self.add_doubts(slot, key, copies, planes);
        self.slots.drop_copies(slot, channel);
        self.clear_presence(slot, plane, planes);
    }

    /// Counts copies in doubt. A removal does not say whether the block was whole, so if both kinds
    /// are in doubt, the count of each is how many of both may be left.
    pub(in crate::fleet) fn add_doubts(
        &mut self,
        slot: SlotId,
        key: ChannelKey,
        copies: u32,
        planes: &mut Planes,
    ) {
        let [own, other] = [key, of_other_kind(key)].map(|key| self.doubts(slot, key));
        let all = own.max(other).saturating_add(copies);
        self.add_doubts_of_kind(slot, key, all - own, planes);
        if other > 0 {
            self.add_doubts_of_kind(slot, of_other_kind(key), all - other, planes);
        }
    }

    fn add_doubts_of_kind(
        &mut self,
        slot: SlotId,
        key: ChannelKey,
        copies: u32,
        planes: &mut Planes,
    ) {
        let twin = self.channel(in_doubt(key), planes);
        if self.slots.add_doubts(slot, twin, copies) {
            (self.slots).set_presence(slot, twin, planes, self.column.bit);
        }
    }

    /// The number of copies in doubt.
    fn doubts(&self, slot: SlotId, key: ChannelKey) -> u32 {
        let twin = self.slots.channels.find(in_doubt(key));
        twin.map_or(0, |twin| self.slots.copies(slot, twin))
    }

    /// Removes one copy in doubt, of whichever kind. Returns false if there was none.
    fn take_doubt(&mut self, slot: SlotId, key: ChannelKey, planes: &mut Planes) -> bool {
        let mut was_doubted = false;
        for key in [key, of_other_kind(key)] {
            let Some(twin) = self.slots.channels.find(in_doubt(key)) else {
                continue;
            };
            let taken = self.slots.remove_copy(slot, twin);
            was_doubted |= taken.is_some();
            if taken == Some(true) {
                self.clear_presence(slot, self.slots.channels.get(twin).plane, planes);
            }
        }
        if was_doubted {
            self.retire_if_bare(slot);
        }
        was_doubted
    }

    pub(in crate::fleet) fn retire_if_bare(&mut self, slot: SlotId) {
        if !self.slots.is_held(slot)
            && matches!(self.slots.whereabouts(slot), Whereabouts::Placed(_))
        {
            self.slots.retire(slot);
        }
    }

    /// Handles groups whose blocks turned out larger: what was taken for whole blocks were parts of
    /// one. Among placeholders there are both, so copies that may be such are in doubt. No event has
    /// mentioned a copy here, so what is in doubt stays in doubt. Looks at a part of the table, and
    /// returns the position at which it stopped.
    pub(in crate::fleet) fn regrade(
        &mut self,
        groups: &[u16],
        part: Range<usize>,
        shared: &mut SharedPresence<'_>,
    ) -> usize {
        let channels = &self.slots.channels;
        let whole =
            (channels.iter()).filter(|(_, c)| groups.contains(&c.key.group) && !c.key.partial);
        let (unsure, sure): (Vec<_>, Vec<_>) =
            whole.partition(|(_, c)| channels.has_placeholders(c.key));
        let moves: Vec<(ChannelId, ChannelId)> = sure
            .into_iter()
            .map(|(from, c)| (from, self.channel(of_other_kind(c.key), shared.planes)))
            .collect();
        let doubts = unsure.iter().filter(|(_, c)| !c.key.doubted);
        let doubts: Vec<ChannelId> = doubts.map(|(id, _)| *id).collect();
        let end = part.end.min(self.slots.end());
        if moves.is_empty() && doubts.is_empty() {
            return end;
        }
        for at in part.start..end {
            if let Some(slot) = self.slots.held_at(at) {
                for &(from, to) in &moves {
                    self.move_copies(slot, from, to, shared);
                }
                for &channel in &doubts {
                    if self.slots.holds(slot, channel) {
                        self.doubt(slot, channel, shared.planes);
                    }
                }
            }
        }
        end
    }

    fn move_copies(
        &mut self,
        slot: SlotId,
        from: ChannelId,
        to: ChannelId,
        shared: &mut SharedPresence<'_>,
    ) {
        let copies = self.slots.copies(slot, from);
        if copies == 0 {
            return;
        }
        self.slots.drop_copies(slot, from);
        self.clear_presence(slot, self.slots.channels.get(from).plane, shared.planes);
        for _ in 0..copies {
            self.count_copy(slot, to, shared);
        }
    }
}
