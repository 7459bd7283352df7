//! From a node to the slot of its usual hash, where that is not the slot of the first rank: four bytes for
//! each hash, and no tag, because what it is compared with is small and near.

use super::{NodeId, SlotId};
use crate::fleet::presence::moved::idle_in_table;
use crate::growing::GrowingTable;
use crate::secret::Spreader;

/// The slots of one rank by node. The caller keeps the nodes of the slots.
#[derive(Debug)]
pub(super) struct ByNode {
    spread: Spreader,
    slots: GrowingTable<SlotId>,
}

/// So many nodes in a row are looked for side by side: prompts mostly have nodes in a row.
const ROW: u32 = 8;

/// Where in the table a node is looked for. The low bits are the index, the highest ones what entries
/// are compared by.
fn place(spread: Spreader, node: u32) -> u64 {
    let row = u64::from(spread.tag(u64::from(node / ROW)));
    let sign = u64::from(node.wrapping_mul(0x9E37_79B9) >> 25);
    (row * u64::from(ROW) + u64::from(node % ROW)) | (sign << 57)
}

impl ByNode {
    pub(super) fn new(spread: Spreader) -> Self {
        Self {
            spread,
            slots: GrowingTable::new(),
        }
    }

    pub(super) fn find(&self, node: NodeId, nodes: &[u32]) -> Option<SlotId> {
        let is_it = |slot: &SlotId| nodes[slot.0 as usize] == node.0;
        self.slots.find(place(self.spread, node.0), is_it)
    }

    /// Adds a slot, whose node has none.
    pub(super) fn insert(&mut self, slot: SlotId, nodes: &[u32]) {
        let spread = self.spread;
        self.slots
            .insert(slot, |slot| place(spread, nodes[slot.0 as usize]));
    }

    /// Removes a slot that stands at this node.
    pub(super) fn remove(&mut self, slot: SlotId, node: u32) {
        let place = place(self.spread, node);
        self.slots.remove(place, |entry| *entry == slot);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn give_back(&mut self, nodes: &[u32]) {
        let spread = self.spread;
        self.slots
            .give_back(|slot| place(spread, nodes[slot.0 as usize]));
    }

    /// The bytes of spare capacity.
    pub(super) fn idle_bytes(&self) -> usize {
        idle_in_table(self.bytes(), self.len(), size_of::<SlotId>())
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}
