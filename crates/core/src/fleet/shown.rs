//! Which presence bits the hashes of one rank set, and where two hashes share one.
//!
//! A bit is set while some hash of the rank that stands at its node has a copy in its plane. An engine
//! has one hash per boundary. Where two are held at one, whatever tells them apart is not on the
//! wire, and nobody can say which of them a request would find: from that boundary on nothing is
//! certain of the rank, until a clear.

use hashbrown::{HashMap, HashSet};

use super::nodes::NodeId;
use super::planes::{PlaneId, Planes};
use super::slots::{ChannelId, SlotId, Slots, Whereabouts};
use crate::prefix::PrefixKey;

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

    /// Shows a hash that has just got its place; `key` is that of its boundary.
    pub(super) fn show_all(&mut self, slot: SlotId, key: PrefixKey, planes: &mut Planes, bit: u64) {
        let Whereabouts::Placed(node) = self.whereabouts(slot) else {
            return;
        };
        let mut shown: Vec<PlaneId> = Vec::new();
        let held: Vec<ChannelId> = self.held_channels(slot).collect();
        for channel in held {
            let channel = self.channels.get(channel);
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
                .map(|channel| self.channels.get(channel).plane)
                .collect();
            for plane in planes {
                *shown.entry((node, plane)).or_insert(0) += 1;
            }
        }
        shown.retain(|_, hashes| *hashes > 1);
        assert_eq!(shown, self.sharing.bits, "bits that several hashes show");
    }
}
