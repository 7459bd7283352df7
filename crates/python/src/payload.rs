//! What an engine publishes: the payload around events that its cache recorded.

use kvbraid_core::cache;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Adds the functions of this file.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_events, module)?)
}

/// A published payload of events that were taken.
#[pyfunction]
fn encode_events<'py>(
    py: Python<'py>,
    events: &[u8],
    num_events: u32,
    ts: f64,
    dp_rank: Option<u32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (head, tail) = cache::frame(num_events, ts, dp_rank);
    let len = head.len() + events.len() + tail.len();
    PyBytes::new_with(py, len, |payload| {
        let (start, rest) = payload.split_at_mut(head.len());
        let (middle, end) = rest.split_at_mut(events.len());
        start.copy_from_slice(&head);
        middle.copy_from_slice(events);
        end.copy_from_slice(&tail);
        Ok(())
    })
}
