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
//! In reading order:
//! - `whole`: operations on many slots at once;
//! - `copies`: the copies of one slot;
//! - `idle`: slots move to free places, so that the table can be cut off;
//! - `channels`: what sets copies of one hash apart: group, tier, owner;
//! - `saved`: the table in a snapshot.

use serde::{Deserialize, Serialize};

mod channels;
mod copies;
mod idle;
mod saved;
mod whole;

use std::collections::VecDeque;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::nodes::NodeId;
use super::sharing::Sharing;
use crate::key_table::KeyTable;
use crate::secret::Spreader;
use channels::Channels;

pub(in crate::fleet) use channels::{Channel, ChannelId, ChannelKey};
pub(in crate::fleet) use saved::{PlacesRead, SavedSlots, SlotBefore};

/// An engine's hash of a block, as the wire's 64-bit integer.
pub(in crate::fleet) type EngineKey = u64;

/// Index of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::fleet) struct SlotId(pub u32);

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

#[derive(Debug, Clone, Copy)]
struct Slot {
    key: EngineKey,
    mask: u64,
    place: u32,
    retired: bool,
    stirred: bool,
}

const LIMBO: u32 = 1 << 31;
/// The place of a slot that belongs to no hash.
const NOWHERE: u32 = u32::MAX;
/// A rank keeps at least this many names without a copy: about half a megabyte.
const NAMES_KEPT: usize = 8192;

/// The copies of one slot, by channel.
type Counts = SmallVec<[(u16, u32); 2]>;

/// The table of one rank.
#[derive(Debug)]
pub(in crate::fleet) struct Slots {
    by_key: KeyTable,
    table: Vec<Slot>,
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
    /// The slots that got a copy since the last clear, each listed once.
    stirred: Vec<u32>,
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
            by_key: KeyTable::new(spread),
            table: Vec::new(),
            free: Vec::new(),
            newest: None,
            channels: Channels::default(),
            more: HashMap::new(),
            spilled: 0,
            on_gpu: 0,
            sharing: Sharing::default(),
            stirred: Vec::new(),
            retired: VecDeque::new(),
            hand: 0,
        }
    }

    /// The slot of a hash.
    #[must_use]
    pub(in crate::fleet) fn find(&self, key: EngineKey) -> Option<SlotId> {
        let has = |id: u32| self.table[id as usize].key == key;
        self.by_key.find(key, has).map(SlotId)
    }

    /// The same as `find`, for the parent of a store. It is usually the newest hash, whose slot is
    /// known without a look-up: reading back what was just written into the table would be slow.
    #[must_use]
    pub(in crate::fleet) fn find_parent(&self, key: EngineKey) -> Option<SlotId> {
        let newest = self.newest.filter(|&slot| self.key(slot) == key);
        newest.or_else(|| self.find(key))
    }

    /// Looks up hashes that will be looked up one by one next. The look-ups here do not depend on
    /// each other, so their fetches from memory overlap. Returns how many of the hashes are known.
    pub(in crate::fleet) fn fetch(&self, keys: &[EngineKey]) -> usize {
        keys.iter().filter(|&&key| self.find(key).is_some()).count()
    }

    /// Makes the slot of a hash that has none, without copies.
    pub(in crate::fleet) fn insert(&mut self, key: EngineKey, whereabouts: Whereabouts) -> SlotId {
        let slot = Slot {
            key,
            mask: 0,
            place: encode(whereabouts),
            retired: false,
            stirred: false,
        };
        let id = if let Some(id) = self.free.pop() {
            let stirred = self.table[id as usize].stirred;
            self.table[id as usize] = Slot { stirred, ..slot };
            id
        } else {
            self.table.push(slot);
            u32::try_from(self.table.len() - 1).expect("fewer than 2^32 hashes")
        };
        self.by_key.insert(key, id);
        self.newest = Some(SlotId(id));
        SlotId(id)
    }

    /// Forgets a slot that has no copies.
    pub(in crate::fleet) fn forget(&mut self, slot: SlotId) {
        let key = self.key(slot);
        debug_assert!(!self.is_held(slot), "slot {slot:?} is forgotten while held");
        if self.by_key.remove(key, slot.0) {
            let entry = &mut self.table[slot.0 as usize];
            (entry.retired, entry.place) = (false, NOWHERE);
            self.free.push(slot.0);
            self.newest = self.newest.filter(|&newest| newest != slot);
        }
    }

    /// The hash of a slot.
    #[must_use]
    pub(in crate::fleet) fn key(&self, slot: SlotId) -> EngineKey {
        self.table[slot.0 as usize].key
    }

    /// Where the hash of a slot stands.
    #[must_use]
    pub(in crate::fleet) fn whereabouts(&self, slot: SlotId) -> Whereabouts {
        decode(self.table[slot.0 as usize].place)
    }

    /// Sets where the hash of a slot stands.
    pub(in crate::fleet) fn set_whereabouts(&mut self, slot: SlotId, whereabouts: Whereabouts) {
        self.table[slot.0 as usize].place = encode(whereabouts);
    }

    /// Notes that a clear has to look at a slot.
    fn stir(&mut self, slot: SlotId) {
        if self.stirred.len() == self.stirred.capacity() {
            self.drop_still();
        }
        self.table[slot.0 as usize].stirred = true;
        self.stirred.push(slot.0);
    }

    /// Removes the slots without copies from those that a clear looks at, and makes room for as
    /// many again as stay.
    fn drop_still(&mut self) {
        let mut stirred = std::mem::take(&mut self.stirred);
        stirred.retain(|&id| {
            let is_held = self.is_held(SlotId(id));
            self.table[id as usize].stirred = is_held;
            is_held
        });
        stirred.reserve_exact(stirred.len().max(64));
        self.stirred = stirred;
    }

    /// Takes the held slots that got a copy since the last clear. What the other slots hold is
    /// already in doubt.
    pub(in crate::fleet) fn take_stirred(&mut self) -> Vec<SlotId> {
        let all = self.take_some_stirred(usize::MAX);
        self.stirred = Vec::new();
        all
    }

    /// Takes up to `most` of the slots that got a copy since the last clear, and returns those that
    /// are held.
    pub(in crate::fleet) fn take_some_stirred(&mut self, most: usize) -> Vec<SlotId> {
        let rest = self.stirred.len().saturating_sub(most);
        let some: Vec<SlotId> = self.stirred.drain(rest..).map(SlotId).collect();
        for slot in &some {
            self.table[slot.0 as usize].stirred = false;
        }
        some.into_iter()
            .filter(|&slot| self.is_held(slot))
            .collect()
    }

    /// How many slots got a copy since the last clear, held or not.
    #[must_use]
    pub(in crate::fleet) fn num_stirred(&self) -> usize {
        self.stirred.len()
    }

    /// Puts a slot without copies at the end of the queue of slots to be forgotten.
    pub(in crate::fleet) fn retire(&mut self, slot: SlotId) {
        let entry = &mut self.table[slot.0 as usize];
        if !entry.retired {
            entry.retired = true;
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
            let id = self.retired.pop_front()?;
            // A slot that was forgotten in the meantime has lost its mark; its index may be in use
            // again.
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

    /// The bytes of copies beyond the first, and the bytes of channels.
    #[must_use]
    pub(in crate::fleet) fn bytes_beside(&self) -> (usize, usize) {
        let more = self.more.allocation_size() + self.spilled + self.sharing.bytes();
        (more, self.channels.bytes())
    }

    /// The number of hashes with a slot, held or not.
    #[must_use]
    pub(in crate::fleet) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// All slots.
    pub(in crate::fleet) fn iter(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.by_key.ids().map(SlotId)
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.by_key.bytes()
            + self.table.capacity() * size_of::<Slot>()
            + self.bytes_beside().0
            + self.bytes_beside().1
            + (self.free.capacity() + self.retired.capacity() + self.stirred.capacity()) * 4
    }

    /// Panics unless every slot is found by its key and the side table refers only to slots in use.
    pub(in crate::fleet) fn check_integrity(&self) {
        self.check_sharing();
        let stirred = self.table.iter().filter(|slot| slot.stirred).count();
        assert_eq!(stirred, self.stirred.len(), "what a clear looks at");
        assert_eq!(
            self.by_key.len() + self.free.len(),
            self.table.len(),
            "slots and free slots"
        );
        for &id in &self.free {
            assert_eq!(self.table[id as usize].place, NOWHERE, "slot {id} is free");
        }
        for slot in self.iter() {
            assert_eq!(
                self.find(self.key(slot)),
                Some(slot),
                "slot {slot:?} by its key"
            );
        }
        let spilled: usize = self.more.values().map(spilled_bytes).sum();
        assert_eq!(spilled, self.spilled, "bytes of counts");
        if let Some(newest) = self.newest {
            assert_eq!(self.find(self.key(newest)), Some(newest), "the newest slot");
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
        let on_gpu: u64 = (0..self.table.len())
            .filter_map(|at| self.held_at(at))
            .map(|slot| self.copies_on_gpu(slot))
            .sum();
        assert_eq!(on_gpu, self.on_gpu, "copies on the GPU");
        self.channels.check_integrity();
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
