//! Slots that belong to no hash are moved to the end of the table, and the end is cut off.

use super::{
    Counts, KnownBy, LIMBO, LimboId, NOWHERE, NodeId, OWN, SlotId, Slots, Whereabouts, decode,
};
use crate::fleet::presence::moved::{Moved, idle_in_table};
use crate::fleet::presence::nodes::Nodes;

impl Slots {
    /// Points the slots at the new places of the nodes that moved.
    pub(crate) fn follow(&mut self, moved: &Moved, nodes: &Nodes) {
        for slot in (0u32..).map(SlotId).take(self.places.len()) {
            if let KnownBy::Node(NodeId(node)) = self.known_by(slot)
                && node >= moved.end
            {
                self.by_node.remove(slot, node);
                let to = moved.place_of(node).expect("a node that a slot is at");
                self.know_by(slot, NodeId(to), nodes);
            }
        }
        for hash in &mut self.own.all {
            if hash.place & LIMBO == 0 && hash.place >= moved.end {
                hash.place = moved.place_of(hash.place).unwrap_or(NOWHERE);
            }
        }
        self.sharing.follow(moved);
    }

    /// Moves at most this many slots from the end to free places, and gives back the spare
    /// capacity. Calls `moved_entry` with each undecided hash that has a new slot.
    pub(crate) fn give_back(
        &mut self,
        most: usize,
        nodes: &Nodes,
        mut moved_entry: impl FnMut(LimboId, SlotId),
    ) {
        let end = self.len().max(self.places.len().saturating_sub(most));
        let end = u32::try_from(end).expect("fewer than 2^32 hashes");
        self.free.retain(|&id| id < end);
        let to = (end..).take(self.places.len() - end as usize);
        let to = to.map(|id| self.move_to_free(SlotId(id), nodes, &mut moved_entry));
        let moved = Moved {
            end,
            to: to.collect(),
        };
        self.newest = self.newest.filter(|newest| newest.0 < end);
        let end = end as usize;
        self.places.truncate(end);
        self.places.shrink_to_fit();
        self.masks.cut_off(end);
        self.stirred.cut_off(end);
        self.is_retired.cut_off(end);
        let retired = std::mem::take(&mut self.retired).into_iter();
        self.retired = retired.filter_map(|id| moved.place_of(id)).collect();
        self.free.shrink_to_fit();
        if self.free.is_empty() {
            self.by_node.give_back(&self.places);
            self.own.give_back();
            self.more.shrink_to_fit();
            self.sharing.give_back();
        }
    }

    fn move_to_free(
        &mut self,
        from: SlotId,
        nodes: &Nodes,
        moved_entry: &mut impl FnMut(LimboId, SlotId),
    ) -> Option<u32> {
        let (was_stirred, was_retired) = (self.stirred.remove(from), self.is_retired.remove(from));
        let known_by = self.known_by(from);
        if matches!(known_by, KnownBy::Nothing) {
            return None;
        }
        let to = SlotId(self.free.pop()?);
        if was_stirred {
            self.stirred.insert(to);
        }
        if was_retired {
            self.is_retired.insert(to);
        }
        self.masks.copy(from, to);
        if let Some(counts) = self.more.remove(&from.0) {
            self.more.insert(to.0, counts);
        }
        match known_by {
            KnownBy::Node(node) => {
                self.by_node.remove(from, node.0);
                self.know_by(to, node, nodes);
            }
            KnownBy::Own(index) => {
                let hash = &mut self.own.all[index as usize];
                hash.slot = to;
                if let Whereabouts::Limbo(entry) = decode(hash.place) {
                    moved_entry(entry, to);
                }
                self.places[to.0 as usize] = OWN | index;
            }
            KnownBy::Nothing => {}
        }
        self.places[from.0 as usize] = NOWHERE;
        Some(to.0)
    }

    /// The bytes of spare capacity in the tables.
    #[must_use]
    pub(crate) fn idle_bytes(&self) -> usize {
        (self.places.capacity() - self.len()) * size_of::<u32>()
            + self.masks.idle_bytes(self.len())
            + (self.free.capacity() + self.retired.capacity() - self.retired.len()) * 4
            + self.by_node.idle_bytes()
            + self.own.idle_bytes()
            + idle_in_table(
                self.more.allocation_size(),
                self.more.len(),
                size_of::<(u32, Counts)>(),
            )
            + self.sharing.idle_bytes()
    }
}
