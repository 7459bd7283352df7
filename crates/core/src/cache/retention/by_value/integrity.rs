//! What is true between any two calls.

use super::{Checkpoints, ROOT, TreeNodeId};
use crate::blocks::{BlockId, Pool};

impl Checkpoints {
    /// Panics unless tree, pins, owners and queue agree.
    pub(in crate::cache) fn check_integrity(&self, pool: &Pool) {
        let mut pins = vec![0; self.pins.len()];
        let mut reached = 0;
        let mut left = vec![ROOT];
        while let Some(id) = left.pop() {
            reached += 1;
            self.check_node(pool, id);
            let node = &self.nodes[id as usize];
            for &block in node.full.iter().chain(&node.tail) {
                pins[block.index()] += 1;
            }
            left.extend(&node.children);
        }
        assert_eq!(reached + self.unused.len(), self.nodes.len(), "nodes");
        assert_eq!(pins, self.pins, "pins");
        for (block, &count) in (0u32..).zip(&pins) {
            let block = BlockId(block);
            assert_eq!(pool.is_kept(block), count > 0, "block {block} is kept");
            assert!(
                count == 0 || pool.key(block).is_some(),
                "block {block} is kept without a hash"
            );
        }
        let keyed = self.nodes.iter().filter(|node| node.key.is_some()).count();
        assert_eq!(keyed, self.queue.len(), "queue of checkpoints");
        self.returns.check_integrity();
        if let Some(overlaps) = &self.overlaps {
            overlaps.check_integrity();
        }
    }

    fn check_node(&self, pool: &Pool, id: TreeNodeId) {
        let node = &self.nodes[id as usize];
        for &child in &node.children {
            let below = &self.nodes[child as usize];
            assert_eq!(below.parent, id, "parent of node {child}");
            assert!(below.end > node.end, "node {child} ends before its parent");
        }
        assert_eq!(
            node.key.is_some(),
            self.weight(id).is_some(),
            "node {id} is in the queue if it frees anything"
        );
        if let Some(key) = node.key {
            assert!(self.queue.contains(&(key, id)), "node {id} is not queued");
        }
        if id == ROOT {
            return;
        }
        assert!(
            node.is_resumable || node.children.len() > 1,
            "node {id}: nothing resumes there, and no paths part"
        );
        let entry = node.entry.expect("only the root has no hash");
        assert_eq!(self.owner(entry), Some(id), "hash of node {id}");
        for &block in &node.full {
            let key = pool.key(block).expect("checked with the pins");
            let tokens = pool.num_tokens(block);
            let above = self.nodes[node.parent as usize].end;
            assert!(
                above < tokens && tokens <= node.end,
                "block {block} of node {id} ends at {tokens} tokens"
            );
            assert!(
                !self.is_owned(tokens) || self.owner(key.entry) == Some(id),
                "block {block} of node {id}"
            );
        }
    }
}
