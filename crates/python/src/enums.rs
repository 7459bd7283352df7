//! A member of a Python enum, which crosses the boundary as its value.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

/// Any member of an enum of names; the code that takes it knows which names are valid.
#[derive(FromPyObject)]
pub(crate) struct EnumArg {
    value: PyBackedStr,
}

impl EnumArg {
    /// The name of the member.
    pub(crate) fn name(&self) -> &str {
        &self.value
    }
}
