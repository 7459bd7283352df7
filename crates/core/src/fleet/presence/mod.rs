//! Who holds what: slots (the hashes of one rank), planes (a bit for each rank) and nodes (boundaries).
//!
//! - `presence_bits`: which bits the hashes of one rank set;
//! - `slots`: a hash, its place and its copies;
//! - `sharing`: bits that several hashes of a rank set;
//! - `planes`: a bit for each node and rank, by group and tier;
//! - `lanes`: which ranks are evaluated together;
//! - `nodes`: one boundary of one prefix, shared by all pods;
//! - `usual`: the hash that pods of one seed give a boundary;
//! - `ids`: how hashes, slots and nodes are referred to;
//! - `moved`: where the end of a table moved.

mod ids;
pub(in crate::fleet) mod lanes;
pub(in crate::fleet) mod moved;
pub(in crate::fleet) mod nodes;
pub(in crate::fleet) mod planes;
pub(in crate::fleet) mod presence_bits;
pub(in crate::fleet) mod sharing;
pub(in crate::fleet) mod slots;
mod usual;

use nodes::Nodes;
use planes::Planes;

/// The shared part of the model, lent to a rank for one operation.
pub(in crate::fleet) struct SharedPresence<'a> {
    /// The boundaries of the model.
    pub nodes: &'a mut Nodes,
    /// The presence bits of the model.
    pub planes: &'a mut Planes,
}
