//! The engines' block hashes for Python: one call per request.

use crate::enums::EnumArg;
use crate::errors::{InvalidValueError, to_python};
use crate::extra_keys::ExtraKeysArg;
use crate::tokens::TokenArg;
use kvbraid_core::hash::{self, Chain, ChainSpec, Digest, HashAlgo};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyBytes;

/// `kvbraid.hashing.EngineHash`.
#[derive(FromPyObject)]
struct EngineHashArg {
    algo: EnumArg,
    seed: Option<PyBackedStr>,
    block_size: u32,
    lookahead: u32,
}

impl EngineHashArg {
    fn spec(&self) -> PyResult<ChainSpec<'static>> {
        let algo = algorithm(self.algo.name())?;
        let Some(root) = hash::none_hash(algo, self.seed.as_deref()) else {
            return Err(InvalidValueError::new_err(format!(
                "an engine with {} and no seed draws one at random; set the engine's \
                 PYTHONHASHSEED and give the same value as seed",
                self.algo.name()
            )));
        };
        let spec = ChainSpec::new(algo, root, self.block_size).map_err(to_python)?;
        Ok(spec.with_lookahead(self.lookahead))
    }
}

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
fn engine_chain(
    py: Python<'_>,
    engine: EngineHashArg,
    tokens: TokenArg,
    extra: ExtraKeysArg,
) -> PyResult<Bound<'_, PyBytes>> {
    let mut digests = Vec::new();
    hash_all(py, engine, tokens, extra, |digest| {
        digests.extend_from_slice(digest.as_bytes());
    })?;
    Ok(PyBytes::new(py, &digests))
}

#[pyfunction]
fn engine_chain_keys(
    py: Python<'_>,
    engine: EngineHashArg,
    tokens: TokenArg,
    extra: ExtraKeysArg,
) -> PyResult<Vec<u64>> {
    let mut keys = Vec::new();
    hash_all(py, engine, tokens, extra, |digest| {
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

#[expect(
    clippy::needless_pass_by_value,
    reason = "extracted arguments are owned"
)]
fn hash_all(
    py: Python<'_>,
    engine: EngineHashArg,
    tokens: TokenArg,
    extra: ExtraKeysArg,
    sink: impl FnMut(Digest) + Send,
) -> PyResult<()> {
    let spec = engine.spec()?;
    extra.with(|extra| {
        let spec = spec.with_extra(extra).map_err(to_python)?;
        py.detach(|| Chain::new(&spec).extend(&spec, tokens.as_slice(), sink));
        Ok(())
    })
}
