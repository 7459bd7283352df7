//! The options of a fleet index, as Python passes them.

use std::num::NonZeroU32;

use kvbraid_core::fleet::Options;
use kvbraid_core::secret::Secret;
use pyo3::prelude::*;

use crate::secret;

/// `use_hash_functions`, `counts_copies`, `all_groups`, `memory_limit_bytes`,
/// `limbo_limit_bytes`, weights of gpu, cpu and storage, `canonical_block_size`, `max_ranks`, secret
/// (drawn here without one).
#[derive(FromPyObject)]
pub(crate) struct OptionsTuple(
    bool,
    bool,
    bool,
    usize,
    usize,
    [f64; 3],
    NonZeroU32,
    usize,
    Option<[u8; 32]>,
);

impl OptionsTuple {
    /// The options; a secret is drawn where none is given.
    pub(crate) fn decode(self) -> Options {
        let Self(hash, counts, all_groups, memory, limbo, weights, canonical, ranks, fixed) = self;
        Options {
            use_hash_functions: hash,
            counts_copies: counts,
            all_groups,
            memory_limit_bytes: memory,
            limbo_limit_bytes: limbo,
            weights,
            canonical_block_size: canonical,
            max_ranks: ranks,
            secret: fixed.map_or_else(secret::draw, Secret::new),
        }
    }
}
