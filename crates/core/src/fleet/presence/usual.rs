//! The usual hash of a node: engines with one seed give a block one hash, so it is kept once for all
//! their ranks, and not in the table of each.
//!
//! The first rank that names a node gives it its usual hash. No two nodes have the same one, so whoever
//! names a hash at wrong nodes makes no look-up of it longer. A rank of which a hash is not the usual
//! one of its node keeps it itself (`slots::own`).
//!
//! Beside the hash is the number of the first rank's slot. It is where the slot of a node is looked for
//! first, in the table of any rank: most nodes are of one rank, and pods with equal traffic have equal
//! tables.

use super::ids::{EngineKey, NodeId, SlotId};
use super::moved::idle_in_table;
use crate::key_table::KeyTable;
use crate::secret::Spreader;

/// Stands for no hash. If an engine gives a block this one, it is never usual.
const NONE: EngineKey = EngineKey::MAX;

/// The usual hash of a node or `NONE`, in two halves so that it takes twelve bytes, and the slot of the
/// first rank.
#[derive(Debug, Clone, Copy)]
struct UsualHash {
    hash: [u32; 2],
    slot: SlotId,
}

impl UsualHash {
    const NONE: Self = Self {
        hash: [u32::MAX; 2],
        slot: SlotId(0),
    };

    #[expect(
        clippy::cast_possible_truncation,
        reason = "half of the bits are what is wanted"
    )]
    fn of(hash: EngineKey, slot: SlotId) -> Self {
        Self {
            hash: [hash as u32, (hash >> 32) as u32],
            slot,
        }
    }

    fn hash(self) -> EngineKey {
        let [low, high] = self.hash.map(EngineKey::from);
        high << 32 | low
    }
}

/// The usual hashes of all nodes of one model.
#[derive(Debug)]
pub(super) struct UsualHashes {
    /// By node.
    all: Vec<UsualHash>,
    by_hash: KeyTable,
}

impl UsualHashes {
    pub(super) fn new(spread: Spreader) -> Self {
        Self {
            all: Vec::new(),
            by_hash: KeyTable::new(spread),
        }
    }

    /// The node of which a hash is the usual one. The node after `hint` is tried first.
    pub(super) fn node_of(&self, hash: EngineKey, hint: Option<NodeId>) -> Option<NodeId> {
        if let Some(NodeId(previous)) = hint
            && let Some(next) = self.all.get(previous as usize + 1)
            && next.hash() == hash
            && hash != NONE
        {
            return Some(NodeId(previous + 1));
        }
        let has = |id: u32| self.of(NodeId(id)) == hash;
        self.by_hash.find(hash, has).map(NodeId)
    }

    /// Fetches from memory what it takes to make a hash the usual one of a node.
    pub(super) fn fetch(&self, hash: EngineKey) {
        self.by_hash.fetch(hash);
    }

    /// The usual hash of a node that has one.
    pub(super) fn of(&self, node: NodeId) -> EngineKey {
        self.all[node.0 as usize].hash()
    }

    /// The slot of the first rank that named a node with a usual hash.
    pub(super) fn first(&self, node: NodeId) -> SlotId {
        self.all[node.0 as usize].slot
    }

    /// Whether a hash is the usual one of a node, as it becomes if the node has none and the hash is
    /// that of no other node; `usual` is what `node_of` gives for the hash. It is in this slot.
    pub(super) fn claim(
        &mut self,
        node: NodeId,
        hash: EngineKey,
        usual: Option<NodeId>,
        slot: SlotId,
    ) -> bool {
        let is_free = self.of(node) == NONE && usual.is_none() && hash != NONE;
        if is_free {
            self.put(node, hash, slot);
        }
        is_free || usual == Some(node)
    }

    fn put(&mut self, node: NodeId, hash: EngineKey, slot: SlotId) {
        self.all[node.0 as usize] = UsualHash::of(hash, slot);
        self.by_hash.insert(hash, node.0);
    }

    /// Makes room for a new node at the end.
    pub(super) fn push(&mut self) {
        self.all.push(UsualHash::NONE);
    }

    /// Forgets the usual hash of a node, and returns it.
    pub(super) fn forget(&mut self, node: NodeId) -> Option<EngineKey> {
        let hash = std::mem::replace(&mut self.all[node.0 as usize], UsualHash::NONE).hash();
        (hash != NONE).then(|| {
            self.by_hash.remove(hash, node.0);
            hash
        })
    }

    /// Moves the usual hash of a node to another one, which has none.
    pub(super) fn move_to(&mut self, from: NodeId, to: NodeId) {
        let slot = self.first(from);
        if let Some(hash) = self.forget(from) {
            self.put(to, hash, slot);
        }
    }

    /// Cuts off the nodes from this number on, which have no usual hash.
    pub(super) fn cut_off(&mut self, end: usize) {
        self.all.truncate(end);
        self.all.shrink_to_fit();
    }

    /// Gives back the spare capacity of the table.
    pub(super) fn give_back(&mut self) {
        self.by_hash.give_back();
    }

    /// The bytes of spare capacity, where this many nodes are in use.
    pub(super) fn idle_bytes(&self, nodes: usize) -> usize {
        (self.all.capacity() - nodes) * size_of::<UsualHash>()
            + idle_in_table(self.by_hash.bytes(), self.by_hash.len(), KeyTable::ENTRY)
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<UsualHash>() + self.by_hash.bytes()
    }

    /// Panics unless each usual hash leads to its one node, and none to a free node.
    pub(super) fn check_integrity(&self, is_free: impl Fn(NodeId) -> bool) {
        let mut usual = 0;
        for node in (0u32..).map(NodeId).take(self.all.len()) {
            let hash = self.of(node);
            if hash != NONE {
                usual += 1;
                assert_eq!(
                    self.node_of(hash, None),
                    Some(node),
                    "the node of a usual hash"
                );
                assert!(!is_free(node), "free node {node:?} has a usual hash");
            }
        }
        assert_eq!(self.by_hash.len(), usual, "usual hashes by hash");
    }
}
