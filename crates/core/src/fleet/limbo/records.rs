//! What limbo keeps of one hash, one floating trie and one salt class. Spans are in `span`.

use std::cell::Cell;

use smallvec::SmallVec;

use super::fact::{At, ClassId, SpanId, TrieId};
use super::slab::{Linked, Links};
use crate::fleet::nodes::SaltId;
use crate::fleet::slots::{EntryId, SlotId};

/// The ring of what has one place to be found at: the members or the spans of a trie, the hashes of
/// a prefix, the spans of a start.
pub(super) struct OfFrame;

/// An undecided hash.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) slot: SlotId,
    pub(super) class: ClassId,
    pub(super) at: Option<At>,
    pub(super) ahead: u64,
    /// The spans that list it, and as what number.
    pub(super) spans: SmallVec<[(SpanId, u32); 1]>,
    /// The trie that floats below this hash.
    pub(super) trie: Option<TrieId>,
    /// Store listings that wait here, for the statistics of what placed them.
    pub(super) mentions: u32,
    pub(super) in_class: Links,
    pub(super) in_frame: Links,
}

impl Entry {
    /// A hash of a class of which nothing else is known.
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

impl Linked<OfFrame> for Entry {
    fn links(&self) -> Links {
        self.in_frame
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.in_frame
    }
}

/// A trie that floats below a hash, or did until it came to hang somewhere.
#[derive(Debug)]
pub(super) struct Trie {
    /// The hash that it floats below.
    pub root: EntryId,
    /// Where its origin stands, once known. A look-up shortens the way that it went.
    pub hangs: Cell<Option<At>>,
    /// The ring of the hashes that have a position in it.
    pub members: Option<EntryId>,
    /// The ring of the spans that start in it.
    pub spans: Option<SpanId>,
    /// Members and spans that came into it.
    pub weight: usize,
    /// Its first tokens, under which requests find it.
    pub first_tokens: SmallVec<[u32; 1]>,
}

/// Hashes that share one salt.
#[derive(Debug)]
pub(super) struct SaltClass {
    /// Itself, or a class that it was united with. A look-up shortens the way that it went.
    pub parent: Cell<u32>,
    /// How many classes were united in it.
    pub weight: u32,
    /// The salt, once some block showed it.
    pub label: Option<SaltId>,
    /// The ring of its hashes.
    pub members: Option<EntryId>,
}

/// The ring of a class.
pub(super) struct OfClass;

impl Linked<OfClass> for Entry {
    fn links(&self) -> Links {
        self.in_class
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.in_class
    }
}
