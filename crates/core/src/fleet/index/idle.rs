//! Tables keep spare capacity, and this file gives it back. The entries at the end of a table move
//! to free places before them, a portion at a time, until the end can be cut off.

use crate::fleet::model::Model;
use crate::fleet::presence::nodes::NodeId;

/// The number of slots, or of nodes with their words in every plane, that one portion moves.
const SLOTS_MOVED: usize = 1 << 14;
const NODES_MOVED: usize = 1 << 14;
/// If the nodes of a portion have words in more planes than this, the portion is smaller.
const FEW_PLANES: usize = 16;

impl Model {
    /// The bytes of spare capacity in the tables.
    #[must_use]
    pub(in crate::fleet) fn idle_bytes(&self) -> usize {
        let ranks = self.ranks.iter().flatten();
        let slots: usize = ranks.map(|rank| rank.slots.idle_bytes()).sum();
        self.nodes.idle_bytes() + slots
    }

    /// Gives back a portion of the table with the most spare capacity. Returns false if there was
    /// none.
    pub(in crate::fleet) fn give_back_some(&mut self) -> bool {
        let before = self.idle_bytes();
        let idle = |column: &usize| {
            let rank = self.ranks[*column].as_ref();
            rank.map_or(0, |rank| rank.slots.idle_bytes())
        };
        match (0..self.ranks.len()).max_by_key(idle) {
            Some(column) if idle(&column) > self.nodes.idle_bytes() => {
                if let Some(rank) = &mut self.ranks[column] {
                    let limbo = &mut rank.limbo;
                    let moved = |entry, slot| limbo.move_slot(entry, slot);
                    rank.slots.give_back(SLOTS_MOVED, &self.nodes, moved);
                }
            }
            Some(_) | None => self.give_back_nodes(),
        }
        self.idle_bytes() < before
    }

    fn give_back_nodes(&mut self) {
        let most = NODES_MOVED * FEW_PLANES / FEW_PLANES.max(self.planes.len());
        let moved = self.nodes.give_back(most);
        for (from, to) in (moved.end..).zip(&moved.to) {
            if let Some(to) = to {
                self.planes.move_words(NodeId(from), NodeId(*to));
            }
        }
        self.planes.end_at(NodeId(moved.end));
        for rank in self.ranks.iter_mut().flatten() {
            rank.slots.follow(&moved, &self.nodes);
        }
    }
}
