//! Token ids as they come from Python: a buffer of uint32, a list or any sequence of integers.
//!
//! The tokens are copied once, while the interpreter is held, because a buffer may change as soon
//! as other threads run. A value that is not a token is refused with its position, and never
//! truncated.

use crate::errors::InvalidValueError;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence};
use std::ffi::c_long;

/// The formats in which 4-byte items are this machine's unsigned integers.
const UINT32_FORMATS: [&[u8]; 4] = [b"I", b"@I", b"=I", b"L"];

/// The tokens of one request, as an argument of a native function.
#[derive(Debug)]
pub(crate) struct TokenArg(Vec<u32>);

impl TokenArg {
    /// The tokens, in order.
    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// The tokens, in order.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for TokenArg {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = obj.cast::<PyList>() {
            from_list(&list).map(Self)
        } else if let Ok(buffer) = PyUntypedBuffer::get(&obj) {
            from_buffer(obj.py(), buffer).map(Self)
        } else if let Ok(sequence) = obj.cast::<PySequence>() {
            from_list(&sequence.to_list()?).map(Self)
        } else {
            Err(InvalidValueError::new_err(format!(
                "token ids are a {}; expected a buffer of uint32 or a sequence of integers",
                obj.get_type().name()?
            )))
        }
    }
}

fn from_list(list: &Bound<'_, PyList>) -> PyResult<Vec<u32>> {
    let len = list.len();
    let mut tokens = Vec::with_capacity(len);
    for index in 0..len {
        let token = match exact_int(list, index).map(u32::try_from) {
            Some(Ok(token)) => token,
            Some(Err(_)) | None => match list.get_item(index) {
                Ok(item) => any_int(index, &item)?,
                // The `__index__` method of an item can do anything, including changing this list.
                Err(_) => return Err(shrunk(index, len)),
            },
        };
        tokens.push(token);
    }
    Ok(tokens)
}

fn shrunk(index: usize, len: usize) -> PyErr {
    InvalidValueError::new_err(format!(
        "the list of token ids had {len} items and has no item {index} any more; give one that \
         nothing changes while it is read"
    ))
}

/// The item's value if it is exactly an `int` of one machine word. Its reference count is not
/// touched. A result of -1 may also mean an error, but no token is negative.
#[inline]
#[expect(
    unsafe_code,
    reason = "8 192 tokens are read in 49 us; by safe calls in 69 to 92"
)]
fn exact_int(list: &Bound<'_, PyList>, index: usize) -> Option<c_long> {
    let index = index.try_into().ok()?;
    // SAFETY: the interpreter is held as long as `list` is borrowed. PyList_GetItem checks the
    // index and returns null past the end; otherwise the list owns the item. No Python code runs
    // until the item is used for the last time (PyLong_AsLong calls none for an exact int), so
    // nothing can take the item off the list. Whatever error a call sets is cleared right after.
    unsafe {
        let item = ffi::PyList_GetItem(list.as_ptr(), index);
        if item.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        if ffi::PyLong_CheckExact(item) == 0 {
            return None;
        }
        let value = ffi::PyLong_AsLong(item);
        if value == -1 {
            ffi::PyErr_Clear();
        }
        Some(value)
    }
}

/// The value of any object that stands for an integer (numpy's scalars), or the error that refuses
/// it.
fn any_int(index: usize, item: &Bound<'_, PyAny>) -> PyResult<u32> {
    item.extract().map_err(|_| {
        let shown = item
            .repr()
            .map_or_else(|_| "unprintable".to_owned(), |text| text.to_string());
        InvalidValueError::new_err(format!(
            "token id {index} is {shown:.80}; expected an integer from 0 to {}",
            u32::MAX
        ))
    })
}

fn from_buffer(py: Python<'_>, buffer: PyUntypedBuffer) -> PyResult<Vec<u32>> {
    let format = buffer.format().to_bytes();
    if buffer.item_size() != 4 || !UINT32_FORMATS.contains(&format) {
        return Err(InvalidValueError::new_err(format!(
            "token ids are a buffer of {}-byte items of format '{}'; expected uint32 (format 'I'): \
             convert them, or give memoryview(raw_bytes).cast('I')",
            buffer.item_size(),
            String::from_utf8_lossy(format)
        )));
    }
    if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
        return Err(InvalidValueError::new_err(format!(
            "token ids are a buffer of shape {:?} with strides {:?} bytes; expected one dimension \
             without gaps: copy it first",
            buffer.shape(),
            buffer.strides()
        )));
    }
    // An empty buffer is not read, because its address may be anything.
    if buffer.item_count() == 0 {
        return Ok(Vec::new());
    }
    let typed: PyBuffer<u32> = buffer.into_typed().map_err(|_| {
        InvalidValueError::new_err(
            "token ids are a buffer of uint32 at an odd address; expected an aligned one: copy it",
        )
    })?;
    typed.to_vec(py)
}
