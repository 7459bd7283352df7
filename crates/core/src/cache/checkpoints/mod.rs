//! Boundaries that are kept resumable, and which of them goes first when blocks are needed.
//!
//! ```text
//! root ---- junction ---- end of a turn ---- end of the next turn
//!               \-------- end of another request
//! ```
//! A node stands for a prefix. Its `full` blocks lead to it from its parent; its `tail` is what the
//! other groups need for a resume there: windows, chunks, states. A node without a tail is only
//! where paths part. Blocks of nodes do not wait in the pool's queue: when that is empty, the
//! checkpoint of the least value is let go. One that others lead on from loses its tail alone; a
//! last one takes the blocks along that lead to it, so that a session goes as a whole.

mod integrity;
mod tree;
mod value;

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::config::{ByValue, CacheConfig, Retention};
use super::group::{Group, Kind};
use super::hash_index::EntryId;
use super::pool::{BlockId, Pool};
use super::request::Request;
pub(super) use value::Origin;
use value::{Key, Likelihood};

type NodeId = u32;

const ROOT: NodeId = 0;
const NO_NODE: NodeId = NodeId::MAX;

#[derive(Debug, Clone)]
struct Node {
    parent: NodeId,
    children: Vec<NodeId>,
    /// Of the hash of the prefix; the root has none.
    entry: Option<EntryId>,
    /// Tokens of the prefix.
    end: u32,
    /// Blocks between the parent's end and this one, of groups that need all of them.
    full: Vec<BlockId>,
    /// What else a resume here needs.
    tail: Vec<BlockId>,
    is_resumable: bool,
    origin: Origin,
    /// Nodes that were ever attached below.
    continuations: usize,
    /// Since the last of them was.
    was_resumed: bool,
    /// In blocks handed out.
    used_at: u64,
    /// In the queue of those that can be let go.
    key: Option<Key>,
}

/// A place in the tree: tokens of a prefix, and the node that leads there or beyond.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    node: NodeId,
    tokens: u32,
}

#[derive(Debug)]
pub(super) struct Checkpoints {
    policy: ByValue,
    /// Those that are cached.
    groups: Vec<Group>,
    /// Every boundary that the full groups hold can be resumed at.
    needs_no_tail: bool,
    /// Tokens of a full group's smallest block.
    full_step: Option<u32>,
    hash_block: u32,
    hit_alignment: u32,
    num_blocks: f64,
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    /// By entry: the node whose `full` blocks or end it belongs to.
    owners: Vec<NodeId>,
    /// By block: how often it is in a `full` or `tail`.
    pins: Vec<u32>,
    /// What can be let go, least value first.
    queue: BTreeSet<(Key, NodeId)>,
    likelihood: Likelihood,
}

impl Node {
    fn root() -> Self {
        Self {
            parent: NO_NODE,
            children: Vec::new(),
            entry: None,
            end: 0,
            full: Vec::new(),
            tail: Vec::new(),
            is_resumable: true,
            origin: Origin::Junction,
            continuations: 0,
            was_resumed: false,
            used_at: 0,
            key: None,
        }
    }
}

impl Checkpoints {
    /// None unless the retention is by value.
    pub(super) fn new(config: &CacheConfig, groups: &[Group]) -> Option<Self> {
        let Retention::ByValue(policy) = config.retention else {
            return None;
        };
        let groups: Vec<Group> = groups.iter().filter(|g| g.cacheable).copied().collect();
        let full = groups.iter().filter(|group| group.kind == Kind::Full);
        Some(Self {
            policy,
            needs_no_tail: groups.iter().all(|g| g.kind == Kind::Full && !g.eagle),
            full_step: full.map(|group| group.block).min(),
            groups,
            hash_block: config.topology.hash_block_size,
            hit_alignment: config.hit_alignment(),
            num_blocks: f64::from(config.num_blocks),
            nodes: vec![Node::root()],
            unused: Vec::new(),
            owners: Vec::new(),
            pins: vec![0; config.num_blocks as usize],
            queue: BTreeSet::new(),
            likelihood: Likelihood::new(),
        })
    }

    /// Tokens between checkpoints; 0: none but where requests end and branch.
    pub(super) fn interval(&self) -> u32 {
        self.policy.interval
    }

    /// A request resumes behind `tokens`: at a checkpoint, which is one from now on.
    pub(super) fn resume(&mut self, pool: &mut Pool, request: &Request, tokens: u32) -> Origin {
        if !self.keep(pool, request, tokens, Origin::Junction) {
            return Origin::Junction;
        }
        let id = self.anchor(pool, request, tokens).node;
        let node = &mut self.nodes[id as usize];
        let origin = node.origin;
        if !std::mem::replace(&mut node.was_resumed, true) {
            self.likelihood.resumed(origin, node.continuations);
            self.weigh(id);
        }
        origin
    }

    /// Makes a boundary a checkpoint, or renews it; false if not all that it needs is held.
    pub(super) fn keep(
        &mut self,
        pool: &mut Pool,
        request: &Request,
        end: u32,
        origin: Origin,
    ) -> bool {
        let Some(entry) = self.entry_at(pool, request, end) else {
            return false;
        };
        let anchor = self.anchor(pool, request, end);
        let is_there = anchor.tokens == end;
        let known = &mut self.nodes[anchor.node as usize];
        if is_there && known.end == end && known.is_resumable {
            known.used_at = pool.num_taken();
            self.weigh(anchor.node);
            return true;
        }
        let Some((full, tail)) = self.needed(pool, request, (anchor.tokens, end)) else {
            return false;
        };
        let says_so = |block: &BlockId| pool.index.row(entry).contains(block);
        if !is_there && !full.iter().chain(&tail).any(says_so) {
            return false; // No block that is kept would hold the hash of the prefix.
        }
        let above = self.node_at(pool, request, anchor);
        let id = if is_there {
            above
        } else {
            self.attach(above, entry, end)
        };
        for &block in full.iter().chain(&tail) {
            self.pin(pool, block);
        }
        self.own(pool, &full, id);
        self.set_owner(entry, id);
        let node = &mut self.nodes[id as usize];
        node.full.extend(full);
        node.tail = tail;
        node.is_resumable = true;
        node.origin = origin;
        node.used_at = pool.num_taken();
        self.likelihood.seen(origin, node.continuations);
        if !is_there {
            self.went_on(above);
        }
        self.weigh(id);
        self.weigh_below(id);
        true
    }

    /// Lets the checkpoint of the least value go; its blocks wait in the pool's queue. False if
    /// there is none.
    pub(super) fn let_go(&mut self, pool: &mut Pool) -> bool {
        let Some(&(_, id)) = self.queue.first() else {
            return false;
        };
        let mut released = Vec::new();
        self.drop_node(pool, id, &mut released);
        // What the furthest boundaries need goes first, in all groups alike.
        released.sort_by_key(|&block| std::cmp::Reverse(pool.num_tokens(block)));
        for block in released {
            pool.let_go(block);
        }
        true
    }

    /// A block is about to lose its hashes: what needs it is no checkpoint any more.
    pub(super) fn forget(&mut self, pool: &mut Pool, block: BlockId) {
        let mut released = Vec::new();
        while let Some(&id) = self.holders(pool, block).first() {
            let mut id = id;
            if self.nodes[id as usize].full.contains(&block) {
                // All that it leads to goes before it.
                while let Some(&child) = self.nodes[id as usize].children.first() {
                    id = child;
                }
            }
            self.drop_node(pool, id, &mut released);
        }
        for block in released {
            pool.let_go(block);
        }
    }

    /// A block's hashes are another one's now.
    pub(super) fn moved(&mut self, pool: &mut Pool, from: BlockId, to: BlockId) {
        for id in self.holders(pool, from) {
            let node = &mut self.nodes[id as usize];
            for block in node.full.iter_mut().chain(&mut node.tail) {
                if *block == from {
                    *block = to;
                }
            }
        }
        self.pins[to as usize] = std::mem::take(&mut self.pins[from as usize]);
        if self.pins[to as usize] > 0 {
            pool.let_go(from);
            pool.keep(to);
        }
    }

    /// Lets everything go; what was learned stays.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        while self.let_go(pool) {}
        self.owners.clear();
    }

    /// The nodes that need a block. Mostly it is the one that its hash belongs to.
    fn holders(&self, pool: &Pool, block: BlockId) -> SmallVec<[NodeId; 1]> {
        let has = |id: &NodeId| {
            let node = &self.nodes[*id as usize];
            node.tail.contains(&block) || node.full.contains(&block)
        };
        match self.pins[block as usize] {
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
