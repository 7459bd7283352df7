//! A member of a Python enum, which crosses as its value.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

/// Any member of an enum of names; who takes it knows the names.
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
