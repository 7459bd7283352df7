//! What connectors and schedulers do with single blocks, beside the steps.
//!
//! - `held` counts the references that the caller has to free itself.
//! - `single_blocks` takes, holds, frees, registers and forgets blocks.
//! - `shared_prefix` says which leading blocks running requests have in common.

pub(super) mod held;
mod shared_prefix;
mod single_blocks;
