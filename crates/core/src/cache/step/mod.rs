//! A step: what to reuse, what to hand out, what becomes findable, and what the device has to do.
//!
//! - `io` has the inputs and outputs of a step; read it first.
//! - `find` looks a request's hashes up, and asks the rule for a boundary.
//! - `match_over` looks a request up in the pool and in the tiers below it.
//! - `lengths` says how far the step reaches, and refuses numbers that no request can have.
//! - `plan` counts the blocks that the step needs, before anything changes.
//! - `allocate` adopts the blocks of the hit, and takes new ones.
//! - `state` does this for groups of states.
//! - `saved_state` says which state the engine's backend saves inside the step.
//! - `commit` makes computed blocks findable.
//! - `registered` knows what is not written before the step has run.
//! - `free` gives back the blocks that a request no longer reads, or all of them.
//! - `decode` is the step of one token for each of many requests.
//! - `zeroing` lists the blocks that the device zeroes first.
//! - `work` hands out the work of the device, and starts the next step.

pub(super) mod allocate;
pub(super) mod commit;
mod decode;
pub(super) mod find;
mod free;
pub(super) mod io;
mod lengths;
pub(super) mod match_over;
pub(super) mod plan;
pub(super) mod registered;
mod saved_state;
mod state;
mod work;
pub(super) mod zeroing;
