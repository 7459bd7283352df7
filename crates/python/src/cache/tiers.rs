//! What the cache answers to those who store blocks, as tuples.

use kvbraid_core::cache::Findable;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The group, the block, the hash, the number of tokens and the request.
pub(super) type FindableTuple<'py> = (u16, u32, Bound<'py, PyBytes>, u32, u64);

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
