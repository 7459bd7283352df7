//! What the cache answers about the tables of requests, as tuples and flat buffers.

use kvbraid_core::cache::{OwnLimit, Places};
use kvbraid_core::recovery::{Refusal, ResumePoint, Why};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::answers::native_bytes;

/// The number of places of each block; and the requests, groups and positions of all places. These are
/// buffers of native integers, of 64 bits for requests and of 32 bits for the others.
pub(super) type PlacesTuple<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// The boundary, the group, the position, the block and what is wrong with it.
type RefusalTuple = (u32, u16, u32, u32, &'static str);

/// The number of tokens, and the refusals.
pub(super) type PointTuple = (u32, Vec<RefusalTuple>);

pub(super) fn places<'py>(py: Python<'py>, places: &Places) -> PyResult<PlacesTuple<'py>> {
    Ok((
        native_bytes(py, places.counts.iter().map(|n| n.to_ne_bytes()))?,
        native_bytes(py, places.requests.iter().map(|n| n.to_ne_bytes()))?,
        native_bytes(py, places.groups.iter().map(|n| n.to_ne_bytes()))?,
        native_bytes(py, places.positions.iter().map(|n| n.to_ne_bytes()))?,
    ))
}

pub(super) fn limits(limits: Vec<(u64, Option<u32>)>) -> Vec<OwnLimit> {
    let limit = |(request, num_tokens)| OwnLimit {
        request,
        num_tokens,
    };
    limits.into_iter().map(limit).collect()
}

pub(super) fn points(points: Vec<ResumePoint>) -> Vec<PointTuple> {
    let refusal = |refusal: Refusal| {
        let why = match refusal.why {
            Why::NotHeld => "not_held",
            Why::Bad => "bad",
            Why::NotComputed => "not_computed",
        };
        let Refusal {
            boundary,
            group,
            position,
            block,
            ..
        } = refusal;
        (boundary, group, position, block.0, why)
    };
    let point = |point: ResumePoint| {
        let refused = point.refused.into_iter().map(refusal).collect();
        (point.num_tokens, refused)
    };
    points.into_iter().map(point).collect()
}
