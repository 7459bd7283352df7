//! Operations on many slots at once, in the order of the table.

use hashbrown::HashMap;

use super::copies::MASKED;
use super::slot_set::SlotSet;
use super::{ChannelId, NodeId, SlotId, Slots};

impl Slots {
    /// The mask bits of these channels; channels without a mask bit are left out.
    #[must_use]
    pub(crate) fn mask_of(channels: impl Iterator<Item = ChannelId>) -> u64 {
        let masked = channels.filter(|channel| channel.0 < MASKED);
        masked.fold(0, |mask, channel| mask | 1 << channel.0)
    }

    /// Drops every copy at a slot if each is the only copy of a channel in this mask.
    pub(crate) fn drop_within(&mut self, slot: SlotId, channels: u64) -> bool {
        let mask = self.masks.get(slot);
        let is_within =
            mask & !channels == 0 && (self.more.is_empty() || !self.more.contains_key(&slot.0));
        if is_within {
            self.on_gpu -= self.copies_on_gpu(slot);
            self.masks.clear_all(slot);
        }
        is_within
    }

    /// Whether no slot has a copy.
    #[must_use]
    pub(crate) fn holds_nothing(&self) -> bool {
        self.more.is_empty() && self.masks.are_clear()
    }

    /// One more than the largest slot index.
    #[must_use]
    pub(crate) fn end(&self) -> usize {
        self.places.len()
    }

    /// The slot of an index, if it has a copy.
    #[must_use]
    pub(crate) fn held_at(&self, index: usize) -> Option<SlotId> {
        let slot = SlotId(u32::try_from(index).ok()?);
        self.is_held(slot).then_some(slot)
    }

    /// Drops every copy of every slot. The caller clears the presence bits.
    pub(crate) fn drop_all(&mut self) {
        for slot in (0u32..).map(SlotId).take(self.places.len()) {
            self.masks.clear_all(slot);
            if self.node(slot).is_some() {
                self.retire(slot);
            }
        }
        self.stirred = SlotSet::default();
        (self.more, self.spilled) = (HashMap::new(), 0);
        self.on_gpu = 0;
        self.sharing.show_nothing();
    }

    /// Forgets everything except where two hashes were held. Returns the nodes at which slots
    /// stood.
    pub(crate) fn take_all(&mut self) -> Vec<NodeId> {
        let sharing = std::mem::take(&mut self.sharing);
        let old = std::mem::replace(self, Self::new(self.own.spread()));
        self.sharing = sharing;
        self.sharing.show_nothing();
        let slots = (0u32..).map(SlotId).take(old.places.len());
        slots.filter_map(|slot| old.node(slot)).collect()
    }

    /// The nodes of a sample of this many slots, spread over the whole table; slots without a node
    /// are left out.
    pub(crate) fn sample(&self, many: usize) -> impl Iterator<Item = NodeId> + '_ {
        let step = self.places.len().div_ceil(many).max(1);
        let some = (self.hand % step..self.places.len()).step_by(step);
        some.filter_map(|at| self.node(SlotId(u32::try_from(at).ok()?)))
    }

    /// The next placed slot in a round over the table. Every slot passed costs one of `looks`;
    /// `None` when they are used up.
    pub(crate) fn next_placed(&mut self, looks: &mut usize) -> Option<(SlotId, NodeId)> {
        while *looks > 0 && !self.places.is_empty() {
            *looks -= 1;
            self.hand = (self.hand + 1) % self.places.len();
            let slot = SlotId(u32::try_from(self.hand).expect("fewer than 2^32 hashes"));
            if let Some(node) = self.node(slot) {
                return Some((slot, node));
            }
        }
        None
    }
}
