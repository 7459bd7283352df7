//! The boundaries that some rank holds or names: one node per (prefix, salt), shared by all pods.
//!
//! A node exists as long as a slot of some pod points to it. The nodes of one store are made in
//! order, so the next boundary of a prefix is usually the next node, and look-ups try that one
//! first.

use super::ids::{EngineKey, SlotId};
use super::moved::{Moved, idle_in_table};
use super::usual::UsualHashes;
use crate::fleet::keys::texts::SaltId;
use crate::key_table::KeyTable;
use crate::prefix::{PrefixKey, minus, plus};
use crate::secret::{Mixer, Secret};
use serde::{Deserialize, Serialize};

pub(in crate::fleet) use super::ids::NodeId;

/// A place says where a hash stands: at which boundary of which prefix, and in whose cache. Two
/// hashes of different engines with the same place stand for the same cached tokens.
///
/// With hash lookahead, the identity of a block also covers tokens after its boundary: see `ahead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fleet) struct Place {
    /// The number of tokens before the boundary.
    pub boundary: u32,
    /// The key of those tokens. LoRA and media are mixed in; the salt is separate.
    pub prefix: PrefixKey,
    /// What the lookahead tokens add to the identity; 0 without a lookahead.
    pub ahead: u64,
    /// The number of the salt of the cache.
    pub salt: SaltId,
}

#[derive(Debug, Clone, Copy)]
struct Meta {
    boundary: u32,
    refs: u32,
}

/// All nodes of one model.
#[derive(Debug)]
pub(in crate::fleet) struct Nodes {
    salts: Mixer,
    keys: Vec<PrefixKey>,
    meta: Vec<Meta>,
    /// The tick at which a request last matched each node, as far as one was noted: only where memory is
    /// limited does anyone ask.
    matched_at: Vec<u32>,
    /// The lookahead part of the identity, for the few nodes that have one.
    ahead: hashbrown::HashMap<u32, u64>,
    /// The salts of the nodes that have one.
    salted: hashbrown::HashMap<u32, SaltId>,
    by_key: KeyTable,
    usual: UsualHashes,
    free: Vec<u32>,
    /// The nodes that are still counted for slots that are gone, once for each such slot.
    let_go: Vec<NodeId>,
    /// The keys of boundaries that were shown and have no node, until they are taken.
    gone: Vec<PrefixKey>,
}

/// The room for keys of boundaries without a node that is kept.
const GONE_KEPT: usize = 1 << 12;

impl Nodes {
    /// A table without nodes.
    #[must_use]
    pub(in crate::fleet) fn new(secret: &Secret) -> Self {
        Self {
            salts: secret.mixer("salts"),
            keys: Vec::new(),
            meta: Vec::new(),
            matched_at: Vec::new(),
            ahead: hashbrown::HashMap::new(),
            salted: hashbrown::HashMap::new(),
            by_key: KeyTable::new(secret.spread()),
            usual: UsualHashes::new(secret.spread()),
            free: Vec::new(),
            let_go: Vec::new(),
            gone: Vec::new(),
        }
    }

    /// The number that a salt adds to a prefix key.
    #[must_use]
    pub(in crate::fleet) fn term(&self, salt: SaltId) -> PrefixKey {
        match salt {
            SaltId::NONE => 0,
            SaltId(number) => self.salts.mix(number),
        }
    }

    /// The key under which the node of a place is found.
    #[must_use]
    pub(in crate::fleet) fn key_of(&self, place: Place) -> PrefixKey {
        plus(plus(place.prefix, place.ahead), self.term(place.salt))
    }

    /// The node with this key. The node after `hint` is tried first.
    #[must_use]
    pub(in crate::fleet) fn find(&self, key: PrefixKey, hint: Option<NodeId>) -> Option<NodeId> {
        if let Some(NodeId(previous)) = hint
            && self.keys.get(previous as usize + 1) == Some(&key)
        {
            return Some(NodeId(previous + 1));
        }
        let has = |id: u32| self.keys[id as usize] == key;
        self.by_key.find(key, has).map(NodeId)
    }

    /// For each hash and the place at which it stands, what `find` and `of_usual` give; what it takes to
    /// add those that are not there is fetched. These look-ups do not depend on each other, so they wait
    /// for memory together.
    pub(in crate::fleet) fn known(
        &self,
        hashes: impl Iterator<Item = (EngineKey, Place)> + Clone,
        mut hint: Option<NodeId>,
    ) -> Vec<(Option<NodeId>, Option<NodeId>)> {
        let known = hashes.clone().map(|(hash, place)| {
            let usual = self.of_usual(hash, hint);
            let node = self.find(self.key_of(place), hint);
            hint = node.or(hint);
            (node, usual)
        });
        let known: Vec<_> = known.collect();
        for ((hash, place), (node, usual)) in hashes.zip(&known) {
            if usual.is_none() {
                self.usual.fetch(hash);
            }
            if node.is_none() {
                self.by_key.fetch(self.key_of(place));
            }
        }
        known
    }

    /// The node of a place, made if there is none. The caller must then `acquire` it.
    pub(in crate::fleet) fn find_or_create(
        &mut self,
        place: Place,
        hint: Option<NodeId>,
    ) -> NodeId {
        let key = self.key_of(place);
        if let Some(node) = self.find(key, hint) {
            return node;
        }
        let meta = Meta {
            boundary: place.boundary,
            refs: 0,
        };
        let id = if let Some(id) = self.free.pop() {
            self.keys[id as usize] = key;
            self.meta[id as usize] = meta;
            self.set_matched(id, 0);
            id
        } else {
            self.keys.push(key);
            self.meta.push(meta);
            self.usual.push();
            u32::try_from(self.keys.len() - 1).expect("fewer than 2^32 boundaries")
        };
        if place.ahead != 0 {
            self.ahead.insert(id, place.ahead);
        }
        if place.salt != SaltId::NONE {
            self.salted.insert(id, place.salt);
        }
        self.by_key.insert(key, id);
        NodeId(id)
    }

    /// The key of a node.
    #[must_use]
    pub(in crate::fleet) fn key(&self, node: NodeId) -> PrefixKey {
        self.keys[node.0 as usize]
    }

    /// The node of which an engine's hash is the usual one. The node after `hint` is tried first.
    #[must_use]
    pub(in crate::fleet) fn of_usual(
        &self,
        hash: EngineKey,
        hint: Option<NodeId>,
    ) -> Option<NodeId> {
        self.usual.node_of(hash, hint)
    }

    /// The usual hash of a node that has one.
    #[must_use]
    pub(in crate::fleet) fn usual(&self, node: NodeId) -> EngineKey {
        self.usual.of(node)
    }

    /// The slot in which the first rank has it.
    #[must_use]
    pub(in crate::fleet) fn first_slot(&self, node: NodeId) -> SlotId {
        self.usual.first(node)
    }

    /// Whether a hash is, or now becomes, the usual one of a node, in this slot; `usual` is what
    /// `of_usual` gives for the hash. It stays so while the caller has the node acquired.
    pub(in crate::fleet) fn claim(
        &mut self,
        node: NodeId,
        hash: EngineKey,
        usual: Option<NodeId>,
        slot: SlotId,
    ) -> bool {
        self.usual.claim(node, hash, usual, slot)
    }

    /// The place of a node.
    #[must_use]
    pub(in crate::fleet) fn place(&self, node: NodeId) -> Place {
        let meta = self.meta[node.0 as usize];
        let ahead = if self.ahead.is_empty() {
            0
        } else {
            self.ahead.get(&node.0).copied().unwrap_or(0)
        };
        let salt = if self.salted.is_empty() {
            SaltId::NONE
        } else {
            self.salted.get(&node.0).copied().unwrap_or(SaltId::NONE)
        };
        let prefix = minus(minus(self.keys[node.0 as usize], self.term(salt)), ahead);
        Place {
            boundary: meta.boundary,
            prefix,
            ahead,
            salt,
        }
    }

    /// Whether the node stands at this place.
    #[must_use]
    pub(in crate::fleet) fn is_at(&self, node: NodeId, place: Place) -> bool {
        self.keys[node.0 as usize] == self.key_of(place)
    }

    /// Counts one more slot that points to the node.
    pub(in crate::fleet) fn acquire(&mut self, node: NodeId) {
        self.meta[node.0 as usize].refs += 1;
    }

    /// Counts one slot fewer that points to the node. If no slot is left the node is forgotten; its
    /// presence bits must be clear by then.
    pub(in crate::fleet) fn release(&mut self, node: NodeId) {
        let id = node.0;
        let meta = &mut self.meta[id as usize];
        meta.refs -= 1;
        if meta.refs > 0 {
            return;
        }
        let key = self.keys[id as usize];
        self.by_key.remove(key, id);
        if !self.ahead.is_empty() {
            self.ahead.remove(&id);
        }
        if !self.salted.is_empty() {
            self.salted.remove(&id);
        }
        self.usual.forget(node);
        // No prefix has this key, so a look-up with a hint never finds the free node.
        self.keys[id as usize] = u64::MAX;
        self.free.push(id);
        self.gone.push(key);
    }

    /// Notes those of these boundaries that have no node: something other than a slot showed them.
    pub(in crate::fleet) fn note_shown(&mut self, keys: &[PrefixKey]) {
        let mut hint = None;
        for &key in keys {
            let node = self.find(key, hint);
            if node.is_none() {
                self.gone.push(key);
            }
            hint = node.or(hint);
        }
    }

    /// Hands out the keys of boundaries that were shown and have no node, in the order in which they
    /// came, each time that one came.
    pub(in crate::fleet) fn take_gone(&mut self, take: impl FnMut(PrefixKey)) {
        self.gone.drain(..).for_each(take);
        self.gone.shrink_to(GONE_KEPT);
    }

    /// The keys of all nodes.
    pub(in crate::fleet) fn named(&self) -> impl Iterator<Item = PrefixKey> + '_ {
        self.by_key.ids().map(|id| self.keys[id as usize])
    }

    /// Notes that the slots which pointed to these nodes are gone. `release_some` releases the
    /// nodes later.
    pub(in crate::fleet) fn let_go(&mut self, nodes: Vec<NodeId>) {
        if self.let_go.is_empty() {
            self.let_go = nodes;
        } else {
            self.let_go.extend(nodes);
        }
    }

    /// Releases at most `most` of the nodes that were let go. Returns how many; 0 means that none
    /// is left.
    pub(in crate::fleet) fn release_some(&mut self, most: usize) -> usize {
        let rest = self.let_go.len().saturating_sub(most);
        let some = self.let_go.split_off(rest);
        for &node in &some {
            self.release(node);
        }
        if rest == 0 {
            self.let_go = Vec::new();
        }
        some.len()
    }

    /// The nodes that are still counted for slots that are gone, once for each such slot.
    pub(in crate::fleet) fn waiting(&self) -> &[NodeId] {
        &self.let_go
    }

    /// Notes that a request matched the node at this tick.
    pub(in crate::fleet) fn touch(&mut self, node: NodeId, tick: u32) {
        if self.matched_at.len() < self.keys.len() {
            self.matched_at.resize(self.keys.len(), 0);
        }
        self.set_matched(node.0, tick);
    }

    fn set_matched(&mut self, id: u32, tick: u32) {
        if let Some(matched_at) = self.matched_at.get_mut(id as usize) {
            *matched_at = tick;
        }
    }

    /// The tick at which a request last matched the node; 0 means never.
    #[must_use]
    pub(in crate::fleet) fn matched_at(&self, node: NodeId) -> u32 {
        let matched_at = self.matched_at.get(node.0 as usize);
        matched_at.copied().unwrap_or(0)
    }

    /// How many slots point to the node.
    #[must_use]
    pub(in crate::fleet) fn refs(&self, node: NodeId) -> u32 {
        self.meta[node.0 as usize].refs
    }

    /// The number of nodes in use.
    #[must_use]
    pub(in crate::fleet) fn len(&self) -> usize {
        self.keys.len() - self.free.len()
    }

    /// The bytes of spare capacity in the tables.
    #[must_use]
    pub(in crate::fleet) fn idle_bytes(&self) -> usize {
        let each = size_of::<PrefixKey>() + size_of::<Meta>();
        (self.keys.capacity() - self.len()) * each
            + self.matched_at.capacity().saturating_sub(self.len()) * 4
            + self.free.capacity() * 4
            + self.usual.idle_bytes(self.len())
            + idle_in_table(self.by_key.bytes(), self.by_key.len(), KeyTable::ENTRY)
            + idle_in_table(self.ahead.allocation_size(), self.ahead.len(), 16)
            + idle_in_table(self.salted.allocation_size(), self.salted.len(), 16)
    }

    /// Moves at most this many nodes from the end to free places, and gives back the spare
    /// capacity.
    pub(in crate::fleet) fn give_back(&mut self, most: usize) -> Moved {
        let end = self.len().max(self.keys.len().saturating_sub(most));
        let end = u32::try_from(end).expect("fewer than 2^32 boundaries");
        self.free.retain(|&id| id < end);
        let to = (end..).take(self.keys.len() - end as usize);
        let to = to.map(|id| self.move_to_free(id)).collect();
        self.keys.truncate(end as usize);
        self.keys.shrink_to_fit();
        self.meta.truncate(end as usize);
        self.meta.shrink_to_fit();
        self.matched_at.truncate(end as usize);
        self.matched_at.shrink_to_fit();
        self.usual.cut_off(end as usize);
        self.free.shrink_to_fit();
        if self.free.is_empty() {
            self.by_key.give_back();
            self.usual.give_back();
            self.ahead.shrink_to_fit();
            self.salted.shrink_to_fit();
        }
        Moved { end, to }
    }

    fn move_to_free(&mut self, from: u32) -> Option<u32> {
        let meta = self.meta[from as usize];
        if meta.refs == 0 {
            return None;
        }
        let to = self.free.pop()?;
        let key = self.keys[from as usize];
        (self.keys[to as usize], self.meta[to as usize]) = (key, meta);
        self.set_matched(to, self.matched_at(NodeId(from)));
        self.by_key.remove(key, from);
        self.by_key.insert(key, to);
        self.usual.move_to(NodeId(from), NodeId(to));
        if let Some(ahead) = self.ahead.remove(&from) {
            self.ahead.insert(to, ahead);
        }
        if let Some(salt) = self.salted.remove(&from) {
            self.salted.insert(to, salt);
        }
        Some(to)
    }

    /// The bytes held, by capacity.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<PrefixKey>()
            + self.meta.capacity() * size_of::<Meta>()
            + (self.matched_at.capacity() + self.free.capacity() + self.let_go.capacity()) * 4
            + self.gone.capacity() * size_of::<PrefixKey>()
            + self.by_key.bytes()
            + self.usual.bytes()
            + self.ahead.allocation_size()
            + self.salted.allocation_size()
    }

    /// Panics unless every node in use is found by its key and no free node is.
    pub(in crate::fleet) fn check_integrity(&self) {
        assert_eq!(
            self.by_key.len(),
            self.len(),
            "nodes by key against live nodes"
        );
        for &id in &self.free {
            assert_eq!(
                self.keys[id as usize],
                u64::MAX,
                "free node {id} still has a key"
            );
        }
        let is_free = |node: NodeId| self.meta[node.0 as usize].refs == 0;
        self.usual.check_integrity(is_free);
        for id in self.by_key.ids() {
            assert!(
                self.meta[id as usize].refs > 0,
                "node {id} is live without a slot"
            );
            assert_eq!(self.find(self.keys[id as usize], None), Some(NodeId(id)));
        }
    }
}
