//! The token ids of a JSON request body.

use kvbraid_core::token_json::{TokenSpan, find_token_ids};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Finds the `token_ids` of a JSON object: (little-endian uint32 bytes, start, end) or None.
#[pyfunction]
#[pyo3(name = "find_token_ids")]
fn py_find_token_ids<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyBytes>,
) -> Option<(Bound<'py, PyBytes>, usize, usize)> {
    let text = body.as_bytes();
    let TokenSpan { tokens, span } = py.detach(|| find_token_ids(text))?;
    Some((PyBytes::new(py, &tokens), span.start, span.end))
}

/// Adds the functions of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(py_find_token_ids, module)?)
}
