//! Which presence bits the hashes of one rank set, and where two hashes share one.
//!
//! A bit is set while some hash of the rank that stands at its node has a copy in its plane. An engine
//! has one hash per boundary. Where two are held at one, whatever tells them apart is not on the
//! wire, and nobody can say which of them a request would find: from that boundary on nothing is
//! certain of the rank, until a clear.

use hashbrown::{HashMap, HashSet};

use super::idle::{Moved, idle_in_table};
use super::nodes::NodeId;
use super::planes::{PlaneId, Planes};
use super::slots::{ChannelId, SlotId, Slots, Whereabouts};
use crate::prefix::PrefixKey;

/// So many ambiguous boundaries are told apart: about two megabytes.
const AMBIGUOUS_KEPT: usize = 65_536;

/// Bits that more than one hash of a rank sets, and what follows.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// How many hashes set a bit, where it is more than one.
    bits: HashMap<(NodeId, PlaneId), u32>,
    /// Keys of the boundaries where two hashes were held since the last clear.
    ambiguous: HashSet<PrefixKey>,
    /// Boundaries that became ambiguous since the last look.
    found: u64,
}

impl Sharing {
    /// Whether two hashes were held at a boundary, by its key.
    #[must_use]
    pub(super) fn is_ambiguous(&self, key: PrefixKey) -> bool {
        self.ambiguous.contains(&key)
    }

    /// Whether there is no such boundary.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.ambiguous.is_empty()
    }

    /// Notes that two hashes are held at a boundary.
    pub(super) fn mark(&mut self, key: PrefixKey) {
        self.found += u64::from(self.ambiguous.insert(key));
    }

    /// Forgets the boundaries: nothing of what was certain there is held any more.
    pub(super) fn forget(&mut self) {
        self.ambiguous.clear();
        self.ambiguous.shrink_to(AMBIGUOUS_KEPT / 64);
    }

    /// Nothing is held any more.
    pub(super) fn show_nothing(&mut self) {
        self.bits = HashMap::new();
    }

    /// Nothing is held any more in these planes.
    pub(super) fn show_nothing_in(&mut self, planes: &HashSet<PlaneId>) {
        self.bits.retain(|(_, plane), _| !planes.contains(plane));
    }

    /// How many boundaries were found since the last look; true: more than are told apart.
    pub(super) fn take_found(&mut self) -> (u64, bool) {
        let found = std::mem::take(&mut self.found);
        (found, self.ambiguous.len() > AMBIGUOUS_KEPT)
    }

    /// Nodes moved.
    pub(super) fn follow(&mut self, moved: &Moved) {
        let is_moved = |(node, _): &(NodeId, PlaneId), _: &mut u32| node.0 >= moved.end;
        let bits: Vec<_> = self.bits.extract_if(is_moved).collect();
        for ((node, plane), hashes) in bits {
            if let Some(node) = moved.place_of(node.0) {
                self.bits.insert((NodeId(node), plane), hashes);
            }
        }
    }

    /// Gives back what the bits do not need.
    pub(super) fn give_back(&mut self) {
        self.bits.shrink_to_fit();
    }

    /// Bytes that are kept ready for more.
    #[must_use]
    pub(super) fn idle_bytes(&self) -> usize {
        idle_in_table(self.bits.allocation_size(), self.bits.len(), 12)
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(super) fn bytes(&self) -> usize {
        self.bits.allocation_size() + self.ambiguous.allocation_size()
    }
}

impl Slots {
    /// Shows a channel's first copy where the hash stands. True: another hash shows there too.
    pub(super) fn show(
        &mut self,
        slot: SlotId,
        channel: ChannelId,
        planes: &mut Planes,
        bit: u64,
    ) -> bool {
        let Whereabouts::Placed(node) = self.whereabouts(slot) else {
            return false;
        };
        let plane = self.channel(channel).plane;
        if planes.set(plane, node, bit) {
            return false;
        }
        let mut own = self.held_channels(slot);
        if own.any(|c| c != channel && self.channel(c).plane == plane) {
            return false;
        }
        drop(own);
        *self.sharing.bits.entry((node, plane)).or_insert(1) += 1;
        true
    }

    /// Shows a hash that has just got its place; `key` is that of its boundary.
    pub(super) fn show_all(&mut self, slot: SlotId, key: PrefixKey, planes: &mut Planes, bit: u64) {
        let Whereabouts::Placed(node) = self.whereabouts(slot) else {
            return;
        };
        let mut shown: Vec<PlaneId> = Vec::new();
        let held: Vec<ChannelId> = self.held_channels(slot).collect();
        for channel in held {
            let channel = self.channel(channel);
            if shown.contains(&channel.plane) {
                continue;
            }
            shown.push(channel.plane);
            if !planes.set(channel.plane, node, bit) {
                *self.sharing.bits.entry((node, channel.plane)).or_insert(1) += 1;
                if !channel.key.doubted {
                    self.sharing.mark(key);
                }
            }
        }
    }

    /// Clears the bit of a plane in which the hash has no copy any more, unless another hash shows
    /// there.
    pub(super) fn hide(&mut self, slot: SlotId, plane: PlaneId, planes: &mut Planes, bit: u64) {
        let Whereabouts::Placed(node) = self.whereabouts(slot) else {
            return;
        };
        if self.plane_is_held(slot, plane) {
            return;
        }
        if !self.sharing.bits.is_empty()
            && let Some(hashes) = self.sharing.bits.get_mut(&(node, plane))
        {
            *hashes -= 1;
            if *hashes == 1 {
                self.sharing.bits.remove(&(node, plane));
            }
            return;
        }
        planes.clear(plane, node, bit);
    }

    /// Panics unless what is shared is what more than one hash shows.
    pub(super) fn check_sharing(&self) {
        let mut shown: HashMap<(NodeId, PlaneId), u32> = HashMap::new();
        for slot in self.iter() {
            let Whereabouts::Placed(node) = self.whereabouts(slot) else {
                continue;
            };
            let planes: HashSet<PlaneId> = self
                .held_channels(slot)
                .map(|channel| self.channel(channel).plane)
                .collect();
            for plane in planes {
                *shown.entry((node, plane)).or_insert(0) += 1;
            }
        }
        shown.retain(|_, hashes| *hashes > 1);
        assert_eq!(shown, self.sharing.bits, "bits that several hashes show");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ambiguous_boundaries_than_are_told_apart_are_said_to_be() {
        let mut sharing = Sharing::default();
        for key in 0..=AMBIGUOUS_KEPT as u64 {
            assert!(!sharing.take_found().1);
            sharing.mark(key);
            sharing.mark(key);
        }
        assert_eq!(sharing.take_found(), (1, true));
        sharing.forget();
        assert!(sharing.is_empty() && sharing.bytes() < AMBIGUOUS_KEPT);
    }
}
