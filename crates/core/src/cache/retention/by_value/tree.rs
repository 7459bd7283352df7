//! The tree of prefixes: where a request's prefix stands in it, and how nodes are added, split and
//! removed.

use std::ops::Range;

use smallvec::SmallVec;

use super::value::{Past, Priority, Weight};
use super::{Anchor, Checkpoints, NO_NODE, Node, Origin, ROOT, TreeNodeId};
use crate::blocks::{BlockId, Entries, EntryId, NULL_BLOCK, Pool, count};
use crate::cache::config::EvictionPolicy;
use crate::cache::group::{Group, Kind};
use crate::cache::request::Request;

/// The most checkpoints after a changed one that are valued again at once.
const MOST_NEIGHBOURS: usize = 64;

impl Checkpoints {
    pub(super) fn entry_at(&self, pool: &Pool, request: &Request, tokens: u32) -> Option<EntryId> {
        pool.index
            .find(request.hash_at(tokens, self.boundaries.hash_block)?)
    }

    /// The node that a hash belongs to.
    pub(super) fn owner(&self, entry: EntryId) -> Option<TreeNodeId> {
        let owner = self.owners.get(entry.0 as usize).copied();
        owner.filter(|&owner| owner != NO_NODE)
    }

    pub(super) fn owner_at(
        &self,
        pool: &Pool,
        request: &Request,
        tokens: u32,
    ) -> Option<TreeNodeId> {
        self.owner(self.entry_at(pool, request, tokens)?)
    }

    /// How far the tree leads along a request's first `end` tokens.
    pub(super) fn anchor(&self, pool: &Pool, request: &Request, end: u32) -> Anchor {
        let at = |tokens: u32| {
            let node = self.owner_at(pool, request, tokens)?;
            Some(Anchor { node, tokens })
        };
        let root = Anchor {
            node: ROOT,
            tokens: 0,
        };
        if let Some(anchor) = at(end) {
            return anchor;
        }
        let Some(step) = self.full_step else {
            let before = (1..end.div_ceil(self.boundaries.hit_alignment)).rev();
            let mut found = before.filter_map(|hit| at(hit * self.boundaries.hit_alignment));
            return found.next().unwrap_or(root);
        };
        // If a block of a full group is held, all blocks before it are held too.
        let (mut known, mut unknown) = (0, end / step + 1);
        let mut anchor = root;
        while unknown - known > 1 {
            let middle = known.midpoint(unknown);
            if let Some(found) = at(middle * step) {
                (known, anchor) = (middle, found);
            } else {
                unknown = middle;
            }
        }
        anchor
    }

    /// The blocks that lead from an anchor to a boundary, and the other blocks that a resume there
    /// needs; `None` unless all of them are held.
    pub(super) fn needed(
        &self,
        pool: &Pool,
        request: &Request,
        span: Range<u32>,
    ) -> Option<(Vec<BlockId>, Vec<BlockId>)> {
        let Range { start, end } = span;
        let (mut full, mut tail) = (Vec::new(), Vec::new());
        // Groups hold the same hashes.
        let (mut entries, hash_block) = (Entries::default(), self.boundaries.hash_block);
        let mut add = |group: &Group, positions: Range<u32>, found: &mut Vec<BlockId>| {
            found.reserve(positions.len());
            let mut previous = None;
            for position in positions {
                let block_end = (position + 1) * group.block;
                // The last block may be registered only up to the boundary.
                let tokens = if position * group.block < end {
                    block_end.min(end)
                } else {
                    block_end
                };
                let hash = tokens / hash_block;
                let entry = if let Some(entry) = entries.of(hash) {
                    entry
                } else {
                    let digest = request.hash_at(tokens, hash_block)?;
                    let entry = pool.index.find_after(previous, digest)?;
                    entries.note(hash, entry);
                    entry
                };
                previous = Some(entry);
                let block = pool.index.row(entry)[usize::from(group.index)];
                found.push((block != NULL_BLOCK).then_some(block)?);
            }
            Some(())
        };
        // Tails begin at about the same block: their entries are found once.
        for group in &self.groups {
            add(group, group.tail_at(end), &mut tail)?;
        }
        for group in self.groups.iter().filter(|g| g.kind == Kind::Full) {
            add(group, start / group.block..end / group.block, &mut full)?;
        }
        Some((full, tail))
    }

    /// The node that ends at an anchor. A longer node is split there.
    pub(super) fn node_at(&mut self, pool: &Pool, request: &Request, anchor: Anchor) -> TreeNodeId {
        let Anchor { node: id, tokens } = anchor;
        if self.nodes[id as usize].end == tokens {
            return id;
        }
        let entry = self.entry_at(pool, request, tokens);
        let node = &mut self.nodes[id as usize];
        let (above, below) = std::mem::take(&mut node.full)
            .into_iter()
            .partition(|&block| pool.num_tokens(block) <= tokens);
        node.full = below;
        let (parent, place) = (node.parent, node.place);
        let upper = Node {
            parent,
            place,
            children: vec![id],
            entry,
            end: tokens,
            full: above,
            is_resumable: self.needs_no_tail,
            used_at: node.used_at,
            used_level: node.used_level,
            ..Node::root()
        };
        let new = self.add(upper);
        let node = &mut self.nodes[id as usize];
        (node.parent, node.place) = (new, 0);
        self.nodes[parent as usize].children[place as usize] = new;
        self.claim(pool, new);
        self.weigh(id);
        self.weigh(new);
        new
    }

    /// Makes a node the owner of the hashes of its blocks and of the hash of its end.
    pub(super) fn claim(&mut self, pool: &Pool, id: TreeNodeId) {
        let node = &mut self.nodes[id as usize];
        let (full, entry) = (std::mem::take(&mut node.full), node.entry);
        self.assign(pool, &full, entry, id);
        self.nodes[id as usize].full = full;
    }

    fn disclaim(&mut self, pool: &Pool, node: &Node) {
        self.assign(pool, &node.full, node.entry, NO_NODE);
    }

    /// Gives an owner to the hash of a node's end, and to those of its blocks after which paths can
    /// part.
    fn assign(&mut self, pool: &Pool, full: &[BlockId], end: Option<EntryId>, owner: TreeNodeId) {
        for &block in full {
            if self.is_owned(pool.num_tokens(block))
                && let Some(key) = pool.key(block)
            {
                self.set_owner(key.entry, owner);
            }
        }
        if let Some(entry) = end {
            self.set_owner(entry, owner);
        }
    }

    /// Whether the hash of a full group's block that covers this many tokens belongs to one node.
    /// If the block ends between two points where paths can part, both paths may need it.
    pub(super) fn is_owned(&self, tokens: u32) -> bool {
        self.full_step
            .is_some_and(|step| tokens.is_multiple_of(step))
    }

    fn add(&mut self, node: Node) -> TreeNodeId {
        if let Some(id) = self.unused.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        self.nodes.push(node);
        TreeNodeId::try_from(self.nodes.len() - 1).expect("fewer nodes than blocks")
    }

    /// Adds a node below another one.
    pub(super) fn attach(&mut self, parent: TreeNodeId, entry: EntryId, end: u32) -> TreeNodeId {
        let id = self.add(Node {
            parent,
            entry: Some(entry),
            end,
            ..Node::root()
        });
        self.adopt(parent, id);
        id
    }

    /// Adds a node to the children of another one.
    fn adopt(&mut self, parent: TreeNodeId, id: TreeNodeId) {
        let siblings = &mut self.nodes[parent as usize].children;
        let place = count(siblings.len());
        siblings.push(id);
        let node = &mut self.nodes[id as usize];
        (node.parent, node.place) = (parent, place);
    }

    /// Takes a node that was taken out from the children of its parent. The last child gets its
    /// place, so this costs the same among many.
    fn disown(&mut self, node: &Node) {
        let siblings = &mut self.nodes[node.parent as usize].children;
        siblings.swap_remove(node.place as usize);
        if let Some(&moved) = siblings.get(node.place as usize) {
            self.nodes[moved as usize].place = node.place;
        }
    }

    /// Notes that one more path continues from a node.
    pub(super) fn went_on(&mut self, id: TreeNodeId) {
        let node = &mut self.nodes[id as usize];
        node.was_resumed = false;
        node.is_shared |= node.children.len() > 1;
        if node.is_resumable && id != ROOT {
            self.likelihood.note_candidate(node.past());
        }
        self.weigh(id);
    }

    /// Drops the tail of a node. If no path continues from the node, the blocks that led only to it
    /// are dropped too.
    pub(super) fn drop_node(&mut self, pool: &Pool, id: TreeNodeId, released: &mut Vec<BlockId>) {
        let tail = std::mem::take(&mut self.nodes[id as usize].tail);
        self.unpin(&tail, released);
        if self.nodes[id as usize].children.is_empty() {
            self.remove(pool, id, released);
            return;
        }
        self.nodes[id as usize].is_resumable = false;
        self.weigh(id);
        self.weigh_below(id);
        self.contract(pool, id);
    }

    /// Removes a node without children, and the nodes above it that led only to it. Requests that
    /// were expected to resume here are now expected at the node where they would resume instead,
    /// so that node inherits the expectation.
    fn remove(&mut self, pool: &Pool, id: TreeNodeId, released: &mut Vec<BlockId>) {
        let last = self.take(id);
        let mut id = self.unlink(pool, &last, released);
        while !self.nodes[id as usize].is_resumable && self.nodes[id as usize].children.is_empty() {
            let node = self.take(id);
            id = self.unlink(pool, &node, released);
        }
        let heir = &mut self.nodes[id as usize];
        if heir.children.is_empty() {
            if !matches!(heir.past(), Past::Shared(_)) {
                (heir.ending, heir.hint) = (last.ending, last.hint);
                heir.has_ended = last.has_ended;
                heir.was_resumed = last.was_resumed;
            }
            heir.used_at = heir.used_at.max(last.used_at);
            heir.used_level = heir.used_level.max(last.used_level);
        }
        self.weigh(id);
        self.contract(pool, id);
    }

    /// Removes every reference to a node that was taken out, and returns the node's parent.
    fn unlink(&mut self, pool: &Pool, node: &Node, released: &mut Vec<BlockId>) -> TreeNodeId {
        self.disclaim(pool, node);
        self.unpin(&node.full, released);
        self.disown(node);
        node.parent
    }

    /// Takes a node out of the tree. The caller removes the references to it.
    fn take(&mut self, id: TreeNodeId) -> Node {
        self.dequeue(id);
        self.unused.push(id);
        std::mem::replace(&mut self.nodes[id as usize], Node::root())
    }

    /// Takes a node out if no request can resume there and no paths part there.
    fn contract(&mut self, pool: &Pool, id: TreeNodeId) {
        let node = &self.nodes[id as usize];
        if node.is_resumable || (node.children.len() != 1 && self.full_step.is_some()) {
            return;
        }
        let node = self.take(id);
        self.assign(pool, &[], node.entry, NO_NODE);
        self.disown(&node);
        for &child in &node.children {
            self.adopt(node.parent, child);
            self.nodes[child as usize].full.extend(&node.full);
            self.assign(pool, &node.full, None, child);
            self.weigh(child);
        }
        self.weigh(node.parent);
    }

    pub(super) fn set_owner(&mut self, entry: EntryId, id: TreeNodeId) {
        let at = entry.0 as usize;
        if at >= self.owners.len() {
            self.owners.resize(at + 1, NO_NODE);
        }
        self.owners[at] = id;
    }

    pub(super) fn pin(&mut self, pool: &mut Pool, block: BlockId) {
        self.pins[block.index()] += 1;
        pool.keep(block);
    }

    fn unpin(&mut self, blocks: &[BlockId], released: &mut Vec<BlockId>) {
        for &block in blocks {
            let pins = &mut self.pins[block.index()];
            *pins -= 1;
            if *pins == 0 {
                released.push(block);
            }
        }
    }

    /// Computes a node's value again, after a change to anything that the value depends on.
    pub(super) fn weigh(&mut self, id: TreeNodeId) {
        let node = &self.nodes[id as usize];
        let key = self.weight(id).map(|weight| Priority {
            value: match self.policy {
                EvictionPolicy::Value => node.used_level + weight.worth(&self.by_value.cost),
                EvictionPolicy::Dense | EvictionPolicy::Interval => 0.0,
            },
            used_at: node.used_at,
        });
        if self.nodes[id as usize].key != key {
            self.dequeue(id);
            self.nodes[id as usize].key = key;
            self.queue.extend(key.map(|key| (key, id)));
        }
    }

    fn dequeue(&mut self, id: TreeNodeId) {
        if let Some(key) = self.nodes[id as usize].key.take() {
            self.queue.remove(&(key, id));
        }
    }

    /// Adds a node and all its descendants to `found`.
    pub(super) fn collect(&self, id: TreeNodeId, found: &mut Vec<TreeNodeId>) {
        let mut next = found.len();
        found.push(id);
        while let Some(&id) = found.get(next) {
            found.extend(&self.nodes[id as usize].children);
            next += 1;
        }
    }

    /// Computes the values of the next resumable nodes below a node again, because what they save
    /// depends on this node. If there are more than `MOST_NEIGHBOURS`, they keep their values until
    /// something else happens to them, so that no single change takes long.
    pub(super) fn weigh_below(&mut self, id: TreeNodeId) {
        let mut found: SmallVec<[TreeNodeId; MOST_NEIGHBOURS]> = SmallVec::new();
        let mut left: SmallVec<[TreeNodeId; 8]> = SmallVec::from_slice(&[id]);
        while let Some(id) = left.pop() {
            for &child in &self.nodes[id as usize].children {
                if found.len() + left.len() == MOST_NEIGHBOURS {
                    return;
                }
                if self.nodes[child as usize].is_resumable {
                    found.push(child);
                } else {
                    left.push(child);
                }
            }
        }
        for id in found {
            self.weigh(id);
        }
    }

    /// The node where a request would resume without this one, which is not the root.
    pub(super) fn resumable_above(&self, id: TreeNodeId) -> TreeNodeId {
        let mut above = self.nodes[id as usize].parent;
        while !self.nodes[above as usize].is_resumable {
            above = self.nodes[above as usize].parent;
        }
        above
    }

    /// The tokens that a resume here saves, compared with no checkpoints at expected lengths.
    pub(super) fn saved_by_overlaps(&self, id: TreeNodeId) -> u32 {
        let node = |id: TreeNodeId| &self.nodes[id as usize];
        let mut above = id;
        while node(above).origin == Origin::Overlap {
            above = self.resumable_above(above);
        }
        node(id).end - node(above).end
    }

    /// What a checkpoint's value is computed from; `None` if dropping it frees nothing.
    pub(super) fn weight(&self, id: TreeNodeId) -> Option<Weight> {
        let node = &self.nodes[id as usize];
        let is_last = node.children.is_empty();
        if id == ROOT || !node.is_resumable || (!is_last && node.tail.is_empty()) {
            return None;
        }
        let floor = self.nodes[self.resumable_above(id) as usize].end;
        // Blocks before the resume point above are usually needed there too, so they are not
        // counted as freed.
        let own_tail = |group: &Group| {
            let Range { start, end } = group.tail_at(node.end);
            end.saturating_sub(start.max(floor / group.block))
        };
        let tail: u32 = self.groups.iter().map(own_tail).sum();
        Some(Weight {
            likelihood: self.likelihood_of(node),
            floor,
            end: node.end,
            num_blocks: tail + if is_last { count(node.full.len()) } else { 0 },
        })
    }
}
