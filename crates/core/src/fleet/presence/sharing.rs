//! Presence bits that more than one hash of a rank sets, and the boundaries that are ambiguous: held
//! more than once, in caches that differ in something that events do not carry.

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::moved::{Moved, idle_in_table};
use super::nodes::NodeId;
use super::planes::PlaneId;
use crate::fleet::snapshot::in_order;
use crate::prefix::PrefixKey;

/// The number of ambiguous boundaries that are told apart: about two megabytes.
const AMBIGUOUS_KEPT: usize = 65_536;

/// The bits that more than one hash of a rank sets, and the ambiguous boundaries.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct Sharing {
    /// For each such bit, the number of hashes that set it.
    #[serde(skip)]
    pub(in crate::fleet) bits: HashMap<(NodeId, PlaneId), u32>,
    /// The keys of the boundaries that became ambiguous since the last clear.
    #[serde(serialize_with = "in_order::set")]
    ambiguous: HashSet<PrefixKey>,
    /// Whether some boundaries are ambiguous of which it is not known which they are.
    anywhere: bool,
    /// How many boundaries became ambiguous by each sign since these counts were last taken.
    found: [u64; 2],
}

/// By what a boundary turns out to be held more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) enum Sign {
    /// Two hashes are held there.
    TwoHashes,
    /// One hash was stored twice by an engine that stores a hash once in a cache.
    StoredTwice,
}

impl Sharing {
    /// Whether a boundary is ambiguous, by its key.
    #[must_use]
    pub(in crate::fleet) fn is_ambiguous(&self, key: PrefixKey) -> bool {
        self.anywhere || self.ambiguous.contains(&key)
    }

    /// Whether no boundary is ambiguous.
    #[must_use]
    pub(in crate::fleet) fn is_empty(&self) -> bool {
        !self.anywhere && self.ambiguous.is_empty()
    }

    /// Notes that a boundary is ambiguous. `None` stands for one of which the place is not known.
    pub(in crate::fleet) fn mark(&mut self, key: Option<PrefixKey>, sign: Sign) {
        let is_new = key.map_or(!self.anywhere, |key| self.ambiguous.insert(key));
        self.found[sign as usize] += u64::from(is_new);
        if key.is_none() || self.ambiguous.len() > AMBIGUOUS_KEPT {
            self.forget();
            self.anywhere = true;
        }
    }

    /// What a snapshot has of it: all but the bits, which follow from the copies.
    pub(in crate::fleet) fn of_boundaries(&self) -> Self {
        Self {
            bits: HashMap::new(),
            ambiguous: self.ambiguous.clone(),
            anywhere: self.anywhere,
            found: self.found,
        }
    }

    /// Forgets the ambiguous boundaries, because nothing that was certain there is held any longer.
    pub(in crate::fleet) fn forget(&mut self) {
        self.ambiguous.clear();
        self.ambiguous.shrink_to(AMBIGUOUS_KEPT / 64);
        self.anywhere = false;
    }

    /// Forgets all bits, because nothing is held any longer.
    pub(in crate::fleet) fn show_nothing(&mut self) {
        self.bits = HashMap::new();
    }

    /// Forgets the bits of these planes, because nothing is held in them any longer.
    pub(in crate::fleet) fn show_nothing_in(&mut self, planes: &HashSet<PlaneId>) {
        self.bits.retain(|(_, plane), _| !planes.contains(plane));
    }

    /// How many boundaries became ambiguous by each sign since the last call.
    pub(in crate::fleet) fn take_found(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.found)
    }

    /// Changes the nodes that have moved to their new places.
    pub(in crate::fleet) fn follow(&mut self, moved: &Moved) {
        let is_moved = |(node, _): &(NodeId, PlaneId), _: &mut u32| node.0 >= moved.end;
        let bits: Vec<_> = self.bits.extract_if(is_moved).collect();
        for ((node, plane), hashes) in bits {
            if let Some(node) = moved.place_of(node.0) {
                self.bits.insert((NodeId(node), plane), hashes);
            }
        }
    }

    /// Gives back the spare capacity.
    pub(in crate::fleet) fn give_back(&mut self) {
        self.bits.shrink_to_fit();
    }

    /// The bytes of spare capacity.
    #[must_use]
    pub(in crate::fleet) fn idle_bytes(&self) -> usize {
        idle_in_table(self.bits.allocation_size(), self.bits.len(), 12)
    }

    /// Bytes held, by capacity.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.bits.allocation_size() + self.ambiguous.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ambiguous_boundaries_than_are_told_apart_make_every_boundary_ambiguous() {
        let mut sharing = Sharing::default();
        for key in 0..=AMBIGUOUS_KEPT as u64 {
            assert!(!sharing.is_ambiguous(u64::MAX));
            sharing.mark(Some(key), Sign::TwoHashes);
            sharing.mark(Some(key), Sign::TwoHashes);
        }
        assert!(sharing.is_ambiguous(u64::MAX) && sharing.bytes() < AMBIGUOUS_KEPT);
        assert_eq!(sharing.take_found(), [AMBIGUOUS_KEPT as u64 + 2, 0]);
        sharing.forget();
        assert!(sharing.is_empty());
    }

    #[test]
    fn a_boundary_without_a_place_makes_every_boundary_ambiguous_until_a_clear() {
        let mut sharing = Sharing::default();
        sharing.mark(None, Sign::StoredTwice);
        sharing.mark(None, Sign::StoredTwice);
        assert!(sharing.is_ambiguous(1) && !sharing.is_empty());
        assert_eq!(sharing.take_found(), [0, 1]);
        sharing.forget();
        assert!(sharing.is_empty());
    }
}
