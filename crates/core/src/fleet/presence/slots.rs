//! What one rank of one pod has named and holds: engine hash -> slot -> place and copies.
//!
//! Presence is a count of copies per channel (group, tier, owner, …). It is kept with the hash, so
//! a removal is exact whether or not the hash was ever placed. The first copy is a bit of the
//! slot's mask; further copies, which are rare, are kept in a side table.
//!
//! Whatever owners a producer invents, memory and time stay proportional to what is held: a channel
//! is found by its key, a slot looks only at the channels that hold it, and the number of channels
//! is limited.
//!
//! A hash that is the usual one of its node is known by its node, and is stored there, once for all ranks.
//! The others, mostly undecided ones, are kept here. So a slot takes some fifteen bytes, or sixty.
//!
//! In reading order:
//! - `whole`: operations on many slots at once;
//! - `copies`: the copies of one slot;
//! - `idle`: slots move to free places, so that the table can be cut off;
//! - `channels`: what sets copies of one hash apart: group, tier, owner;
//! - `saved`: the table in a snapshot;
//! - `own`: hashes that are kept here;
//! - `by_node`: the slots of the others;
//! - `masks`: the channels of each slot;
//! - `slot_set`: which slots wait for a clear, or to be forgotten.

use serde::{Deserialize, Serialize};

mod by_node;
mod channels;
mod copies;
mod idle;
mod masks;
mod own;
mod saved;
mod slot_set;
mod whole;

use std::collections::VecDeque;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::moved::idle_in_table;
use super::nodes::{NodeId, Nodes};
use super::sharing::Sharing;
use crate::prefix::PrefixKey;
use crate::secret::Spreader;
use by_node::ByNode;
use channels::Channels;
use masks::Masks;
use own::{OwnHash, OwnHashes};
use slot_set::SlotSet;

pub(in crate::fleet) use super::ids::{EngineKey, SlotId};
pub(in crate::fleet) use channels::{Channel, ChannelId, ChannelKey};
pub(in crate::fleet) use saved::{PlacesRead, SavedSlots, SlotBefore};

/// Index of a limbo entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::fleet) struct LimboId(pub u32);

/// Where a hash stands: at a node or, while it is undecided, in limbo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) enum Whereabouts {
    /// The hash stands at this node.
    Placed(NodeId),
    /// The place is not known yet; this is the hash's entry in limbo.
    Limbo(LimboId),
}

/// What the hash of a slot is known by.
#[derive(Debug, Clone, Copy)]
enum KnownBy {
    /// The hash is the usual one of this node.
    Node(NodeId),
    /// The hash is kept at this index.
    Own(u32),
    /// The slot belongs to no hash.
    Nothing,
}

const LIMBO: u32 = 1 << 31;
const OWN: u32 = 1 << 31;
/// The place of a slot that belongs to no hash.
const NOWHERE: u32 = u32::MAX;
/// A rank keeps at least this many names without a copy: about half a megabyte.
const NAMES_KEPT: usize = 8192;

/// The copies of one slot, by channel.
type Counts = SmallVec<[(u16, u32); 2]>;

/// The table of one rank.
#[derive(Debug)]
pub(in crate::fleet) struct Slots {
    /// For each slot, its node if its hash is the usual one there, or `OWN` and the index of its hash.
    places: Vec<u32>,
    by_node: ByNode,
    own: OwnHashes,
    masks: Masks,
    /// How many slots belong to a hash.
    num_used: usize,
    free: Vec<u32>,
    /// The slot that was made last, unless it has been forgotten.
    newest: Option<SlotId>,
    /// The channels in which copies are counted.
    pub(in crate::fleet) channels: Channels,
    /// For each slot, in the order of channels: its copies beyond the first, or all its copies for
    /// a channel without a mask bit.
    more: HashMap<u32, Counts>,
    /// The bytes of those counts that do not fit in the side table itself.
    spilled: usize,
    /// The number of copies on the GPU that are certain.
    on_gpu: u64,
    /// The bits that more than one hash sets.
    pub(in crate::fleet) sharing: Sharing,
    /// The slots that got a copy since the last clear, which has to look at them.
    stirred: SlotSet,
    /// Which slots are in the queue of slots to be forgotten.
    is_retired: SlotSet,
    /// The slots without a copy, oldest first. They are kept for a while because children still
    /// refer to them.
    retired: VecDeque<u32>,
    /// The slot at which the search for the oldest blocks continues.
    hand: usize,
}

impl Slots {
    /// A table without any hash.
    #[must_use]
    pub(in crate::fleet) fn new(spread: Spreader) -> Self {
        Self {
            places: Vec::new(),
            by_node: ByNode::new(spread),
            own: OwnHashes::new(spread),
            masks: Masks::default(),
            num_used: 0,
            free: Vec::new(),
            newest: None,
            channels: Channels::default(),
            more: HashMap::new(),
            spilled: 0,
            on_gpu: 0,
            sharing: Sharing::default(),
            stirred: SlotSet::default(),
            is_retired: SlotSet::default(),
            retired: VecDeque::new(),
            hand: 0,
        }
    }

    /// The slot of a hash.
    #[must_use]
    pub(in crate::fleet) fn find(&self, key: EngineKey, nodes: &Nodes) -> Option<SlotId> {
        self.find_usual(key, nodes.of_usual(key, None), nodes)
    }

    /// The same as `find` for a hash that is the usual one of this node.
    #[must_use]
    pub(in crate::fleet) fn find_usual(
        &self,
        key: EngineKey,
        usual: Option<NodeId>,
        nodes: &Nodes,
    ) -> Option<SlotId> {
        let slot = usual.and_then(|node| self.at_node(node, nodes));
        slot.or_else(|| self.own.find(key))
    }

    /// The slot whose hash is the usual one of a node.
    fn at_node(&self, node: NodeId, nodes: &Nodes) -> Option<SlotId> {
        let first = nodes.first_slot(node);
        if self.places.get(first.0 as usize) == Some(&node.0) {
            return Some(first);
        }
        self.by_node.find(node, &self.places)
    }

    /// The same as `find`, for the parent of a store. It is usually the newest hash, whose slot is
    /// known without a look-up: reading back what was just written into the table would be slow.
    #[must_use]
    pub(in crate::fleet) fn find_parent(&self, key: EngineKey, nodes: &Nodes) -> Option<SlotId> {
        let newest = self.newest.filter(|&slot| self.key(slot, nodes) == key);
        newest.or_else(|| self.find(key, nodes))
    }

    /// Looks up hashes that will be looked up one by one next, or the boundaries that new ones will get.
    /// The look-ups here do not depend on each other, so their fetches from memory overlap. Returns how
    /// many were found.
    pub(in crate::fleet) fn fetch<'a>(
        &self,
        keys: impl Iterator<Item = (&'a EngineKey, &'a PrefixKey)>,
        nodes: &Nodes,
    ) -> usize {
        let (mut hint, mut found) = (None, 0);
        for (&key, &boundary) in keys {
            let usual = nodes.of_usual(key, hint);
            let is_known = self.find_usual(key, usual, nodes).is_some();
            hint = usual.or_else(|| nodes.find(boundary, hint)).or(hint);
            found += usize::from(is_known || hint.is_some());
        }
        found
    }

    /// Makes the slot of an undecided hash that has none, without copies.
    pub(in crate::fleet) fn insert_undecided(&mut self, key: EngineKey, entry: LimboId) -> SlotId {
        let slot = self.new_slot();
        self.keep(slot, key, encode(Whereabouts::Limbo(entry)));
        slot
    }

    /// Makes the slot of a hash that has none and stands at a node, without copies; `usual` is the
    /// node of which it is the usual one.
    pub(in crate::fleet) fn insert_at(
        &mut self,
        key: EngineKey,
        node: NodeId,
        usual: Option<NodeId>,
        nodes: &mut Nodes,
    ) -> SlotId {
        let slot = self.new_slot();
        self.stand_in(slot, key, (node, usual), nodes);
        slot
    }

    /// Gives a slot, which belongs to no hash, one that stands at a node, as `insert_at` does.
    fn stand_in(
        &mut self,
        slot: SlotId,
        key: EngineKey,
        (node, usual): (NodeId, Option<NodeId>),
        nodes: &mut Nodes,
    ) {
        if nodes.claim(node, key, usual, slot) {
            self.know_by(slot, node, nodes);
        } else {
            self.keep(slot, key, node.0);
        }
    }

    fn new_slot(&mut self) -> SlotId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.places.push(NOWHERE);
            self.masks.push();
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 hashes")
        });
        self.num_used += 1;
        self.newest = Some(SlotId(id));
        SlotId(id)
    }

    /// Makes a slot that of the usual hash of a node.
    fn know_by(&mut self, slot: SlotId, node: NodeId, nodes: &Nodes) {
        self.places[slot.0 as usize] = node.0;
        if nodes.first_slot(node) != slot {
            self.by_node.insert(slot, &self.places);
        }
    }

    /// Keeps the hash of a slot here.
    fn keep(&mut self, slot: SlotId, key: EngineKey, place: u32) {
        let index = self.own.insert(OwnHash { key, place, slot });
        self.places[slot.0 as usize] = OWN | index;
    }

    /// Keeps a hash here no longer. Its slot belongs to no hash then.
    fn unkeep(&mut self, index: u32) {
        let removed = self.own.remove(index);
        self.places[removed.slot.0 as usize] = NOWHERE;
        if let Some(moved) = self.own.all.get(index as usize) {
            self.places[moved.slot.0 as usize] = OWN | index;
        }
    }

    /// Forgets a slot that has no copies.
    pub(in crate::fleet) fn forget(&mut self, slot: SlotId) {
        debug_assert!(!self.is_held(slot), "slot {slot:?} is forgotten while held");
        match self.known_by(slot) {
            KnownBy::Node(node) => {
                self.by_node.remove(slot, node.0);
                self.places[slot.0 as usize] = NOWHERE;
            }
            KnownBy::Own(index) => self.unkeep(index),
            KnownBy::Nothing => return,
        }
        self.num_used -= 1;
        self.is_retired.remove(slot);
        self.free.push(slot.0);
        self.newest = self.newest.filter(|&newest| newest != slot);
    }

    fn known_by(&self, slot: SlotId) -> KnownBy {
        match self.places.get(slot.0 as usize) {
            None | Some(&NOWHERE) => KnownBy::Nothing,
            Some(&place) if place & OWN == 0 => KnownBy::Node(NodeId(place)),
            Some(&place) => KnownBy::Own(place & !OWN),
        }
    }

    /// The hash of a slot that belongs to one.
    #[must_use]
    pub(in crate::fleet) fn key(&self, slot: SlotId, nodes: &Nodes) -> EngineKey {
        self.hash_in(slot, nodes)
            .unwrap_or_else(|| panic!("slot {slot:?} belongs to no hash"))
    }

    /// The hash of a slot, if there is such a slot and it belongs to one.
    #[must_use]
    pub(in crate::fleet) fn hash_in(&self, slot: SlotId, nodes: &Nodes) -> Option<EngineKey> {
        match self.known_by(slot) {
            KnownBy::Node(node) => Some(nodes.usual(node)),
            KnownBy::Own(index) => Some(self.own.all[index as usize].key),
            KnownBy::Nothing => None,
        }
    }

    /// The hash of a slot if it is kept here, as each undecided one is.
    #[must_use]
    pub(in crate::fleet) fn own_key(&self, slot: SlotId) -> Option<EngineKey> {
        match self.known_by(slot) {
            KnownBy::Own(index) => Some(self.own.all[index as usize].key),
            KnownBy::Node(_) | KnownBy::Nothing => None,
        }
    }

    /// Where the hash of a slot stands, as it is encoded; `NOWHERE` if it belongs to none.
    fn place(&self, slot: SlotId) -> u32 {
        match self.known_by(slot) {
            KnownBy::Node(node) => node.0,
            KnownBy::Own(index) => self.own.all[index as usize].place,
            KnownBy::Nothing => NOWHERE,
        }
    }

    /// The node of a slot whose hash is placed.
    fn node(&self, slot: SlotId) -> Option<NodeId> {
        let place = self.place(slot);
        (place & LIMBO == 0).then_some(NodeId(place))
    }

    /// Where the hash of a slot stands.
    #[must_use]
    pub(in crate::fleet) fn whereabouts(&self, slot: SlotId) -> Whereabouts {
        decode(self.place(slot))
    }

    /// Gives an undecided hash another entry in limbo. Returns false if the hash is not kept here.
    pub(in crate::fleet) fn set_entry(&mut self, slot: SlotId, entry: LimboId) -> bool {
        let KnownBy::Own(index) = self.known_by(slot) else {
            return false;
        };
        self.own.all[index as usize].place = encode(Whereabouts::Limbo(entry));
        true
    }

    /// Places a hash that was undecided.
    pub(in crate::fleet) fn stand_at(&mut self, slot: SlotId, node: NodeId, nodes: &mut Nodes) {
        let KnownBy::Own(index) = self.known_by(slot) else {
            return;
        };
        let key = self.own.all[index as usize].key;
        if nodes.claim(node, key, nodes.of_usual(key, None), slot) {
            self.unkeep(index);
            self.know_by(slot, node, nodes);
        } else {
            self.own.all[index as usize].place = node.0;
        }
    }

    /// Takes the held slots that got a copy since the last clear. What the other slots hold is
    /// already in doubt.
    pub(in crate::fleet) fn take_stirred(&mut self) -> Vec<SlotId> {
        self.take_some_stirred(usize::MAX)
    }

    /// Takes up to `most` of the slots that got a copy since the last clear, and returns those that
    /// are held.
    pub(in crate::fleet) fn take_some_stirred(&mut self, most: usize) -> Vec<SlotId> {
        let mut some = self.stirred.take(most);
        some.retain(|&slot| self.is_held(slot));
        some
    }

    /// How many slots got a copy since the last clear, held or not.
    #[must_use]
    pub(in crate::fleet) fn num_stirred(&self) -> usize {
        self.stirred.len()
    }

    /// Puts a slot without copies at the end of the queue of slots to be forgotten.
    pub(in crate::fleet) fn retire(&mut self, slot: SlotId) {
        if self.is_retired.insert(slot) {
            self.retired.push_back(slot.0);
        }
    }

    /// The next retired slot that still has no copies, if more slots are waiting than the
    /// allowance.
    ///
    /// A name is kept after its last copy is gone, and after a clear: where a hash stands never
    /// changes, children may still be stored under it, and it may come back in a store that does
    /// not tell its place. The allowance bounds how many such names a rank keeps.
    pub(in crate::fleet) fn next_to_forget(&mut self) -> Option<SlotId> {
        self.next_beyond(Self::retired_allowance)
    }

    /// The next retired slot that still has no copies.
    pub(in crate::fleet) fn next_retired(&mut self) -> Option<SlotId> {
        self.next_beyond(|_| 0)
    }

    fn next_beyond(&mut self, allowance: impl Fn(&Self) -> usize) -> Option<SlotId> {
        while self.retired.len() > allowance(self) {
            let slot = SlotId(self.retired.pop_front()?);
            // A slot that was forgotten in the meantime has lost its mark; its index may be in use
            // again.
            if self.is_retired.remove(slot) && !self.is_held(slot) {
                return Some(slot);
            }
        }
        None
    }

    fn retired_allowance(&self) -> usize {
        NAMES_KEPT + self.len().saturating_sub(self.retired.len()) / 8
    }

    /// The bytes of copies beyond the first, and the bytes of channels.
    #[must_use]
    pub(in crate::fleet) fn bytes_beside(&self) -> (usize, usize) {
        let more = self.more.allocation_size() + self.spilled + self.sharing.bytes();
        (more, self.channels.bytes())
    }

    /// The number of hashes with a slot, held or not.
    #[must_use]
    pub(in crate::fleet) fn len(&self) -> usize {
        self.num_used
    }

    /// All slots that belong to a hash.
    pub(in crate::fleet) fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        let places = (0u32..).map(SlotId).zip(&self.places);
        places
            .filter(|(_, place)| **place != NOWHERE)
            .map(|(slot, _)| slot)
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u32>()
            + self.by_node.bytes()
            + self.own.bytes()
            + self.masks.bytes()
            + self.bytes_beside().0
            + self.bytes_beside().1
            + self.stirred.bytes()
            + self.is_retired.bytes()
            + (self.free.capacity() + self.retired.capacity()) * 4
    }

    /// Panics unless every slot is found by its key and the side table refers only to slots in use.
    pub(in crate::fleet) fn check_integrity(&self, nodes: &Nodes) {
        self.check_sharing();
        assert_eq!(
            self.len() + self.free.len(),
            self.places.len(),
            "slots and free slots"
        );
        for &id in &self.free {
            assert_eq!(self.places[id as usize], NOWHERE, "slot {id} is free");
        }
        for slot in self.iter() {
            assert_eq!(
                self.find(self.key(slot, nodes), nodes),
                Some(slot),
                "slot {slot:?} by its key"
            );
        }
        self.check_known_by(nodes);
        let spilled: usize = self.more.values().map(spilled_bytes).sum();
        assert_eq!(spilled, self.spilled, "bytes of counts");
        if let Some(newest) = self.newest {
            let key = self.key(newest, nodes);
            assert_eq!(self.find(key, nodes), Some(newest), "the newest slot");
        }
        for (&slot, counts) in &self.more {
            assert!(
                !counts.is_empty(),
                "slot {slot}: an empty list of counts is kept"
            );
            for &(channel, count) in counts {
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
        let on_gpu: u64 = (0..self.places.len())
            .filter_map(|at| self.held_at(at))
            .map(|slot| self.copies_on_gpu(slot))
            .sum();
        assert_eq!(on_gpu, self.on_gpu, "copies on the GPU");
        self.channels.check_integrity();
    }

    /// Panics unless each slot is where its hash is looked for.
    fn check_known_by(&self, nodes: &Nodes) {
        let elsewhere = self.iter().filter(|&slot| {
            let node = self.node(slot).filter(|_| self.own_key(slot).is_none());
            node.is_some_and(|node| nodes.first_slot(node) != slot)
        });
        assert_eq!(elsewhere.count(), self.by_node.len(), "slots by node");
        for (index, hash) in (0u32..).zip(&self.own.all) {
            let place = self.places[hash.slot.0 as usize];
            assert_eq!(place, OWN | index, "a hash that is kept here, by its slot");
        }
    }
}

/// The bytes of counts that do not fit in the table itself.
fn spilled_bytes(counts: &Counts) -> usize {
    if counts.spilled() {
        counts.capacity() * size_of::<(u16, u32)>()
    } else {
        0
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
        Whereabouts::Limbo(LimboId(place & !LIMBO))
    }
}
