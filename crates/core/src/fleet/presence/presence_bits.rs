//! Which presence bits the hashes of one rank set, and where two hashes set the same bit.
//!
//! A bit is set while some hash of the rank that stands at the bit's node has a copy in the bit's
//! plane. A real engine has one hash per boundary. If two hashes are held at one boundary, the
//! difference between them is not on the wire, and it cannot be known which of them a request would
//! find. From that boundary on, nothing about the rank is certain until a clear.

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::nodes::NodeId;
use super::planes::{PlaneId, Planes};
use super::sharing::Sign;
use super::slots::{ChannelId, SlotId, Slots, Whereabouts};
use crate::prefix::PrefixKey;

impl Slots {
    /// Sets the bit for a channel's first copy of a hash. Returns true if another hash sets the bit
    /// too.
    pub(in crate::fleet) fn set_presence(
        &mut self,
        slot: SlotId,
        channel: ChannelId,
        planes: &mut Planes,
        bit: u64,
    ) -> bool {
        let Whereabouts::Placed(node) = self.whereabouts(slot) else {
            return false;
        };
        let plane = self.channels.get(channel).plane;
        if planes.set(plane, node, bit) {
            return false;
        }
        let mut own = self.held_channels(slot);
        if own.any(|c| c != channel && self.channels.get(c).plane == plane) {
            return false;
        }
        drop(own);
        *self.sharing.bits.entry((node, plane)).or_insert(1) += 1;
        true
    }

    /// Sets the bits of a hash that has just been placed; `key` is the key of its boundary.
    pub(in crate::fleet) fn set_presence_of(
        &mut self,
        slot: SlotId,
        key: PrefixKey,
        planes: &mut Planes,
        bit: u64,
    ) {
        let Whereabouts::Placed(node) = self.whereabouts(slot) else {
            return;
        };
        let mut shown: SmallVec<[PlaneId; 8]> = SmallVec::new();
        // One that was collected would be copied, which waits until all that was written is in the caches.
        let mut held: SmallVec<[ChannelId; 8]> = SmallVec::new();
        held.extend(self.held_channels(slot));
        for &channel in &held {
            let channel = self.channels.get(channel);
            if shown.contains(&channel.plane) {
                continue;
            }
            shown.push(channel.plane);
            if !planes.set(channel.plane, node, bit) {
                *self.sharing.bits.entry((node, channel.plane)).or_insert(1) += 1;
                if !channel.key.doubted {
                    self.sharing.mark(Some(key), Sign::TwoHashes);
                }
            }
        }
    }

    /// Clears the bit of a plane in which the hash no longer has a copy, unless another hash sets
    /// it too.
    pub(in crate::fleet) fn clear_presence(
        &mut self,
        slot: SlotId,
        plane: PlaneId,
        planes: &mut Planes,
        bit: u64,
    ) {
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

    /// Panics unless the shared bits are exactly those that more than one hash sets.
    pub(in crate::fleet) fn check_sharing(&self) {
        let mut shown: HashMap<(NodeId, PlaneId), u32> = HashMap::new();
        for slot in self.iter() {
            let Whereabouts::Placed(node) = self.whereabouts(slot) else {
                continue;
            };
            let planes: HashSet<PlaneId> = self
                .held_channels(slot)
                .map(|channel| self.channels.get(channel).plane)
                .collect();
            for plane in planes {
                *shown.entry((node, plane)).or_insert(0) += 1;
            }
        }
        shown.retain(|_, hashes| *hashes > 1);
        assert_eq!(shown, self.sharing.bits, "bits that several hashes set");
    }
}
