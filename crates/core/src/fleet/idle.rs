//! What tables keep ready for more, and how they give it back: what stands at the end of a table
//! moves to free places before it, a portion at a time, until the end can go.

use super::model::Model;
use super::nodes::NodeId;

/// Slots that one portion moves, and nodes, each with its word in every plane.
const SLOTS_MOVED: usize = 1 << 14;
const NODES_MOVED: usize = 1 << 14;
/// So many planes may hold words of the nodes of a portion; with more of them a portion is smaller.
const FEW_PLANES: usize = 16;

impl Model {
    /// Bytes that tables keep ready for more.
    #[must_use]
    pub(super) fn idle_bytes(&self) -> usize {
        let ranks = self.ranks.iter().flatten();
        let slots: usize = ranks.map(|rank| rank.slots.idle_bytes()).sum();
        self.nodes.idle_bytes() + slots
    }

    /// The table that keeps most ready gives a portion of it back. False: there was nothing.
    pub(super) fn give_back_some(&mut self) -> bool {
        let before = self.idle_bytes();
        let idle = |column: &usize| {
            let rank = self.ranks[*column].as_ref();
            rank.map_or(0, |rank| rank.slots.idle_bytes())
        };
        match (0..self.ranks.len()).max_by_key(idle) {
            Some(column) if idle(&column) > self.nodes.idle_bytes() => {
                if let Some(rank) = &mut self.ranks[column] {
                    rank.slots.give_back(SLOTS_MOVED, &mut rank.limbo);
                }
            }
            Some(_) | None => self.give_back_nodes(),
        }
        self.idle_bytes() < before
    }

    fn give_back_nodes(&mut self) {
        let most = NODES_MOVED * FEW_PLANES / FEW_PLANES.max(self.planes.keys().count());
        let moved = self.nodes.give_back(most);
        for (from, to) in (moved.end..).zip(&moved.to) {
            if let Some(to) = to {
                self.planes.move_words(NodeId(from), NodeId(*to));
            }
        }
        self.planes.end_at(NodeId(moved.end));
        for rank in self.ranks.iter_mut().flatten() {
            rank.slots.follow(&moved);
        }
    }
}
