//! What hashes began to find, for those who store blocks elsewhere.
//!
//! A commit notes each block that it makes findable. When the notes are taken, blocks are left out
//! that are no longer found: they were evicted, or their step never ran. States are not noted,
//! because they move from block to block; [`KeptState`](super::KeptState) names them.

use hashbrown::HashSet;

use crate::blocks::{BlockId, Key, Pool};
use crate::hash::Digest;

/// A block that a hash began to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Findable {
    /// The group in which the hash finds the block.
    pub group: u16,
    /// The block.
    pub block: BlockId,
    /// The hash.
    pub hash: Digest,
    /// The number of tokens that the hash covers.
    pub num_tokens: u32,
    /// The request that registered the block.
    pub request: u64,
}

impl Findable {
    fn is_found(&self, pool: &Pool) -> bool {
        let entry = pool.index.find(&self.hash);
        let key = |entry| Key {
            entry,
            group: self.group,
        };
        entry.is_some_and(|entry| pool.is_registered(self.block, key(entry)))
    }
}

/// The notes that were not taken yet.
#[derive(Debug, Clone)]
pub(super) struct FindableLog {
    is_on: bool,
    noted: Vec<Findable>,
    /// With more notes, those that are out of date are dropped.
    most: usize,
}

impl FindableLog {
    pub(super) fn new(is_on: bool, num_blocks: u32) -> Self {
        Self {
            is_on,
            noted: Vec::new(),
            most: num_blocks as usize,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Notes that a hash finds a block from now on, if notes are wanted.
    pub(super) fn note(&mut self, pool: &Pool, findable: Findable) {
        if !self.is_on {
            return;
        }
        if self.noted.len() >= self.most {
            // Nobody takes the notes. Then there are at most twice as many as blocks are found.
            self.drop_lost(pool);
            self.most = self.most.max(2 * self.noted.len());
        }
        self.noted.push(findable);
    }

    /// Takes the notes of all blocks that are still found, in the order of the last note of each.
    pub(super) fn take(&mut self, pool: &Pool) -> Vec<Findable> {
        self.drop_lost(pool);
        std::mem::take(&mut self.noted)
    }

    fn drop_lost(&mut self, pool: &Pool) {
        let mut seen = HashSet::with_capacity(self.noted.len());
        self.noted.reverse();
        self.noted
            .retain(|note| note.is_found(pool) && seen.insert((note.block, note.group, note.hash)));
        self.noted.reverse();
    }
}
