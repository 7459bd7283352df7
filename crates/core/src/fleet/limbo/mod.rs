//! Hashes whose boundary the events have not told yet, and all that is known of where they may be.
//!
//! Positions and salts are apart (`docs/placing-blocks.md` in words):
//! * a **frame** is where a position is measured from: the absolute start, or a **trie** that
//!   floats below a hash which some store named as parent but nobody placed;
//! * a **span** is a sparse store: its hashes stand in this order at ends of its blocks;
//! * a **class** is a set of hashes of one chain: they share one salt, known or not.
//!
//! New knowledge is a [`Fact`]; `solve` draws every consequence until nothing is left. A hash that
//! gets an absolute position and a salt leaves for a node. Nothing here ever guesses.

mod forget;
mod frames;
mod order;
mod possible;
mod reach;
mod salts;
mod slab;
mod solve;
mod span;
mod tails;
mod taken;

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::effort::Effort;
use super::nodes::{Nodes, Place, SaltId};
use super::planes::Planes;
use super::slots::{EngineKey, EntryId, SlotId, Slots, Whereabouts};
use crate::prefix::{Field, PrefixKey, Step};
use frames::Trie;
use salts::Class;
use slab::{Links, Slab};

pub(super) use possible::Possible;
pub(super) use reach::{Looks, Walk};
pub(super) use span::SparseStore;
pub(super) use tails::Tails;

/// Index of a floating trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TrieId(u32);

/// Index of an undecided sparse store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SpanId(u32);

/// Index of a salt class; resolve with `Limbo::root`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ClassId(u32);

/// Where positions are measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Frame {
    /// The start of the prompt: a step from here is (boundary, prefix key).
    Absolute,
    /// The boundary of the hash that this trie floats below.
    Trie(TrieId),
}

/// A position: a step from the origin of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct At {
    /// Measured from here.
    pub frame: Frame,
    /// This far.
    pub step: Step,
}

impl At {
    /// The position of a node.
    pub(super) fn of(place: Place) -> Self {
        let step = Step {
            tokens: place.boundary,
            local: place.prefix,
        };
        Self {
            frame: Frame::Absolute,
            step,
        }
    }
}

/// The salt of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Salt {
    /// Seen.
    Known(SaltId),
    /// The salt of a class, seen or not.
    Of(ClassId),
}

/// What the events or a request told.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fact {
    /// The hash stands here; `ahead` is its lookahead part.
    Stands(EntryId, At, u64),
    /// Two classes are one.
    SameSalt(ClassId, ClassId),
    /// The class has this salt.
    HasSalt(ClassId, SaltId),
}

/// The ring of what has one place to be found at: the members or the spans of a trie, the hashes of
/// a prefix, the spans of a start.
struct OfFrame;

#[derive(Debug)]
struct Entry {
    slot: SlotId,
    class: ClassId,
    at: Option<At>,
    ahead: u64,
    /// The spans that list it, and as what number.
    spans: SmallVec<[(SpanId, u32); 1]>,
    /// The trie that floats below this hash.
    trie: Option<TrieId>,
    /// Store listings that wait here, for the statistics of what placed them.
    mentions: u32,
    in_class: Links,
    in_frame: Links,
}

impl Entry {
    /// A hash of a class of which nothing else is known.
    fn new(slot: SlotId, class: ClassId) -> Self {
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

/// How a hash got its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Means {
    /// It joined a hash whose place the events told.
    Join,
    /// A request's own engine chain named it.
    Query,
}

/// Everything of one rank that is undecided.
#[derive(Debug)]
pub(super) struct Limbo {
    field: Field,
    entries: Slab<Entry>,
    spans: Slab<span::Span>,
    /// Tries and classes, those that are part of others by now included, until the next sweep.
    tries: Vec<Trie>,
    classes: Vec<Class>,
    /// Floating tries by their first token: what does not depend on any group's block size, which
    /// may be learned after the trie began.
    by_first_token: BTreeSet<(u32, TrieId)>,
    /// Undecided spans with an absolute start, by the prefix key of that start: one of a ring.
    by_start: HashMap<PrefixKey, SpanId>,
    /// Hashes with an absolute position and an unknown salt, by prefix key: one of a ring.
    by_prefix: HashMap<PrefixKey, EntryId>,
    facts: Vec<Fact>,
    /// Spans that something changed for since they were looked at.
    dirty: VecDeque<SpanId>,
    /// Bytes of the lists of all spans.
    span_bytes: usize,
    /// Facts that contradicted each other, since the last look.
    pub contradictions: u64,
    /// Listings placed by a join and by a query, since the last look.
    pub placed_by_join: u64,
    /// See `placed_by_join`.
    pub placed_by_query: u64,
    /// How much there was after the last look at what may go.
    looked_at: usize,
}

/// The rest of the pod's world, lent for one operation.
pub(super) struct World<'a> {
    /// The model's nodes.
    pub nodes: &'a mut Nodes,
    /// The model's presence bits.
    pub planes: &'a mut Planes,
    /// The rank's slots.
    pub slots: &'a mut Slots,
    /// The rank's bit in its planes.
    pub bit: u64,
    /// Who gets the credit for what is placed.
    pub means: Means,
    /// What may still be spent on narrowing: it is optional, everything else is not.
    pub effort: &'a Effort,
}

impl World<'_> {
    /// Points a slot that was in limbo, or is new, to its node and shows its copies there.
    pub(super) fn settle(&mut self, slot: SlotId, place: Place) {
        let node = self.nodes.find_or_create(place, None);
        self.nodes.acquire(node);
        self.slots.set_whereabouts(slot, Whereabouts::Placed(node));
        let key = self.nodes.key(node);
        self.slots.show_all(slot, key, self.planes, self.bit);
        if !self.slots.is_held(slot) {
            self.slots.retire(slot);
        }
    }
}

impl Limbo {
    /// Nothing undecided.
    #[must_use]
    pub(super) fn new(field: Field) -> Self {
        Self {
            field,
            entries: Slab::default(),
            spans: Slab::default(),
            tries: Vec::new(),
            classes: Vec::new(),
            by_first_token: BTreeSet::new(),
            by_start: HashMap::new(),
            by_prefix: HashMap::new(),
            facts: Vec::new(),
            dirty: VecDeque::new(),
            span_bytes: 0,
            contradictions: 0,
            placed_by_join: 0,
            placed_by_query: 0,
            looked_at: 0,
        }
    }

    /// Whether nothing is undecided.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// Hashes that wait here.
    #[must_use]
    pub(super) fn num_hashes(&self) -> usize {
        self.entries.len()
    }

    /// A hash that waits here has another slot.
    pub(super) fn move_slot(&mut self, entry: EntryId, slot: SlotId) {
        self.entries[entry.0].slot = slot;
    }

    /// The slots of the hashes that wait here.
    pub(super) fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.entries.iter().map(|(_, e)| e.slot)
    }

    /// The entry of a hash that nobody placed, made (with a slot) when there is none.
    ///
    /// # Panics
    /// When the hash is placed: the caller looked.
    pub(super) fn entry(
        &mut self,
        key: EngineKey,
        salt: Option<Salt>,
        slots: &mut Slots,
    ) -> EntryId {
        if let Some(slot) = slots.find(key) {
            match slots.whereabouts(slot) {
                Whereabouts::Limbo(entry) => return entry,
                Whereabouts::Placed(node) => panic!("hash {key} is placed at {node:?}"),
            }
        }
        self.new_entry(key, salt, slots)
    }

    /// The entry, made with a slot, of a hash that has none.
    pub(super) fn new_entry(
        &mut self,
        key: EngineKey,
        salt: Option<Salt>,
        slots: &mut Slots,
    ) -> EntryId {
        let class = match salt {
            Some(Salt::Of(class)) => self.root(class),
            Some(Salt::Known(label)) => self.new_class(Some(label)),
            None => self.new_class(None),
        };
        let entry = EntryId(self.entries.insert(Entry::new(SlotId(0), class)));
        let slot = slots.insert(key, Whereabouts::Limbo(entry));
        self.entries[entry.0].slot = slot;
        self.enter_class(entry);
        entry
    }

    /// Counts one more listing of an undecided hash.
    pub(super) fn mention(&mut self, entry: EntryId) {
        self.entries[entry.0].mentions += 1;
    }

    /// Listings that wait for their place, of hashes that are held.
    #[must_use]
    pub(super) fn unplaced(&self, slots: &Slots) -> u64 {
        let held = self.entries.iter().filter(|(_, e)| slots.is_held(e.slot));
        held.map(|(_, e)| u64::from(e.mentions)).sum()
    }

    /// The slot of an undecided hash.
    #[must_use]
    pub(super) fn slot_of(&self, entry: EntryId) -> SlotId {
        self.entries[entry.0].slot
    }

    /// Whether facts wait to be solved.
    #[must_use]
    pub(super) fn is_unsettled(&self) -> bool {
        !self.facts.is_empty() || !self.dirty.is_empty()
    }

    /// Adds a fact; `solve` draws its consequences.
    pub(super) fn tell(&mut self, fact: Fact) {
        self.facts.push(fact);
    }
}
