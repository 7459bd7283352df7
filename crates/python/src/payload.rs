//! What an engine publishes: the payload around the events that its cache recorded, and a digest
//! that distinguishes payloads.

use kvbraid_core::blocks;
use kvbraid_core::secret::{PayloadHash, Secret};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::secret;

/// Adds the class and the function of this file.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PayloadDigest>()?;
    module.add_function(wrap_pyfunction!(encode_events, module)?)
}

/// A published payload around events that were taken.
#[pyfunction]
fn encode_events<'py>(
    py: Python<'py>,
    events: &[u8],
    num_events: u32,
    ts: f64,
    dp_rank: Option<u32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (head, tail) = blocks::frame(num_events, ts, dp_rank);
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

/// Digests of payloads. Each object has its own secret, unless it is given one.
#[pyclass(frozen, module = "kvbraid._native")]
struct PayloadDigest {
    hash: PayloadHash,
}

#[pymethods]
impl PayloadDigest {
    #[new]
    #[pyo3(signature = (secret=None))]
    fn new(secret: Option<[u8; 32]>) -> Self {
        let secret = secret.map_or_else(secret::draw, Secret::new);
        Self {
            hash: secret.payload_hash(),
        }
    }

    fn of(&self, py: Python<'_>, payload: &[u8]) -> u64 {
        py.detach(|| self.hash.of(payload))
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments arrive owned")]
    fn of_each(&self, py: Python<'_>, payloads: Vec<PyBackedBytes>) -> Vec<u64> {
        py.detach(|| {
            payloads
                .iter()
                .map(|payload| self.hash.of(payload))
                .collect()
        })
    }
}
