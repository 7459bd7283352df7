//! The torch-free core of kvbraid: pure functions and plain structures.
//!
//! It holds what is large or hot: engine hashing, wire decoding, the resume rule, the block cache and the fleet
//! index. It never does I/O, never reads a clock, holds no global state and knows no Python.

pub mod blocks;
pub mod cache;
pub mod error;
pub mod fleet;
pub mod hash;
mod key_table;
pub mod prefix;
pub mod rule;
pub mod secret;
pub mod spec;
pub mod token_json;
pub mod wire;

pub use error::{Error, Result};
