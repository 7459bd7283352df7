//! What is worth keeping: at which boundaries later requests are expected to resume, which blocks
//! that needs, and, under retention by value, which checkpoint goes first.
//!
//! Nothing here knows a step. `boundaries` says where resumes are expected, `keep` which blocks of a
//! group serve them, `checkpoints` weighs boundaries against each other, and `retain` tells it of
//! requests that resume, go on and end.

mod boundaries;
mod checkpoints;
mod keep;
mod retain;

pub(super) use boundaries::Boundaries;
pub use checkpoints::Checkpoint;
pub(super) use checkpoints::Checkpoints;
pub(super) use keep::Keep;
