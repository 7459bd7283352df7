//! The records that limbo keeps for one hash, one floating trie and one salt class. `span` has the
//! record of a span.

use serde::{Deserialize, Serialize};
use std::cell::Cell;

use smallvec::SmallVec;

use super::fact::{ClassId, Position, SpanId, TrieId};
use super::slab::{Linked, Links};
use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::slots::{LimboId, SlotId};

/// Marks the rings of records that are found through the same place: the members or the spans of
/// one trie, the hashes at one prefix, or the spans with one start.
pub(super) struct OfFrame;

/// An undecided hash.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LimboEntry {
    pub(super) slot: SlotId,
    pub(super) class: ClassId,
    pub(super) at: Option<Position>,
    pub(super) ahead: u64,
    /// The spans that list the hash, each with the hash's number in that span.
    pub(super) spans: SmallVec<[(SpanId, u32); 1]>,
    /// The trie that floats below this hash.
    pub(super) trie: Option<TrieId>,
    /// The number of store listings that wait here, for the statistics about what placed them.
    pub(super) mentions: u32,
    pub(super) in_class: Links,
    pub(super) in_frame: Links,
}

impl LimboEntry {
    /// A hash about which only its class is known.
    pub(super) fn new(slot: SlotId, class: ClassId) -> Self {
        Self {
            slot,
            class,
            at: None,
            ahead: 0,
            spans: SmallVec::new(),
            trie: None,
            mentions: 0,
            in_class: Links::default(),
            in_frame: Links::default(),
        }
    }
}

impl Linked<OfFrame> for LimboEntry {
    fn links(&self) -> Links {
        self.in_frame
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.in_frame
    }
}

/// A trie that floats below a hash, or did so until it was attached to a position.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Trie {
    /// The hash that it floats below.
    pub root: LimboId,
    /// The position of its origin, once known. A look-up shortens the path that it followed.
    pub hangs: Cell<Option<Position>>,
    /// One of the hashes that have a position in it, whose ring has the others.
    pub members: Option<LimboId>,
    /// One of the spans that start in it, whose ring has the others.
    pub spans: Option<SpanId>,
    /// How many members and spans have come into it.
    pub weight: usize,
    /// The first tokens of the stores right below it, under which requests find it.
    pub first_tokens: SmallVec<[u32; 1]>,
}

/// Hashes that share one salt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SaltClass {
    /// The class itself, or the class that it was united with. A look-up shortens the path that it
    /// followed.
    pub parent: Cell<u32>,
    /// How many classes were united into it.
    pub weight: u32,
    /// The salt, once some block showed it.
    pub label: Option<SaltId>,
    /// One of its hashes, whose ring has the others.
    pub members: Option<LimboId>,
}

/// Marks the rings of hashes of one class.
pub(super) struct OfClass;

impl Linked<OfClass> for LimboEntry {
    fn links(&self) -> Links {
        self.in_class
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.in_class
    }
}
