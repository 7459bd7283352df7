//! What a snapshot of one pod is made of: one sealed piece of bytes (`docs/design/snapshot.md`).
//!
//! Invariant: what is read is what was written, by an index with the same secret, of the same pod
//! registered in the same way; anything else is refused by its name. What is kept of each structure is
//! said where the structure is, by code that names each of its fields, so a new field does not compile
//! until it is either kept or left out.
//!
//! - `envelope`: who wrote it, of what, and that it is whole;
//! - `bytes`: numbers to bytes and back;
//! - `in_order`: tables without an order, written in order.

pub(in crate::fleet) mod bytes;
pub(in crate::fleet) mod envelope;
pub(in crate::fleet) mod in_order;

pub use envelope::Unfit;
