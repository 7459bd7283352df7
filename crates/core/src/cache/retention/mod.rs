//! What is worth keeping: at which boundaries later requests are expected to resume, which blocks
//! this needs, and, under retention by value, which checkpoint is let go first.
//!
//! Nothing here depends on a step. `boundaries` says where resumes are expected, `keep` says which
//! blocks of a group they need, `overlaps` learns where requests branch
//! off, `checkpoints` compares boundaries with each other, and `retain` tells `checkpoints` about requests that resume, continue and end.

mod boundaries;
mod checkpoints;
mod keep;
mod overlaps;
mod retain;

pub(super) use boundaries::Boundaries;
pub use checkpoints::Checkpoint;
pub(crate) use checkpoints::Checkpoints;
pub(super) use keep::Keep;
use overlaps::Overlaps;
