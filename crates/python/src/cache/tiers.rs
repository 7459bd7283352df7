//! What the cache answers to those who store and load blocks, and the look-up over several caches.

use std::ptr;

use kvbraid_core::adaptive::AdaptiveCache;
use kvbraid_core::cache::{Cache, Findable, TierMatch, match_over as look_up};
use kvbraid_core::{Error, Result};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::native_bytes::{Column, native_bytes};

/// The hit to adopt and its junction; what the pool alone has; what the request has after the load;
/// and the groups, positions, sources and blocks of all fills, as buffers of native 32-bit integers.
pub(super) type TierMatchTuple<'py> = (
    u32,
    u32,
    u32,
    u32,
    Column<'py>,
    Column<'py>,
    Column<'py>,
    Column<'py>,
);

/// The group, the block, the hash, the number of tokens and the request.
pub(super) type FindableTuple<'py> = (u16, u32, Bound<'py, PyBytes>, u32, u64);

/// Locks the cache and its tiers, and looks a request up.
pub(super) fn match_over(
    cache: &Mutex<AdaptiveCache>,
    request: u64,
    tiers: &[&Mutex<AdaptiveCache>],
    whole_blocks: bool,
) -> Result<TierMatch> {
    let all: Vec<_> = std::iter::once(&cache).chain(tiers).copied().collect();
    let is_known = |&at: &usize| all[..at].iter().any(|other| ptr::eq(*other, all[at]));
    if let Some(at) = (1..all.len()).find(is_known) {
        return Err(Error::InvalidValue(format!(
            "tiers[{}] is the cache itself, or an earlier tier; each tier has an index of its own",
            at - 1
        )));
    }
    // Always in the same order: else two threads could each wait for what the other has locked.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_unstable_by_key(|&at| ptr::from_ref(all[at]).addr());
    let mut locked: Vec<_> = all.iter().map(|_| None).collect();
    for at in order {
        locked[at] = Some(all[at].lock());
    }
    let mut locked = locked.into_iter().flatten();
    let mut cache = locked.next().expect("the cache itself");
    let tiers: Vec<_> = locked.collect();
    let tiers: Vec<&Cache> = tiers.iter().map(|tier| &***tier).collect();
    look_up(&mut cache, request, &tiers, whole_blocks)
}

pub(super) fn tier_match<'py>(py: Python<'py>, found: &TierMatch) -> PyResult<TierMatchTuple<'py>> {
    let TierMatch {
        adopted,
        num_pool_tokens,
        num_tokens,
        fills,
    } = found;
    let groups = fills.iter().map(|fill| u32::from(fill.group));
    Ok((
        adopted.num_tokens,
        adopted.junction,
        *num_pool_tokens,
        *num_tokens,
        native_bytes(py, groups.map(u32::to_ne_bytes))?,
        native_bytes(py, fills.iter().map(|fill| fill.position.to_ne_bytes()))?,
        native_bytes(py, fills.iter().map(|fill| fill.source.to_ne_bytes()))?,
        native_bytes(py, fills.iter().map(|fill| fill.block.0.to_ne_bytes()))?,
    ))
}

pub(super) fn findable<'py>(py: Python<'py>, found: &Findable) -> FindableTuple<'py> {
    let hash = PyBytes::new(py, found.hash.as_bytes());
    (
        found.group,
        found.block.0,
        hash,
        found.num_tokens,
        found.request,
    )
}
