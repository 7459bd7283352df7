//! Requests that go back: because drafts were rejected, or because a load has failed.
//!
//! - `own_tables` says who holds a block, and how far each request can resume with its own blocks.
//! - `take_back` takes back tokens, computed ones or known ones.
//! - `rewind` takes a request back to an earlier boundary in place.
//! - `assess` shows the tables to [`crate::recovery`], which judges all requests together.
//! - `recover` does all that a recovery needs, in one step or not at all.

mod assess;
pub(super) mod own_tables;
pub(super) mod recover;
pub(super) mod rewind;
mod take_back;
