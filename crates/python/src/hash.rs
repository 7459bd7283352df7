//! The engines' block hashes for Python: one call per request.

use crate::errors::{InvalidValueError, to_python};
use crate::tokens::TokenArg;
use kvbraid_core::hash::{
    self, Chain, ChainSpec, Digest, EmbedsDigest, ExtraKeys, HashAlgo, MediaItem,
};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

/// Algorithm, seed hash, hash block size and lookahead in tokens.
type EngineArg = (PyBackedStr, PyBackedBytes, u32, u32);
/// `LoRA` (name, path), cache salt, media (identifier, offset, length), embedding digests.
type ExtraArg = (
    Option<(PyBackedStr, PyBackedStr)>,
    Option<PyBackedStr>,
    Vec<(PyBackedStr, u32, u32)>,
    Option<Vec<PyBackedBytes>>,
);

/// Adds this module's functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(engine_none_hash, module)?)?;
    module.add_function(wrap_pyfunction!(engine_chain, module)?)?;
    module.add_function(wrap_pyfunction!(engine_chain_keys, module)?)
}

#[pyfunction]
fn engine_none_hash<'py>(
    py: Python<'py>,
    algo: &str,
    seed: Option<&str>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let digest = hash::none_hash(algorithm(algo)?, seed);
    Ok(digest.map(|digest| PyBytes::new(py, digest.as_bytes())))
}

#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "extracted arguments are owned"
)]
fn engine_chain(
    py: Python<'_>,
    engine: EngineArg,
    tokens: TokenArg,
    extra: ExtraArg,
) -> PyResult<Bound<'_, PyBytes>> {
    let mut digests = Vec::new();
    hash_all(py, &engine, &tokens, &extra, |digest| {
        digests.extend_from_slice(digest.as_bytes());
    })?;
    Ok(PyBytes::new(py, &digests))
}

#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "extracted arguments are owned"
)]
fn engine_chain_keys(
    py: Python<'_>,
    engine: EngineArg,
    tokens: TokenArg,
    extra: ExtraArg,
) -> PyResult<Vec<u64>> {
    let mut keys = Vec::new();
    hash_all(py, &engine, &tokens, &extra, |digest| {
        keys.push(digest.key());
    })?;
    Ok(keys)
}

pub(crate) fn algorithm(name: &str) -> PyResult<HashAlgo> {
    HashAlgo::from_name(name).ok_or_else(|| {
        let known = HashAlgo::NAMES.map(|(name, _)| name).join(", ");
        InvalidValueError::new_err(format!("hash algorithm {name:?} is not one of {known}"))
    })
}

fn hash_all(
    py: Python<'_>,
    (algo, none_hash, block_size, lookahead): &EngineArg,
    tokens: &TokenArg,
    (lora, cache_salt, media, embeds): &ExtraArg,
    sink: impl FnMut(Digest) + Send,
) -> PyResult<()> {
    let none_hash = Digest::from_bytes(none_hash).map_err(to_python)?;
    let media: Vec<_> = media
        .iter()
        .map(|(id, offset, length)| MediaItem {
            id,
            offset: *offset,
            length: *length,
        })
        .collect();
    let embeds = embeds.as_deref().map(embeds_digests).transpose()?;
    let extra = ExtraKeys {
        lora: lora.as_ref().map(|(name, path)| (&**name, &**path)),
        cache_salt: cache_salt.as_deref(),
        media: &media,
        prompt_embeds: embeds.as_deref(),
    };
    let spec = ChainSpec::new(algorithm(algo)?, none_hash, *block_size)
        .and_then(|spec| spec.with_lookahead(*lookahead).with_extra(extra))
        .map_err(to_python)?;
    py.detach(|| Chain::new(&spec).extend(&spec, tokens.as_slice(), sink));
    Ok(())
}

pub(crate) fn embeds_digests(digests: &[PyBackedBytes]) -> PyResult<Vec<EmbedsDigest>> {
    let digest_of = |(index, bytes): (usize, &PyBackedBytes)| {
        EmbedsDigest::try_from(&**bytes).map_err(|_| {
            InvalidValueError::new_err(format!(
                "embeddings digest {index} has {} bytes; expected the 32 of SHA-256",
                bytes.len()
            ))
        })
    };
    digests.iter().enumerate().map(digest_of).collect()
}
