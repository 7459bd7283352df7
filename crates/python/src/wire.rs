//! The decoder for people and tests: it takes one payload and returns plain tuples.

use kvbraid_core::spec::SpecKind;
use kvbraid_core::wide::{WideAt, WideToken};
use kvbraid_core::wire::{
    Batch, Component, Decoder, Event, ExtraKey, Medium, Removed, Span, Stored,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// Adds the functions of this file.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_batch, module)?)
}

/// Decodes one payload into `(ts, dp_rank, events, refused)`; the stub describes the shapes.
#[pyfunction]
fn decode_batch<'py>(py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
    let mut decoder = Decoder::default();
    let batch = py.detach(|| decoder.decode(payload));
    let events: Vec<_> = batch
        .events
        .iter()
        .filter_map(|event| event_tuple(py, batch, event).transpose())
        .collect::<PyResult<_>>()?;
    let refused: Vec<_> = batch
        .refused
        .iter()
        .map(|refusal| (refusal.reason.name(), refusal.event_index))
        .collect();
    (batch.ts, batch.dp_rank, events, refused).into_pyobject(py)
}

/// An event that was read; the list of refusals has the others.
fn event_tuple<'py>(
    py: Python<'py>,
    batch: &Batch,
    event: &Event,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    match event {
        Event::Stored(stored) => stored_tuple(py, batch, stored).map(Some),
        Event::Removed(removed) => removed_tuple(py, batch, removed).map(Some),
        Event::Cleared => ("AllBlocksCleared",).into_pyobject(py).map(Some),
        Event::Refused(_) => Ok(None),
    }
}

fn stored_tuple<'py>(
    py: Python<'py>,
    batch: &Batch,
    stored: &Stored,
) -> PyResult<Bound<'py, PyTuple>> {
    let text = |span: Option<Span>| span.map(|span| batch.text(span));
    let blocks = stored.hashes.len as usize;
    let extra_keys = match stored.extra_keys {
        None => None,
        Some(_) => Some(
            (0..blocks)
                .map(|block| block_keys(py, batch, batch.extra_keys_of(stored, block)))
                .collect::<PyResult<Vec<_>>>()?,
        ),
    };
    let lookahead = if stored.lookahead.is_empty() {
        None
    } else {
        let spans = (0..blocks).map(|block| batch.lookahead_span(stored, block));
        let lists = spans.map(|span| token_list(py, batch, span));
        Some(lists.collect::<PyResult<Vec<_>>>()?)
    };
    let components =
        (stored.components).map(|all| all.iter().map(Component::name).collect::<Vec<_>>());
    let what = (
        "BlockStored",
        batch.hashes_of(stored.hashes),
        stored.parent,
        token_list(py, batch, stored.tokens)?,
        stored.block_size,
        stored.lora_id,
        medium_name(batch, stored.medium),
        text(stored.lora_name),
        extra_keys,
    );
    let whose = (
        stored.group,
        stored.kind.map(SpecKind::name),
        stored.window,
        stored.remote,
        text(stored.owner),
        lookahead,
        text(stored.salt),
        stored.component.map(Component::name),
        components,
    );
    join(&what.into_pyobject(py)?, &whose.into_pyobject(py)?)
}

/// The token ids of a span, whole.
fn token_list<'py>(py: Python<'py>, batch: &Batch, span: Span) -> PyResult<Bound<'py, PyList>> {
    let tokens = batch.tokens_of(span);
    let list = PyList::new(py, tokens)?;
    for WideAt { at, token } in batch.wide_of(span) {
        let at = at as usize;
        match token {
            WideToken::High(high) => {
                list.set_item(at, u64::from(high) << 32 | u64::from(tokens[at]))?;
            }
            WideToken::Text(text) => list.set_item(at, text)?,
        }
    }
    Ok(list)
}

/// The fields of two tuples in one tuple; `PyO3` makes tuples of at most twelve fields.
fn join<'py>(
    first: &Bound<'py, PyTuple>,
    second: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyTuple>> {
    Ok(first
        .as_sequence()
        .concat(second.as_sequence())?
        .cast_into()?)
}

fn removed_tuple<'py>(
    py: Python<'py>,
    batch: &Batch,
    removed: &Removed,
) -> PyResult<Bound<'py, PyTuple>> {
    (
        "BlockRemoved",
        batch.hashes_of(removed.hashes),
        medium_name(batch, removed.medium),
        removed.group,
        removed.remote,
        removed.owner.map(|owner| batch.text(owner)),
        removed.component.map(Component::name),
    )
        .into_pyobject(py)
}

/// `None` for a block without keys, or else its texts, `(id, offset)` pairs and bytes, in order.
fn block_keys<'py>(
    py: Python<'py>,
    batch: &Batch,
    keys: &[ExtraKey],
) -> PyResult<Option<Bound<'py, PyList>>> {
    if keys.is_empty() {
        return Ok(None);
    }
    let list = PyList::empty(py);
    for key in keys {
        match key {
            ExtraKey::Text(span) => list.append(batch.text(*span))?,
            ExtraKey::Item { id, offset } => list.append((batch.text(*id), *offset))?,
            ExtraKey::Digest(span) => list.append(PyBytes::new(py, batch.digest(*span)))?,
        }
    }
    Ok(Some(list))
}

fn medium_name(batch: &Batch, medium: Medium) -> &str {
    match medium {
        Medium::Gpu => "GPU",
        Medium::Cpu => "CPU",
        Medium::Storage => "STORAGE",
        Medium::Other(name) => batch.text(name),
    }
}
