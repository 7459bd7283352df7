//! The table of one rank in a snapshot: a record for each slot, in the order of the table, so that what
//! names a slot by its index stays right.
//!
//! ```text
//! tag  key (8)  key of the boundary (8)  [tokens]  [salt (8)  ahead (8)]  [number of copies, copies]
//! ```
//! Neighbours are alike: blocks of one chain, one step apart, held in the same channels. So a tag says
//! what is as in the record before, and most records have 17 bytes. `docs/design/snapshot.md` has the
//! format.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::own::{OwnHash, OwnHashes};
use super::{
    ChannelId, ChannelKey, Channels, Counts, EngineKey, LIMBO, LimboId, NOWHERE, SlotId, Slots,
    Whereabouts, decode,
};
use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::{NodeId, Nodes, Place};
use crate::fleet::presence::planes::{Column, Planes};
use crate::fleet::presence::sharing::Sharing;
use crate::fleet::snapshot::bytes::{Reader, put_small};
use crate::prefix::{PrefixKey, is_key};
use crate::secret::Spreader;

/// The slot belongs to a hash.
const IN_USE: u8 = 1 << 0;
/// The hash has no place yet.
const UNDECIDED: u8 = 1 << 1;
/// The slot waits to be forgotten.
const RETIRED: u8 = 1 << 2;
/// A clear looks at the slot.
const STIRRED: u8 = 1 << 3;
/// The boundary is one step after that of the record before.
const NEXT: u8 = 1 << 4;
/// The copies are those of the record before.
const SAME_COPIES: u8 = 1 << 5;
/// A salt and what lookahead tokens add follow.
const SET_APART: u8 = 1 << 6;

/// The place of a slot whose entry in limbo is not read yet.
const AWAITED: u32 = NOWHERE - 1;

/// So many hashes are looked up before the first of them is given its node.
const AT_ONCE: usize = 64;

/// What a snapshot has of a table besides its records.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::fleet) struct SavedSlots {
    num_slots: u32,
    channels: Vec<ChannelKey>,
    /// Those of the channels that have placeholders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    placeholders: Vec<ChannelId>,
    free: Vec<u32>,
    newest: Option<SlotId>,
    retired: Vec<u32>,
    hand: usize,
    sharing: Sharing,
}

/// Where the slots of a table that was read stand. Until they have boundaries in a model, a placed slot
/// has the number of its place instead of a node.
#[derive(Debug)]
pub(in crate::fleet) struct PlacesRead {
    places: Vec<Place>,
    sharing: Sharing,
}

/// What the record before said.
#[derive(Debug, Default)]
pub(in crate::fleet) struct SlotBefore {
    tokens: u32,
    step: u32,
    copies: Counts,
}

impl SlotBefore {
    fn go_to(&mut self, tokens: u32) {
        if tokens > self.tokens {
            self.step = tokens - self.tokens;
        }
        self.tokens = tokens;
    }
}

impl Slots {
    /// What a snapshot has of the table besides its records.
    pub(in crate::fleet) fn saved(&self) -> SavedSlots {
        let Self {
            places,
            by_node: _,
            own: _,
            masks: _,
            num_used: _,
            free,
            newest,
            channels,
            more: _,
            spilled: _,
            on_gpu: _,
            sharing,
            stirred: _,
            is_retired: _,
            retired,
            hand,
        } = self;
        SavedSlots {
            num_slots: u32::try_from(places.len()).expect("fewer than 2^32 hashes"),
            channels: channels.iter().map(|(_, channel)| channel.key).collect(),
            placeholders: channels.of_placeholders(),
            free: free.clone(),
            newest: *newest,
            retired: retired.iter().copied().collect(),
            hand: *hand,
            sharing: sharing.of_boundaries(),
        }
    }

    /// How many records the table has.
    pub(in crate::fleet) fn num_records(&self) -> usize {
        self.places.len()
    }

    /// The key of the prefix at which the hash of a slot stands, if it is placed.
    pub(in crate::fleet) fn prefix(&self, slot: SlotId, nodes: &Nodes) -> Option<PrefixKey> {
        self.node(slot).map(|node| nodes.place(node).prefix)
    }

    /// Writes the record of a slot.
    pub(in crate::fleet) fn save_slot(
        &self,
        id: SlotId,
        nodes: &Nodes,
        before: &mut SlotBefore,
        out: &mut Vec<u8>,
    ) {
        let (retired, stirred) = (self.is_retired.contains(id), self.stirred.contains(id));
        let place = self.place(id);
        let flag = |is_so: bool, flag: u8| if is_so { flag } else { 0 };
        let mut tag = flag(retired, RETIRED) | flag(stirred, STIRRED);
        if place == NOWHERE {
            out.push(tag);
            return;
        }
        let at = match decode(place) {
            Whereabouts::Placed(node) => Some(nodes.place(node)),
            Whereabouts::Limbo(_) => None,
        };
        let copies: Counts = (self.held_channels(id))
            .map(|channel| (channel.0, self.copies(id, channel)))
            .collect();
        let is_next = |place: Place| before.tokens.checked_add(before.step) == Some(place.boundary);
        let is_apart = |place: Place| place.salt != SaltId::NONE || place.ahead != 0;
        tag |= IN_USE | flag(at.is_none(), UNDECIDED);
        tag |= flag(at.is_some_and(is_next), NEXT) | flag(at.is_some_and(is_apart), SET_APART);
        tag |= flag(copies == before.copies, SAME_COPIES);
        out.push(tag);
        out.extend(self.key(id, nodes).to_le_bytes());
        if let Some(place) = at {
            out.extend(place.prefix.to_le_bytes());
            if tag & NEXT == 0 {
                put_small(out, place.boundary);
            }
            if tag & SET_APART != 0 {
                out.extend(place.salt.0.to_le_bytes());
                out.extend(place.ahead.to_le_bytes());
            }
            before.go_to(place.boundary);
        }
        if tag & SAME_COPIES == 0 {
            put_small(out, u32::try_from(copies.len()).unwrap_or(u32::MAX));
            for &(channel, count) in &copies {
                put_small(out, channel.into());
                put_small(out, count);
            }
            before.copies = copies;
        }
    }

    /// Reads a table. `None` if it cannot be one.
    pub(in crate::fleet) fn restored(
        saved: SavedSlots,
        spread: Spreader,
        reader: &mut Reader<'_>,
    ) -> Option<(Self, PlacesRead)> {
        let SavedSlots {
            num_slots,
            channels,
            placeholders,
            free,
            newest,
            retired,
            hand,
            sharing,
        } = saved;
        let (num_records, num_hashes) = room(num_slots, reader.0.len());
        let mut slots = Self {
            channels: Channels::of(&channels, &placeholders, &mut Planes::default(), 0)?,
            places: Vec::with_capacity(num_records),
            own: OwnHashes::with_room(spread, num_hashes),
            ..Self::new(spread)
        };
        let mut places = PlacesRead {
            places: Vec::with_capacity(num_hashes),
            sharing,
        };
        let mut before = SlotBefore::default();
        for id in 0..num_slots {
            places.read_slot(SlotId(id), &mut slots, &mut before, reader)?;
        }
        let is_free = |id: u32| slots.places.get(id as usize) == Some(&NOWHERE);
        let mut known = vec![false; slots.places.len()];
        let frees_each = free
            .iter()
            .all(|&id| is_free(id) && !std::mem::replace(&mut known[id as usize], true));
        let is_whole = frees_each && slots.len() + free.len() == slots.places.len();
        let is_in_use = |id: u32| (id as usize) < slots.places.len() && !is_free(id);
        let are_ids = retired.iter().all(|&id| (id as usize) < slots.places.len());
        if !(is_whole && are_ids && hand < 1 << 32 && newest.is_none_or(|slot| is_in_use(slot.0))) {
            return None;
        }
        (slots.free, slots.retired) = (free, retired.into());
        (slots.newest, slots.hand) = (newest, hand);
        Some((slots, places))
    }

    /// How many slots still wait for their entry in limbo.
    pub(in crate::fleet) fn num_awaited(&self) -> usize {
        self.own.num_at(AWAITED)
    }

    /// Points a slot that waits for it to its entry in limbo. Returns false if it does not wait.
    pub(in crate::fleet) fn enter_limbo(&mut self, slot: SlotId, entry: LimboId) -> bool {
        let is_slot = (slot.0 as usize) < self.places.len();
        let is_awaited = is_slot && self.place(slot) == AWAITED && entry.0 < AWAITED & !LIMBO;
        is_awaited && self.set_entry(slot, entry)
    }
}

impl PlacesRead {
    /// As `Slots::prefix`, before the table has boundaries.
    pub(in crate::fleet) fn prefix(&self, slots: &Slots, slot: SlotId) -> Option<PrefixKey> {
        let NodeId(place) = slots.node(slot)?;
        self.places.get(place as usize).map(|place| place.prefix)
    }

    fn read_slot(
        &mut self,
        id: SlotId,
        slots: &mut Slots,
        before: &mut SlotBefore,
        reader: &mut Reader<'_>,
    ) -> Option<()> {
        let tag = reader.byte()?;
        let (retired, stirred) = (tag & RETIRED != 0, tag & STIRRED != 0);
        let is_in_use = tag & IN_USE != 0;
        let key = if is_in_use { reader.u64()? } else { 0 };
        let place = match (is_in_use, tag & UNDECIDED != 0) {
            (false, _) => NOWHERE,
            (true, true) => AWAITED,
            (true, false) => self.read_place(tag, before, reader)?,
        };
        slots.places.push(NOWHERE);
        slots.masks.push();
        if stirred {
            slots.stirred.insert(id);
        }
        if retired {
            slots.is_retired.insert(id);
        }
        if !is_in_use {
            return (tag & !(RETIRED | STIRRED) == 0 && !retired).then_some(());
        }
        if slots.own.find(key).is_some() {
            return None;
        }
        slots.num_used += 1;
        slots.keep(id, key, place);
        if tag & SAME_COPIES == 0 {
            before.copies = read_copies(&slots.channels, reader)?;
        }
        let mut is_certain = false;
        for &(channel, copies) in &before.copies {
            let channel = ChannelId(channel);
            slots.add_doubts(id, channel, copies);
            is_certain |= !slots.channels.get(channel).key.doubted;
        }
        // A clear that did not look at it would leave it certain, and show nothing of it.
        (stirred || !is_certain).then_some(())
    }

    /// Reads a place, and returns its number.
    fn read_place(
        &mut self,
        tag: u8,
        before: &mut SlotBefore,
        reader: &mut Reader<'_>,
    ) -> Option<u32> {
        let prefix = reader.u64()?;
        let boundary = if tag & NEXT == 0 {
            reader.small()?
        } else {
            before.tokens.checked_add(before.step)?
        };
        let (salt, ahead) = if tag & SET_APART == 0 {
            (0, 0)
        } else {
            (reader.u64()?, reader.u64()?)
        };
        before.go_to(boundary);
        self.places.push(Place {
            boundary,
            prefix,
            ahead,
            salt: SaltId(salt),
        });
        let is_sound = [prefix, salt, ahead].into_iter().all(is_key);
        is_sound.then_some(u32::try_from(self.places.len() - 1).ok()?)
    }

    /// Gives a table its boundaries and bits in a model, for a rank with this column.
    pub(in crate::fleet) fn attach(
        self,
        slots: &mut Slots,
        column: Column,
        shared: &mut SharedPresence<'_>,
    ) {
        let Self { places, sharing } = self;
        let keys: Vec<ChannelKey> = slots.channels.iter().map(|(_, c)| c.key).collect();
        let placeholders = slots.channels.of_placeholders();
        slots.channels = Channels::of(&keys, &placeholders, shared.planes, column.word)
            .expect("keys that were read");
        let spread = slots.own.spread();
        let read = std::mem::replace(&mut slots.own, OwnHashes::new(spread)).all;
        let mut last = None;
        for some in read.chunks(AT_ONCE) {
            let placed = some.iter().filter(|hash| hash.place & LIMBO == 0);
            let placed = placed.map(|hash| (*hash, places[hash.place as usize]));
            let known = shared
                .nodes
                .known(placed.clone().map(|(hash, place)| (hash.key, place)), last);
            for ((OwnHash { key, slot, .. }, place), (node, usual)) in placed.zip(known) {
                let node = node.unwrap_or_else(|| shared.nodes.find_or_create(place, last));
                shared.nodes.acquire(node);
                slots.stand_in(slot, key, (node, usual), shared.nodes);
                let boundary = shared.nodes.key(node);
                slots.set_presence_of(slot, boundary, shared.planes, column.bit);
                last = Some(node);
            }
            for hash in some.iter().filter(|hash| hash.place & LIMBO != 0) {
                slots.keep(hash.slot, hash.key, hash.place);
            }
        }
        // What was ambiguous is told by the events alone.
        let bits = std::mem::replace(&mut slots.sharing, sharing).bits;
        slots.sharing.bits = bits;
    }
}

/// For how many records, and how many of hashes, these bytes have room: each has a tag, and those of
/// hashes have the hash too.
fn room(num_slots: u32, num_bytes: usize) -> (usize, usize) {
    let num_slots = num_slots as usize;
    let of_hash = 1 + size_of::<EngineKey>();
    (num_slots.min(num_bytes), num_slots.min(num_bytes / of_hash))
}

fn read_copies(channels: &Channels, reader: &mut Reader<'_>) -> Option<Counts> {
    let count = reader.small()? as usize;
    let mut copies: Counts = SmallVec::new();
    for _ in 0..count {
        let (channel, count) = (u16::try_from(reader.small()?).ok()?, reader.small()?);
        let is_next = copies.last().is_none_or(|(last, _)| *last < channel);
        if !is_next || usize::from(channel) >= channels.len() || count == 0 {
            return None;
        }
        copies.push((channel, count));
    }
    Some(copies)
}

impl Channels {
    /// The channels of these keys, in this order; `None` if there are too many, or one comes twice.
    fn of(
        keys: &[ChannelKey],
        placeholders: &[ChannelId],
        planes: &mut Planes,
        word: u16,
    ) -> Option<Self> {
        let mut channels = Self::default();
        for &key in keys {
            if channels.find(key).is_some() || channels.len() >= usize::from(u16::MAX) {
                return None;
            }
            channels.add(key, planes, word);
        }
        for &channel in placeholders {
            let channel = channels.all.get_mut(usize::from(channel.0))?;
            channel.has_placeholders = true;
        }
        Some(channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_is_made_for_more_than_the_bytes_can_tell() {
        assert_eq!(room(u32::MAX, 180), (180, 20));
        assert_eq!(room(7, 180), (7, 7));
        assert_eq!(room(7, 0), (0, 0));
    }
}
