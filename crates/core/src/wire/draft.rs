//! An event while its fields are read.

use crate::wire::fields::Fields;
use crate::wire::{Removed, Stored};

/// A store while its fields arrive, in any order. A remove has some of its fields.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Draft<'p> {
    pub(super) seen: Fields,
    pub(super) stored: Stored,
    pub(super) hashes: &'p [u8],
    /// Empty for pairs, which imply lookaheads besides the tokens.
    pub(super) tokens: &'p [u8],
    /// Decoded last: it takes the number of hashes and the LoRA name. Empty when null.
    pub(super) extra_keys: &'p [u8],
    /// Decoded last: it takes the number of hashes. Empty when null.
    pub(super) lookahead: &'p [u8],
    /// Decoded last: it takes the number of hashes. Empty when null.
    pub(super) mm_keys: &'p [u8],
    pub(super) has_unknown_kind: bool,
}

impl Draft<'_> {
    /// The removal that the fields tell of.
    pub(super) fn removed(&self) -> Removed {
        let stored = &self.stored;
        Removed {
            hashes: stored.hashes,
            medium: stored.medium,
            group: stored.group,
            component: stored.component,
            remote: stored.remote,
            owner: stored.owner,
        }
    }
}
