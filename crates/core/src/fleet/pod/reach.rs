//! How long a prompt the stores of a pod have told of, where its groups are learned.
//!
//! An engine tells of all its groups in one message, but a group tells nothing before its first
//! block is full: where only short prompts were stored, a group with larger blocks may exist that no
//! event has told of. Nor is the block size of a group known while it has told of single blocks
//! alone, because such a store may be of a part of a larger block. What is assumed is that an
//! engine's largest block is at most `MOST_RATIO` times its smallest. Then a prompt of as many of the
//! smallest blocks has made every group tell of itself, and of a whole block.

use serde::{Deserialize, Serialize};

/// How many times the smallest block of an engine its largest one may be.
const MOST_RATIO: u32 = 4;

/// What the lengths of stores have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct LongestPrompt {
    /// The smallest block size that a store of two blocks or more had; 0 before the first one.
    smallest: u32,
    /// The most tokens of a prompt, as far as stores have told.
    longest: u32,
}

impl LongestPrompt {
    /// Notes a store of so many tokens that begins after `before` others, in blocks of `block_size`.
    /// Returns whether it is the first to show that every group has told of itself.
    pub(in crate::fleet) fn note(&mut self, before: u32, tokens: u32, block_size: u32) -> bool {
        let was_enough = self.is_enough();
        if block_size > 0 {
            self.longest = self.longest.max(before.saturating_add(tokens));
            // Of a part of a block there is one alone; so several blocks are whole ones.
            let is_whole = tokens / 2 >= block_size;
            if is_whole && (self.smallest == 0 || block_size < self.smallest) {
                self.smallest = block_size;
            }
        }
        self.is_enough() && !was_enough
    }

    /// Whether every group must have told of itself by now.
    #[must_use]
    pub(in crate::fleet) fn is_enough(self) -> bool {
        self.smallest > 0 && self.longest / MOST_RATIO >= self.smallest
    }
}
