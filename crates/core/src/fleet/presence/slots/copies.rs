//! The copies of one slot: a mask bit for the first copy of a channel, a side table for further
//! ones.

use smallvec::SmallVec;

use super::{ChannelId, SlotId, Slots, spilled_bytes};
use crate::fleet::presence::planes::PlaneId;

/// Channels from this number on are counted in the side table only.
pub(super) const MASKED: u16 = 64;
impl Slots {
    /// Adds a copy. Returns true if it is the channel's first.
    pub(crate) fn add_copy(&mut self, slot: SlotId, channel: ChannelId) -> bool {
        self.stirred.insert(slot);
        self.add_doubts(slot, channel, 1)
    }

    /// The same as `add_copy`, for copies in doubt on a tier that no clear empties.
    pub(crate) fn add_doubts(&mut self, slot: SlotId, channel: ChannelId, copies: u32) -> bool {
        let is_first = copies > 0 && !self.holds(slot, channel);
        if self.channels.is_on_gpu(channel) {
            self.on_gpu += u64::from(copies);
        }
        let mut further = copies;
        if channel.0 < MASKED && is_first {
            self.masks.set(slot, channel);
            further -= 1;
        }
        if further > 0 {
            self.count_further(slot, channel, further);
        }
        is_first
    }

    /// Adds copies to the side table.
    fn count_further(&mut self, slot: SlotId, channel: ChannelId, copies: u32) {
        let counts = self.more.entry(slot.0).or_default();
        match counts.binary_search_by_key(&channel.0, |(c, _)| *c) {
            Ok(at) => counts[at].1 = counts[at].1.saturating_add(copies),
            Err(at) => {
                self.spilled -= spilled_bytes(counts);
                counts.insert(at, (channel.0, copies));
                self.spilled += spilled_bytes(counts);
            }
        }
    }

    /// Removes a copy. Returns `None` if there was none, and `Some(true)` if it was the channel's
    /// last.
    pub(crate) fn remove_copy(&mut self, slot: SlotId, channel: ChannelId) -> Option<bool> {
        let removed = self.take_copy(slot, channel);
        if removed.is_some() && self.channels.is_on_gpu(channel) {
            self.on_gpu -= 1;
        }
        removed
    }

    fn take_copy(&mut self, slot: SlotId, channel: ChannelId) -> Option<bool> {
        if let Some(last) = self.take_counted(slot, channel, 1) {
            return Some(last && channel.0 >= MASKED);
        }
        if channel.0 >= MASKED {
            return None;
        }
        self.masks.clear(slot, channel).then_some(true)
    }

    /// Removes up to `copies` from the side table. Returns whether none is left there; `None` if
    /// none was there.
    fn take_counted(&mut self, slot: SlotId, channel: ChannelId, copies: u32) -> Option<bool> {
        if self.more.is_empty() {
            return None;
        }
        let counts = self.more.get_mut(&slot.0)?;
        let at = counts.binary_search_by_key(&channel.0, |(c, _)| *c).ok()?;
        counts[at].1 = counts[at].1.saturating_sub(copies);
        let is_last = counts[at].1 == 0;
        if is_last {
            counts.remove(at);
            if counts.is_empty() {
                self.spilled -= spilled_bytes(counts);
                self.more.remove(&slot.0);
            }
        }
        Some(is_last)
    }

    fn counted(&self, slot: SlotId, channel: ChannelId) -> u32 {
        let counts = self.more.get(&slot.0).map_or(&[][..], SmallVec::as_slice);
        let at = counts.binary_search_by_key(&channel.0, |(c, _)| *c);
        at.map_or(0, |at| counts[at].1)
    }

    /// Drops all copies of a channel at a slot. Returns true if there was one.
    pub(crate) fn drop_copies(&mut self, slot: SlotId, channel: ChannelId) -> bool {
        if self.channels.is_on_gpu(channel) {
            self.on_gpu -= u64::from(self.copies(slot, channel));
        }
        let more = self.take_counted(slot, channel, u32::MAX).is_some();
        if channel.0 >= MASKED {
            return more;
        }
        self.masks.clear(slot, channel)
    }

    /// Drops all copies of a slot that stands nowhere, so none of its bits is shown.
    pub(crate) fn drop_all_of(&mut self, slot: SlotId) {
        let held: SmallVec<[ChannelId; 8]> = self.held_channels(slot).collect();
        for channel in held {
            self.drop_copies(slot, channel);
        }
    }

    /// Whether the channel has a copy at the slot.
    #[must_use]
    pub(crate) fn holds(&self, slot: SlotId, channel: ChannelId) -> bool {
        if channel.0 < MASKED {
            self.masks.has(slot, channel)
        } else {
            self.counted(slot, channel) > 0
        }
    }

    /// Whether any channel has a copy at the slot.
    #[must_use]
    pub(crate) fn is_held(&self, slot: SlotId) -> bool {
        self.masks.get(slot) != 0 || self.beyond_mask(slot).next().is_some()
    }

    /// The channels that have a copy at the slot.
    pub(crate) fn held_channels(&self, slot: SlotId) -> impl Iterator<Item = ChannelId> + '_ {
        let mut mask = self.masks.get(slot);
        let masked = std::iter::from_fn(move || {
            let bit = u16::try_from(mask.trailing_zeros()).unwrap_or(MASKED);
            mask &= mask.wrapping_sub(1);
            (bit < MASKED).then_some(ChannelId(bit))
        });
        masked.chain(self.beyond_mask(slot))
    }

    /// The channels without a mask bit that have a copy at the slot.
    fn beyond_mask(&self, slot: SlotId) -> impl Iterator<Item = ChannelId> + '_ {
        let may_be = self.channels.len() > usize::from(MASKED);
        let counts = may_be.then(|| self.more.get(&slot.0)).flatten();
        let channels = counts.into_iter().flatten().map(|(c, _)| *c);
        channels.filter(|c| *c >= MASKED).map(ChannelId)
    }

    /// Whether another channel of the same plane has a copy at the slot.
    #[must_use]
    pub(crate) fn plane_is_held(&self, slot: SlotId, plane: PlaneId) -> bool {
        self.held_channels(slot)
            .any(|c| self.channels.get(c).plane == plane)
    }

    /// The number of copies on the GPU that are certain.
    #[must_use]
    pub(crate) fn num_on_gpu(&self) -> u64 {
        self.on_gpu
    }

    /// The number of copies of one slot on the GPU that are certain.
    #[must_use]
    pub(crate) fn copies_on_gpu(&self, slot: SlotId) -> u64 {
        let channels = self.held_channels(slot);
        let on_gpu = channels.filter(|channel| self.channels.is_on_gpu(*channel));
        on_gpu.map(|c| u64::from(self.copies(slot, c))).sum()
    }

    /// The number of copies at a slot in one channel.
    #[must_use]
    pub(crate) fn copies(&self, slot: SlotId, channel: ChannelId) -> u32 {
        let first = u32::from(channel.0 < MASKED && self.holds(slot, channel));
        first + self.counted(slot, channel)
    }
}
