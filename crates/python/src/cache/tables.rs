//! What the cache answers about the tables of requests, as tuples and flat buffers.

use kvbraid_core::cache::{OwnLimit, Places};
use kvbraid_core::recovery::ResumePoint;
use pyo3::prelude::*;

use crate::native_bytes::{Column, native_bytes};
use crate::recovery::{RefusalTuple, refusals};

/// The blocks, the index after the last place of each, and the requests, groups and positions of all
/// places. These are buffers of native integers, of 64 bits for requests and of 32 bits for the
/// others.
pub(super) type PlacesTuple<'py> = (
    Column<'py>,
    Column<'py>,
    Column<'py>,
    Column<'py>,
    Column<'py>,
);

/// The number of tokens, and the refusals.
pub(super) type PointTuple = (u32, Vec<RefusalTuple>);

pub(super) fn places<'py>(py: Python<'py>, places: &Places) -> PyResult<PlacesTuple<'py>> {
    let Places {
        blocks,
        ends,
        places,
    } = places;
    let end = |end: &usize| u32::try_from(*end).unwrap_or(u32::MAX).to_ne_bytes();
    Ok((
        native_bytes(py, blocks.iter().map(|block| block.0.to_ne_bytes()))?,
        native_bytes(py, ends.iter().map(end))?,
        native_bytes(py, places.iter().map(|place| place.request.to_ne_bytes()))?,
        native_bytes(py, places.iter().map(|place| place.group.to_ne_bytes()))?,
        native_bytes(py, places.iter().map(|place| place.position.to_ne_bytes()))?,
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
    let point = |point: ResumePoint| {
        let refused = refusals(point.refused);
        (point.num_tokens, refused)
    };
    points.into_iter().map(point).collect()
}
