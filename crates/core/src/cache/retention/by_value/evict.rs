//! Which checkpoint goes first, and what happens when one goes.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::value::Priority;
use super::{Checkpoints, NO_NODE, TreeNodeId};
use crate::blocks::{BlockId, Pool, count};
use crate::cache::config::EvictionPolicy;

/// The most checkpoints that are valued again at once when the policy changes.
const MOST_WEIGHED: TreeNodeId = 2_048;

impl Checkpoints {
    /// Does from now on what another cache does, with this interval between regular checkpoints.
    /// The likelihoods that another cache has learned which always did so are taken over.
    pub(in crate::cache) fn imitate(&mut self, other: &Self, interval: u32) {
        let policy = other.policy;
        self.by_value.interval = interval;
        self.likelihood = other.likelihood.clone();
        if std::mem::replace(&mut self.policy, policy) != policy {
            self.first_stale = 0;
            self.weigh_stale();
        }
    }

    /// Values checkpoints again that have the values of another policy. No call looks at many.
    pub(super) fn weigh_stale(&mut self) {
        let all = count(self.nodes.len());
        let end = all.min(self.first_stale.saturating_add(MOST_WEIGHED));
        for id in self.first_stale..end {
            if self.nodes[id as usize].key.is_some() {
                self.weigh(id);
            }
        }
        self.first_stale = if end == all { NO_NODE } else { end };
    }

    /// Lets the checkpoints go that go before the pool's next victim.
    pub(in crate::cache) fn make_room(&mut self, pool: &mut Pool) {
        while self.goes_first(pool) && self.let_go(pool) {}
    }

    /// Whether the first checkpoint, if there is one, goes before the pool's next victim.
    fn goes_first(&self, pool: &Pool) -> bool {
        let is_older =
            |(key, _): &(Priority, TreeNodeId)| pool.victim_waits_since_after(key.used_at);
        let by_use = self.policy == EvictionPolicy::Dense;
        !pool.has_victim() || (by_use && self.queue.first().is_some_and(is_older))
    }

    /// Lets the first checkpoint go, so its blocks are the next victims. Returns false if there is
    /// none.
    fn let_go(&mut self, pool: &mut Pool) -> bool {
        let Some(&(key, id)) = self.queue.first() else {
            return false;
        };
        self.level = self.level.max(key.value);
        let mut released = Vec::new();
        self.drop_node(pool, id, &mut released);
        for block in in_order(pool, &released).rev() {
            pool.let_go_first(block);
        }
        true
    }

    /// Handles a block that is about to lose its hashes: nodes that need it are no longer
    /// checkpoints, and neither are the nodes that it leads to.
    pub(in crate::cache) fn forget(&mut self, pool: &mut Pool, block: BlockId) {
        let mut lost: Vec<TreeNodeId> = Vec::new();
        for id in self.holders(pool, block) {
            let node = &self.nodes[id as usize];
            if node.full.contains(&block) {
                self.collect(id, &mut lost);
            } else {
                lost.push(id);
            }
        }
        lost.retain(|&id| self.nodes[id as usize].is_resumable);
        // The furthest nodes go first, so a node is dropped after all of its lost descendants.
        let furthest = |id: &TreeNodeId| {
            let node = &self.nodes[*id as usize];
            (Reverse(node.end), node.used_at, *id)
        };
        lost.sort_by_key(furthest);
        lost.dedup();
        let mut released = Vec::new();
        for id in lost {
            self.drop_node(pool, id, &mut released);
        }
        for block in in_order(pool, &released) {
            pool.let_go(block);
        }
    }

    /// Notes that the hashes of one block now belong to another.
    pub(in crate::cache) fn moved(&mut self, pool: &mut Pool, from: BlockId, to: BlockId) {
        for id in self.holders(pool, from) {
            let node = &mut self.nodes[id as usize];
            for block in node.full.iter_mut().chain(&mut node.tail) {
                if *block == from {
                    *block = to;
                }
            }
        }
        self.pins[to.index()] = std::mem::take(&mut self.pins[from.index()]);
        if self.pins[to.index()] > 0 {
            pool.let_go(from);
            pool.keep(to);
        }
    }

    /// Lets all checkpoints go, but keeps the likelihoods that were learned.
    pub(in crate::cache) fn clear(&mut self, pool: &mut Pool) {
        while self.let_go(pool) {}
        self.owners.clear();
    }

    /// The nodes that need a block. Usually this is only the node that the block's hash belongs to.
    fn holders(&self, pool: &Pool, block: BlockId) -> SmallVec<[TreeNodeId; 1]> {
        let has = |id: &TreeNodeId| {
            let node = &self.nodes[*id as usize];
            node.tail.contains(&block) || node.full.contains(&block)
        };
        match self.pins[block.index()] {
            0 => SmallVec::new(),
            1 if let Some(id) = pool.key(block).and_then(|key| self.owner(key.entry))
                && has(&id) =>
            {
                SmallVec::from_slice(&[id])
            }
            _ => (0..).take(self.nodes.len()).filter(has).collect(),
        }
    }
}

/// Blocks of all groups in the order in which they are evicted: the furthest boundaries first. Those
/// of a group come in order, of which a stable sort makes use.
fn in_order(pool: &Pool, blocks: &[BlockId]) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
    let furthest = |&block: &BlockId| (Reverse(pool.num_tokens(block)), block);
    let mut order: Vec<_> = blocks.iter().map(furthest).collect();
    order.sort();
    order.into_iter().map(|(_, block)| block)
}
