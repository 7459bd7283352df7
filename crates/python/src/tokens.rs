//! Token ids as they come from Python: a buffer of uint32, a list or any sequence of integers.
//!
//! The tokens are copied once, while the interpreter is held: a buffer may change as soon as other
//! threads run. A value that is not a token is refused with its position, never truncated.

use crate::errors::InvalidValueError;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence};

/// Formats under which 4-byte items are this machine's unsigned integers.
const UINT32_FORMATS: [&[u8]; 4] = [b"I", b"@I", b"=I", b"L"];

/// The tokens of one request, as an argument of a native function.
#[derive(Debug)]
pub(crate) struct TokenArg(Vec<u32>);

impl TokenArg {
    /// The tokens, in order.
    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for TokenArg {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let tokens = if let Ok(list) = obj.cast::<PyList>() {
            from_list(&list)
        } else if let Ok(buffer) = PyUntypedBuffer::get(&obj) {
            from_buffer(obj.py(), buffer)
        } else if let Ok(sequence) = obj.cast::<PySequence>() {
            from_list(&sequence.to_list()?)
        } else {
            Err(PyTypeError::new_err(format!(
                "token ids are a {}; give a buffer of uint32 or a sequence of integers",
                obj.get_type().name()?
            )))
        };
        tokens.map(Self)
    }
}

fn from_list(list: &Bound<'_, PyList>) -> PyResult<Vec<u32>> {
    let mut tokens = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        match item.extract::<u32>() {
            Ok(token) => tokens.push(token),
            Err(_) => return Err(bad_token(index, &item)),
        }
    }
    Ok(tokens)
}

fn bad_token(index: usize, item: &Bound<'_, PyAny>) -> PyErr {
    let shown = item.repr().map_or_else(|_| "a value".to_owned(), |text| text.to_string());
    InvalidValueError::new_err(format!(
        "token id {index} is {shown:.80}; expected an integer from 0 to {}",
        u32::MAX
    ))
}

fn from_buffer(py: Python<'_>, buffer: PyUntypedBuffer) -> PyResult<Vec<u32>> {
    let format = buffer.format().to_bytes();
    if buffer.item_size() != 4 || !UINT32_FORMATS.contains(&format) {
        return Err(InvalidValueError::new_err(format!(
            "token ids are a buffer of {}-byte items of format '{}'; expected uint32 (format 'I'): \
             convert it, or take memoryview(raw_bytes).cast('I')",
            buffer.item_size(),
            String::from_utf8_lossy(format)
        )));
    }
    if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
        return Err(InvalidValueError::new_err(format!(
            "token ids are a buffer of {} dimensions with strides {:?}; expected one dimension \
             without gaps: copy it first",
            buffer.dimensions(),
            buffer.strides()
        )));
    }
    let typed: PyBuffer<u32> = buffer.into_typed()?;
    typed.to_vec(py)
}
