//! From a decoded batch to the places and copies of its hashes.
//!
//! - `loads`: loads of adapters that stores show;
//! - `components`: the components of SGLang's blocks, as groups;
//! - `infer`: what a store means for groups without events;
//! - `apply`: one slice of a batch: places, then copies;
//! - `intake`: how far a batch is applied;
//! - `store_marks`: extra keys, wide tokens and lookahead of a store;
//! - `sparse_naming`: the places of a sparse store;
//! - `naming`: the places that tokens and parents give;
//! - `namespace`: the caches that SGLang's `dynamo` format keeps apart.

pub(in crate::fleet) mod apply;
pub(in crate::fleet) mod components;
pub(in crate::fleet) mod infer;
pub(in crate::fleet) mod intake;
pub(in crate::fleet) mod loads;
pub(in crate::fleet) mod namespace;
pub(in crate::fleet) mod naming;
pub(in crate::fleet) mod sparse_naming;
pub(in crate::fleet) mod store_marks;
