//! What is true between any two calls.

use smallvec::SmallVec;

use super::{Block, Pool};
use crate::ids::BlockId;

impl Pool {
    /// Checks every block.
    ///
    /// # Panics
    /// Unless references, queue and hashes agree.
    pub fn check_integrity(&self) {
        self.index.check_integrity();
        let listed: Vec<BlockId> = self.queue().take(self.blocks.len()).collect();
        assert!(
            listed.iter().all(|&block| self.is_listed(block)),
            "a referenced or kept block is in the free queue"
        );
        let is_kept = |block: &&Block| block.is_kept && block.refs == 0;
        let kept = self.blocks.iter().filter(is_kept).count();
        assert_eq!(listed.len() + kept, self.num_free, "free blocks");
        let unreferenced = self.blocks[1..].iter().filter(|b| b.refs == 0).count();
        assert_eq!(
            unreferenced, self.num_free,
            "unreferenced blocks against the queue"
        );
        let mut registered = 0;
        for key in self.index.keys() {
            for block in self.index.copies(key) {
                assert!(
                    self.is_registered(block, key),
                    "block {block} does not know {key:?}"
                );
                registered += 1;
            }
        }
        let own = self.blocks.iter().filter(|b| b.key().is_some()).count();
        let further: usize = self.further.values().map(SmallVec::len).sum();
        assert_eq!(
            registered,
            own + further,
            "keys in the index against keys of blocks"
        );
        assert!(
            self.blocks[0].key().is_none(),
            "the null block is registered"
        );
    }
}
