//! The core's errors as the package's own exceptions.

use kvbraid_core::Error;
use pyo3::prelude::*;

pyo3::import_exception!(kvbraid.errors, InvalidValueError);
pyo3::import_exception!(kvbraid.errors, NotHeldError);
pyo3::import_exception!(kvbraid.errors, SnapshotError);
pyo3::import_exception!(kvbraid.errors, UnknownError);

/// The exception that carries this error's message.
#[expect(
    clippy::needless_pass_by_value,
    reason = "taken from `map_err`, which gives the error away"
)]
pub(crate) fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::InvalidValue(_) | Error::GivenTwice(_) | Error::UnknownBlock { .. } => {
            InvalidValueError::new_err(text)
        }
        Error::Snapshot { reason, .. } => SnapshotError::new_err((text, reason.name())),
        Error::Unknown(_) | Error::UnknownRequest(_) => UnknownError::new_err(text),
        Error::NotHeld { .. } | Error::NoWayBack { .. } => NotHeldError::new_err(text),
    }
}
