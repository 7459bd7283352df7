//! Presence bits that more than one hash of a rank sets, and the boundaries that become ambiguous
//! by that.

use hashbrown::{HashMap, HashSet};

use super::moved::{Moved, idle_in_table};
use super::nodes::NodeId;
use super::planes::PlaneId;
use crate::prefix::PrefixKey;

/// The number of ambiguous boundaries that are told apart: about two megabytes.
const AMBIGUOUS_KEPT: usize = 65_536;

/// The bits that more than one hash of a rank sets, and the ambiguous boundaries.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// For each such bit, the number of hashes that set it.
    pub(super) bits: HashMap<(NodeId, PlaneId), u32>,
    /// The keys of the boundaries where two hashes were held since the last clear.
    ambiguous: HashSet<PrefixKey>,
    /// How many boundaries became ambiguous since this count was last taken.
    found: u64,
}

impl Sharing {
    /// Whether two hashes were held at a boundary, by its key.
    #[must_use]
    pub(super) fn is_ambiguous(&self, key: PrefixKey) -> bool {
        self.ambiguous.contains(&key)
    }

    /// Whether no boundary is ambiguous.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.ambiguous.is_empty()
    }

    /// Notes that two hashes are held at a boundary.
    pub(super) fn mark(&mut self, key: PrefixKey) {
        self.found += u64::from(self.ambiguous.insert(key));
    }

    /// Forgets the ambiguous boundaries, because nothing that was certain there is held any longer.
    pub(super) fn forget(&mut self) {
        self.ambiguous.clear();
        self.ambiguous.shrink_to(AMBIGUOUS_KEPT / 64);
    }

    /// Forgets all bits, because nothing is held any longer.
    pub(super) fn show_nothing(&mut self) {
        self.bits = HashMap::new();
    }

    /// Forgets the bits of these planes, because nothing is held in them any longer.
    pub(super) fn show_nothing_in(&mut self, planes: &HashSet<PlaneId>) {
        self.bits.retain(|(_, plane), _| !planes.contains(plane));
    }

    /// How many boundaries became ambiguous since the last call, and whether there are more of them
    /// than are told apart.
    pub(super) fn take_found(&mut self) -> (u64, bool) {
        let found = std::mem::take(&mut self.found);
        (found, self.ambiguous.len() > AMBIGUOUS_KEPT)
    }

    /// Changes the nodes that have moved to their new places.
    pub(super) fn follow(&mut self, moved: &Moved) {
        let is_moved = |(node, _): &(NodeId, PlaneId), _: &mut u32| node.0 >= moved.end;
        let bits: Vec<_> = self.bits.extract_if(is_moved).collect();
        for ((node, plane), hashes) in bits {
            if let Some(node) = moved.place_of(node.0) {
                self.bits.insert((NodeId(node), plane), hashes);
            }
        }
    }

    /// Gives back the spare capacity.
    pub(super) fn give_back(&mut self) {
        self.bits.shrink_to_fit();
    }

    /// The bytes of spare capacity.
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
