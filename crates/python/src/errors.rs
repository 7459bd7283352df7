//! The core's errors as the package's own exceptions, one class per variant.

use kvbraid_core::Error;
use pyo3::prelude::*;

pyo3::import_exception!(kvbraid.errors, InvalidValueError);
pyo3::import_exception!(kvbraid.errors, TooLargeError);
pyo3::import_exception!(kvbraid.errors, UnknownError);

/// The exception that carries this error's message.
pub(crate) fn to_python(error: Error) -> PyErr {
    match error {
        Error::InvalidValue(text) => InvalidValueError::new_err(text),
        Error::Unknown(text) => UnknownError::new_err(text),
        Error::TooLarge(text) => TooLargeError::new_err(text),
    }
}
