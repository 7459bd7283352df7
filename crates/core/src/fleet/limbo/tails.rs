//! What an engine's retention says about a sparse store, if the operator said that the engine has
//! one.
//!
//! Such an engine keeps *whole* windows of a window group: tails with a fixed number of blocks,
//! which end at multiples of the alignment. A store lists the union of some tails, cut off only
//! where the store begins and ends. Every listed block is therefore in some tail. Blocks that
//! belong to every tail that could contain it are listed too:
//!
//! ```text
//! tails of 4 blocks that end at even blocks; 5 is listed
//! blocks   | 2 | 3 | 4 | 5 | 6 | 7 |
//! tail 1   |---------------|                 both hold 4 and 5: 4 is listed
//! tail 2           |---------------|
//! ```
//!
//! If there are as many open hashes between two known blocks as there are blocks that must be
//! listed there, each hash has its place. Without a word from the operator, nothing is concluded.

use std::ops::Range;

use super::fact::Frame;
use super::span::{SparseSpan, Tails};

impl Tails {
    /// The blocks that are kept whenever `block` is kept; empty if no tail contains it.
    fn with(self, block: u32) -> Range<u32> {
        let first_end = (block / self.every + 1) * self.every;
        let last_end = (block + self.blocks) / self.every * self.every;
        if first_end > last_end {
            return 0..0;
        }
        last_end.saturating_sub(self.blocks)..first_end
    }
}

impl SparseSpan {
    /// Narrows the span by the engine's retention. Returns false if what is listed is no union of
    /// tails.
    pub(super) fn keep_whole_windows(&mut self) -> bool {
        let (Some(tails), Frame::Absolute) = (self.tails, self.start.frame) else {
            return true;
        };
        let block_size = self.ends[0].tokens;
        let count = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        let start = self.start.step.tokens;
        if !start.is_multiple_of(block_size) {
            return true;
        }
        let Some(must) = self.must_be_listed(tails, start / block_size, count) else {
            return false;
        };
        let mut must = must.into_iter().peekable();
        let mut open = 0;
        for i in 0..=self.listed.len() {
            let known = match self.listed.get(i) {
                Some(listed) if listed.low < listed.high => continue,
                Some(listed) => listed.low,
                None => count,
            };
            let mut between = Vec::new();
            while let Some(block) = must.next_if(|&block| block < known) {
                between.push(block);
            }
            must.next_if_eq(&known);
            if !self.fill(open..i, &between) {
                return false;
            }
            open = i + 1;
        }
        true
    }

    /// The blocks, in order, that must be listed because of the blocks that are known to be listed.
    fn must_be_listed(&self, tails: Tails, first: u32, count: u32) -> Option<Vec<u32>> {
        let mut must: Vec<u32> = Vec::new();
        for listed in self.listed.iter().filter(|l| l.low == l.high) {
            let with = tails.with(first + listed.low);
            if with.is_empty() {
                return None;
            }
            let from = must.last().map_or(0, |last| last + 1);
            let to = with.end.saturating_sub(first).min(count);
            must.extend(with.start.saturating_sub(first).max(from)..to);
        }
        Some(must)
    }

    /// Gives the open hashes between two known blocks the blocks that must be listed there, if both
    /// are equally many.
    fn fill(&mut self, open: Range<usize>, must: &[u32]) -> bool {
        if must.len() > open.len() {
            return false;
        }
        if must.len() < open.len() {
            return true;
        }
        for (listed, &block) in self.listed[open].iter_mut().zip(must) {
            if !(listed.low..=listed.high).contains(&block) {
                return false;
            }
            (listed.low, listed.high) = (block, block);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every union of tails that end at multiples up to `blocks`, each as a set of blocks below
    /// `blocks`.
    fn unions(tails: Tails, blocks: u32) -> Vec<Vec<u32>> {
        let most = blocks + tails.blocks + tails.every;
        let ends: Vec<u32> = (0..=most).filter(|e| e % tails.every == 0).collect();
        (0u32..1 << ends.len())
            .map(|chosen| {
                let is_kept = |block: &u32| {
                    ends.iter().enumerate().any(|(i, &end)| {
                        let tail = end.saturating_sub(tails.blocks)..end;
                        chosen >> i & 1 == 1 && tail.contains(block)
                    })
                };
                (0..blocks).filter(is_kept).collect()
            })
            .collect()
    }

    #[test]
    fn what_is_kept_with_a_block_is_in_every_union_of_tails_that_has_it() {
        for (blocks, every) in [(4, 2), (1, 4), (3, 2), (2, 3), (5, 4)] {
            let tails = Tails { blocks, every };
            let all = unions(tails, 12);
            for block in 0..12 {
                let having: Vec<_> = all.iter().filter(|kept| kept.contains(&block)).collect();
                let common = (0..12).filter(|b| having.iter().all(|kept| kept.contains(b)));
                let expected: Vec<u32> = if having.is_empty() {
                    vec![]
                } else {
                    common.collect()
                };
                let with: Vec<u32> = tails.with(block).filter(|b| *b < 12).collect();
                assert_eq!(with, expected, "{tails:?}, block {block}");
            }
        }
    }
}
