//! Which requests the simulated caches replay: a fixed share of all families of prefixes.
//!
//! ```text
//! every request    | system prompt |                       shared by too many: no family
//! one family       | system prompt | first question | ...
//! another family   | system prompt | other question | ...
//! ```
//! A family has the same block after the blocks that a large part of the traffic shares. All its
//! requests are replayed or none, so a simulated cache with an n-th of the blocks sees an n-th of the
//! traffic as the cache sees all of it.

use hashbrown::HashMap;

use crate::hash::Digest;

/// A block that more than 1/16 of all requests contain is too common to identify a prompt family.
const COMMON: u32 = 16;

/// Counts are halved when this many requests were counted.
const HALVED_AT: u32 = 1_024;

#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// One family in this many is replayed.
    one_in: u32,
    num_requests: u32,
    /// How many requests have a block, for blocks after common ones.
    counts: HashMap<u64, u32>,
}

impl Sample {
    pub(super) fn new(one_in: u32) -> Self {
        Self {
            one_in,
            num_requests: 0,
            counts: HashMap::new(),
        }
    }

    /// Whether a request with these blocks is replayed.
    pub(super) fn takes<'a>(&mut self, hashes: impl Iterator<Item = &'a Digest>) -> bool {
        if self.one_in == 1 {
            return true;
        }
        self.num_requests += 1;
        let mut family = 0;
        for digest in hashes {
            family = digest.key();
            let count = self.counts.entry(family).or_insert(0);
            *count += 1;
            if *count <= self.num_requests / COMMON + 1 {
                break;
            }
        }
        if self.num_requests == HALVED_AT {
            self.num_requests /= 2;
            self.counts.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
        }
        // Engines hash with a secret seed or not at all: the bits are mixed once more.
        let mixed = family.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        mixed.is_multiple_of(u64::from(self.one_in))
    }

    pub(super) fn bytes(&self) -> usize {
        self.counts.allocation_size()
    }
}
