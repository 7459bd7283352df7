//! `kvbraid._native` converts values, releases the GIL, calls the core and maps errors. It does
//! nothing else.

mod cache;
mod enums;
mod errors;
mod extra_keys;
mod fleet;
mod hash;
mod native_bytes;
mod payload;
mod recovery;
mod rule;
mod secret;
mod shared_index;
mod token_json;
mod tokens;
mod topology;
mod wire;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    hash::register(module)?;
    rule::register(module)?;
    recovery::register(module)?;
    fleet::register(module)?;
    cache::register(module)?;
    payload::register(module)?;
    token_json::register(module)?;
    wire::register(module)
}
