//! What a hash and its slot are to others.

use serde::{Deserialize, Serialize};

/// An engine's hash of a block, as the wire's 64-bit integer.
pub(in crate::fleet) type EngineKey = u64;

/// Index of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::fleet) struct SlotId(pub u32);
