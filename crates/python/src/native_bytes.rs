//! Many numbers as one buffer, which Python reads without a copy.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A buffer of native integers.
pub(crate) type Column<'py> = Bound<'py, PyBytes>;

/// The numbers as native bytes, written in place: a step of 256 requests answers with thousands of
/// numbers.
pub(crate) fn native_bytes<const SIZE: usize>(
    py: Python<'_>,
    numbers: impl ExactSizeIterator<Item = [u8; SIZE]>,
) -> PyResult<Column<'_>> {
    PyBytes::new_with(py, SIZE * numbers.len(), |bytes| {
        for (place, number) in bytes.chunks_exact_mut(SIZE).zip(numbers) {
            place.copy_from_slice(&number);
        }
        Ok(())
    })
}
