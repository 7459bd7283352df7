//! What one rank of one pod named and holds: engine hash -> slot -> place and copies.
//!
//! Presence is a count of copies per channel (group, tier, owner, …), kept on the hash, so that a
//! removal is exact whether or not the hash was ever placed. The first copy is a bit of the slot's
//! mask; further copies, which are rare, live in a side table.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::nodes::NodeId;
use super::planes::PlaneId;
use super::tier::Tier;
use crate::key_table::KeyTable;
use crate::secret::Spread;

/// An engine's hash of a block, as the wire's 64-bit integer.
pub(super) type EngineKey = u64;

/// Index of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SlotId(pub u32);

/// Index of a limbo entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryId(pub u32);

/// Index of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChannelId(pub u16);

/// Whether the boundary of a hash is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// It stands at this node.
    Placed(NodeId),
    /// Not known yet: see the limbo entry.
    Limbo(EntryId),
}

/// What separates one count of copies from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChannelKey {
    /// Group index on the wire.
    pub group: u16,
    /// Entries smaller than the group's block.
    pub partial: bool,
    /// Where the copy is.
    pub tier: Tier,
    /// The producer called the copy remote.
    pub remote: bool,
    /// The interned owner; 0 = none.
    pub owner: u32,
    /// Unconfirmed since a clear.
    pub doubted: bool,
}

/// A channel and the plane that its bits go to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channel {
    /// Its identity.
    pub key: ChannelKey,
    /// Where its presence bits are.
    pub plane: PlaneId,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: EngineKey,
    mask: u64,
    place: u32,
    retired: bool,
}

const LIMBO: u32 = 1 << 31;
/// Channels from this one on are counted in the side table alone.
const MASKED: u16 = 64;

/// Names without a copy that a rank keeps at least: about half a megabyte.
const NAMES_KEPT: usize = 8192;

/// The table of one rank.
#[derive(Debug)]
pub(super) struct Slots {
    by_key: KeyTable,
    table: Vec<Slot>,
    free: Vec<u32>,
    channels: Vec<Channel>,
    /// Copies beyond the first (all copies, for channels without a mask bit).
    more: HashMap<(u32, u16), u32>,
    /// Slots without a copy, oldest first; kept a while because children still name them.
    retired: VecDeque<u32>,
}

impl Slots {
    /// No hash yet.
    #[must_use]
    pub(super) fn new(spread: Spread) -> Self {
        Self {
            by_key: KeyTable::new(spread),
            table: Vec::new(),
            free: Vec::new(),
            channels: Vec::new(),
            more: HashMap::new(),
            retired: VecDeque::new(),
        }
    }

    /// The slot of a hash.
    #[must_use]
    pub(super) fn find(&self, key: EngineKey) -> Option<SlotId> {
        let has = |id: u32| self.table[id as usize].key == key;
        self.by_key.find(key, has).map(SlotId)
    }

    /// Looks hashes up that will be looked up one by one next: nothing here waits for anything
    /// else, so that their fetches from memory overlap. Returns how many are known.
    pub(super) fn fetch(&self, keys: &[EngineKey]) -> usize {
        keys.iter().filter(|&&key| self.find(key).is_some()).count()
    }

    /// Makes the slot of a hash that has none, without copies.
    pub(super) fn insert(&mut self, key: EngineKey, whereabouts: Whereabouts) -> SlotId {
        let slot = Slot {
            key,
            mask: 0,
            place: encode(whereabouts),
            retired: false,
        };
        let id = if let Some(id) = self.free.pop() {
            self.table[id as usize] = slot;
            id
        } else {
            self.table.push(slot);
            u32::try_from(self.table.len() - 1).expect("fewer than 2^32 hashes")
        };
        self.by_key.insert(key, id);
        SlotId(id)
    }

    /// Forgets a slot that has no copies.
    pub(super) fn forget(&mut self, slot: SlotId) {
        let key = self.key(slot);
        debug_assert!(!self.is_held(slot), "slot {slot:?} is forgotten while held");
        if self.by_key.remove(key, slot.0) {
            self.table[slot.0 as usize].retired = false;
            self.free.push(slot.0);
        }
    }

    /// The hash of a slot.
    #[must_use]
    pub(super) fn key(&self, slot: SlotId) -> EngineKey {
        self.table[slot.0 as usize].key
    }

    /// Where the hash of a slot stands.
    #[must_use]
    pub(super) fn whereabouts(&self, slot: SlotId) -> Whereabouts {
        decode(self.table[slot.0 as usize].place)
    }

    /// Moves a slot.
    pub(super) fn set_whereabouts(&mut self, slot: SlotId, whereabouts: Whereabouts) {
        self.table[slot.0 as usize].place = encode(whereabouts);
    }

    /// The channel of a key, if it exists.
    #[must_use]
    pub(super) fn find_channel(&self, key: ChannelKey) -> Option<ChannelId> {
        let index = self.channels.iter().position(|c| c.key == key)?;
        u16::try_from(index).ok().map(ChannelId)
    }

    /// Adds a channel.
    pub(super) fn add_channel(&mut self, channel: Channel) -> ChannelId {
        self.channels.push(channel);
        ChannelId(u16::try_from(self.channels.len() - 1).expect("fewer than 65536 channels"))
    }

    /// A channel by index.
    #[must_use]
    pub(super) fn channel(&self, channel: ChannelId) -> Channel {
        self.channels[channel.0 as usize]
    }

    /// All channels with their indices.
    pub(super) fn channels(&self) -> impl Iterator<Item = (ChannelId, Channel)> + '_ {
        (0u16..).map(ChannelId).zip(self.channels.iter().copied())
    }

    /// Adds a copy; true when it is the channel's first.
    pub(super) fn add_copy(&mut self, slot: SlotId, channel: ChannelId) -> bool {
        if channel.0 < MASKED {
            let mask = &mut self.table[slot.0 as usize].mask;
            if *mask & (1 << channel.0) == 0 {
                *mask |= 1 << channel.0;
                return true;
            }
        }
        let count = self.more.entry((slot.0, channel.0)).or_insert(0);
        *count += 1;
        channel.0 >= MASKED && *count == 1
    }

    /// Takes a copy away. `None`: there was none; `Some(true)`: it was the channel's last.
    pub(super) fn remove_copy(&mut self, slot: SlotId, channel: ChannelId) -> Option<bool> {
        let at = (slot.0, channel.0);
        if !self.more.is_empty()
            && let Some(count) = self.more.get_mut(&at)
        {
            *count -= 1;
            if *count > 0 {
                return Some(false);
            }
            self.more.remove(&at);
            return Some(channel.0 >= MASKED);
        }
        if channel.0 >= MASKED {
            return None;
        }
        let mask = &mut self.table[slot.0 as usize].mask;
        let held = *mask & (1 << channel.0) != 0;
        *mask &= !(1 << channel.0);
        held.then_some(true)
    }

    /// Drops all copies of a channel at a slot; true when there was one.
    pub(super) fn drop_copies(&mut self, slot: SlotId, channel: ChannelId) -> bool {
        let more = self.more.remove(&(slot.0, channel.0)).is_some();
        if channel.0 >= MASKED {
            return more;
        }
        let mask = &mut self.table[slot.0 as usize].mask;
        let held = *mask & (1 << channel.0) != 0;
        *mask &= !(1 << channel.0);
        held
    }

    /// Whether the channel has a copy at the slot.
    #[must_use]
    pub(super) fn holds(&self, slot: SlotId, channel: ChannelId) -> bool {
        if channel.0 < MASKED {
            self.table[slot.0 as usize].mask & (1 << channel.0) != 0
        } else {
            self.more.contains_key(&(slot.0, channel.0))
        }
    }

    /// Whether any channel has a copy at the slot.
    #[must_use]
    pub(super) fn is_held(&self, slot: SlotId) -> bool {
        self.table[slot.0 as usize].mask != 0
            || (self.channels.len() > usize::from(MASKED)
                && self.held_channels(slot).next().is_some())
    }

    /// The channels that have a copy at the slot.
    pub(super) fn held_channels(&self, slot: SlotId) -> impl Iterator<Item = ChannelId> + '_ {
        let mask = self.table[slot.0 as usize].mask;
        let count = self.channels.len().min(usize::from(u16::MAX));
        (0..u16::try_from(count).unwrap_or(u16::MAX))
            .map(ChannelId)
            .filter(move |c| {
                if c.0 < MASKED {
                    mask & (1 << c.0) != 0
                } else {
                    self.more.contains_key(&(slot.0, c.0))
                }
            })
    }

    /// Whether another channel of the same plane has a copy at the slot.
    #[must_use]
    pub(super) fn plane_is_held(&self, slot: SlotId, plane: PlaneId) -> bool {
        self.held_channels(slot)
            .any(|c| self.channel(c).plane == plane)
    }

    /// Puts a slot without copies at the end of the line to be forgotten.
    pub(super) fn retire(&mut self, slot: SlotId) {
        let entry = &mut self.table[slot.0 as usize];
        if !entry.retired {
            entry.retired = true;
            self.retired.push_back(slot.0);
        }
    }

    /// The next retired slot that is still without copies, once more than the allowance wait.
    ///
    /// A name outlives its last copy, and a clear too: where a hash stands never changes, children
    /// may still be stored under it, and it may come back in a store that does not tell its place.
    /// The allowance bounds how many such names a rank keeps.
    pub(super) fn next_to_forget(&mut self) -> Option<SlotId> {
        while self.retired.len() > self.retired_allowance() {
            let id = self.retired.pop_front()?;
            // A slot that was forgotten meanwhile lost its mark; its index may be in use again.
            let was_retired = std::mem::take(&mut self.table[id as usize].retired);
            if was_retired && !self.is_held(SlotId(id)) {
                return Some(SlotId(id));
            }
        }
        None
    }

    fn retired_allowance(&self) -> usize {
        NAMES_KEPT + self.len().saturating_sub(self.retired.len()) / 8
    }

    /// Named hashes, held or not.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// All slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.by_key.ids().map(SlotId)
    }

    /// Copies at a slot in one channel.
    #[must_use]
    pub(super) fn copies(&self, slot: SlotId, channel: ChannelId) -> u32 {
        let first = u32::from(channel.0 < MASKED && self.holds(slot, channel));
        first + self.more.get(&(slot.0, channel.0)).copied().unwrap_or(0)
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(super) fn bytes(&self) -> usize {
        self.by_key.bytes()
            + self.table.capacity() * size_of::<Slot>()
            + self.more.allocation_size()
            + (self.free.capacity() + self.retired.capacity()) * 4
    }

    /// Panics unless every slot is found by its key and the side table speaks of live slots.
    pub(super) fn check_integrity(&self) {
        assert_eq!(
            self.by_key.len() + self.free.len(),
            self.table.len(),
            "slots and free slots"
        );
        for slot in self.iter() {
            assert_eq!(
                self.find(self.key(slot)),
                Some(slot),
                "slot {slot:?} by its key"
            );
        }
        for (&(slot, channel), &count) in &self.more {
            assert!(
                count > 0,
                "slot {slot} channel {channel}: an empty count is kept"
            );
            assert!(
                self.holds(SlotId(slot), ChannelId(channel)),
                "slot {slot}: copies, no bit"
            );
        }
    }
}

fn encode(whereabouts: Whereabouts) -> u32 {
    match whereabouts {
        Whereabouts::Placed(node) => node.0,
        Whereabouts::Limbo(entry) => entry.0 | LIMBO,
    }
}

fn decode(place: u32) -> Whereabouts {
    if place & LIMBO == 0 {
        Whereabouts::Placed(NodeId(place))
    } else {
        Whereabouts::Limbo(EntryId(place & !LIMBO))
    }
}
