//! How hashes, slots and nodes are referred to.

use serde::{Deserialize, Serialize};

/// An engine's hash of a block, as the wire's 64-bit integer.
pub(in crate::fleet) type EngineKey = u64;

/// Index of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::fleet) struct SlotId(pub u32);

/// Index of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::fleet) struct NodeId(pub u32);
