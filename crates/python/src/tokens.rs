//! Token ids as they come from Python: a buffer of uint32, a list or any sequence of integers.
//!
//! The tokens are copied once, while the interpreter is held, because a buffer may change as soon
//! as other threads run. A value that is not a token is refused with its position, and never
//! truncated. A prompt, which the fleet is asked about, may also have numbers of 64 bits.

use crate::errors::InvalidValueError;
use kvbraid_core::wide::{WideAt, halves};
use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence};
use std::ffi::c_long;

/// The formats in which 4-byte items are this machine's unsigned integers.
const UINT32_FORMATS: [&[u8]; 4] = [b"I", b"@I", b"=I", b"L"];

/// The formats in which 8-byte items are this machine's unsigned integers.
const UINT64_FORMATS: [&[u8]; 5] = [b"Q", b"@Q", b"=Q", b"L", b"@L"];

/// The tokens of one request, as an argument of a native function.
#[derive(Debug)]
pub(crate) struct TokenArg(Vec<u32>);

/// The tokens of a prompt, as an argument of a native function: of wide ones what 32 bits hold.
#[derive(Debug, Default)]
pub(crate) struct PromptArg {
    tokens: Vec<u32>,
    wide: Vec<WideAt<'static>>,
}

impl PromptArg {
    /// The tokens, in order: of wide ones what 32 bits hold.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// What the wide tokens have besides, in the order of their places.
    pub(crate) fn wide(&self) -> &[WideAt<'static>] {
        &self.wide
    }
}

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
        let narrow = |index, item: &Bound<'_, PyAny>| {
            any_int(index, item, u32::MAX.into()).map(|number| halves(number).0)
        };
        if let Some(list) = list_of(obj)? {
            from_list(&list, narrow).map(Self)
        } else {
            from_buffer(obj.py(), PyUntypedBuffer::get(&obj)?).map(Self)
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for PromptArg {
    type Error = PyErr;

    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let mut wide = Vec::new();
        if let Some(list) = list_of(obj)? {
            let tokens = from_list(&list, |index, item| {
                Ok(cut(any_int(index, item, u64::MAX)?, index, &mut wide))
            })?;
            return Ok(Self { tokens, wide });
        }
        let buffer = PyUntypedBuffer::get(&obj)?;
        let format = buffer.format().to_bytes();
        let tokens = if buffer.item_size() == 8 && UINT64_FORMATS.contains(&format) {
            let numbers: Vec<u64> = items(obj.py(), buffer)?;
            let indexed = numbers.into_iter().enumerate();
            indexed
                .map(|(index, number)| cut(number, index, &mut wide))
                .collect()
        } else {
            from_buffer(obj.py(), buffer)?
        };
        Ok(Self { tokens, wide })
    }
}

/// What 32 bits hold of a number; the rest goes to `wide`.
fn cut(number: u64, index: usize, wide: &mut Vec<WideAt<'static>>) -> u32 {
    let (low, rest) = halves(number);
    let at = u32::try_from(index).unwrap_or(u32::MAX);
    wide.extend(rest.map(|token| WideAt { at, token }));
    low
}

/// The list that this is, or of which another sequence has the items; `None` for a buffer.
fn list_of<'py>(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
    if let Ok(list) = obj.cast::<PyList>() {
        Ok(Some(list.to_owned()))
    } else if PyUntypedBuffer::get(&obj).is_ok() {
        Ok(None)
    } else if let Ok(sequence) = obj.cast::<PySequence>() {
        sequence.to_list().map(Some)
    } else {
        Err(InvalidValueError::new_err(format!(
            "token ids are a {}; expected a buffer of uint32 or a sequence of integers",
            obj.get_type().name()?
        )))
    }
}

/// Reads a list. Items that are no exact `int` of 32 bits are left to `other`.
fn from_list(
    list: &Bound<'_, PyList>,
    mut other: impl FnMut(usize, &Bound<'_, PyAny>) -> PyResult<u32>,
) -> PyResult<Vec<u32>> {
    let len = list.len();
    let mut tokens = Vec::with_capacity(len);
    for index in 0..len {
        let token = match exact_int(list, index).map(u32::try_from) {
            Some(Ok(token)) => token,
            Some(Err(_)) | None => match list.get_item(index) {
                Ok(item) => other(index, &item)?,
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
fn any_int(index: usize, item: &Bound<'_, PyAny>, most: u64) -> PyResult<u64> {
    let number = item.extract().ok().filter(|number| *number <= most);
    number.ok_or_else(|| {
        let shown = item
            .repr()
            .map_or_else(|_| "unprintable".to_owned(), |text| text.to_string());
        InvalidValueError::new_err(format!(
            "token id {index} is {shown:.80}; expected an integer from 0 to {most}"
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
    items(py, buffer)
}

fn items<T: Element>(py: Python<'_>, buffer: PyUntypedBuffer) -> PyResult<Vec<T>> {
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
    let typed: PyBuffer<T> = buffer.into_typed().map_err(|_| {
        InvalidValueError::new_err(
            "token ids are a buffer of integers at an odd address; expected an aligned one: copy it",
        )
    })?;
    typed.to_vec(py)
}
