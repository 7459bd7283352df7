//! What is worth keeping: at which boundaries later requests are expected to resume, which blocks
//! this needs, and, under retention by value, which checkpoint is let go first.
//!
//! Nothing here depends on a step.
//!
//! - `boundaries` says where resumes are expected.
//! - `keep` says which blocks of a group they need.
//! - `by_value` compares boundaries with each other.

mod boundaries;
mod by_value;
mod keep;

pub(super) use boundaries::Boundaries;
pub use by_value::Checkpoint;
pub(crate) use by_value::Checkpoints;
pub(super) use keep::Keep;
