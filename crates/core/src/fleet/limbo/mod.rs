//! Hashes whose boundary the events have not told yet, and all that is known of where they may be.
//!
//! Positions and salts are apart (`docs/placing-blocks.md` in words):
//! * a **frame** is where a position is measured from: the absolute start, or a **trie** that
//!   floats below a hash which some store named as parent but nobody placed;
//! * a **span** is a sparse store: its hashes stand in this order at ends of its blocks;
//! * a **class** is a set of hashes of one chain: they share one salt, known or not.
//!
//! For example: an engine is followed from the middle of its life on. It stores, under a parent P that nobody has seen, four
//! blocks of 16 tokens, of which it lists two hashes, a and b:
//!
//! ```text
//! tokens after P      0       16      32      48      64
//! blocks              |   0   |   1   |   2   |   3   |
//! a may end           .       x       x       x          b is listed after it
//! b may end           .               x       x       x  a is listed before it
//! ```
//!
//! P is unknown, so a trie begins to float below it, and the span starts at the trie's origin. P, a
//! and b are one class: they share a salt that nobody knows. A request that contains these four blocks
//! anywhere has all of this in its upper bound and nothing of it in its lower bound.
//!
//! Then a request comes whose own engine chain has the hashes P after 80 tokens, a after 112 and b
//! after 144. These are the facts `P stands at 80`, `a stands at 112`, `b stands at 144`, and that
//! the class has the request's salt. The trie hangs at 80, so a and b end blocks 1 and 3 of the span,
//! which is what it allowed. Each of the three leaves for a node, and the span is gone.
//!
//! New knowledge is a [`Fact`]; `solve` draws every consequence until nothing is left. A hash that
//! gets an absolute position and a salt leaves for a node. Nothing here ever guesses.

mod fact;
mod forget;
mod frames;
mod order;
mod possible;
mod reach;
mod records;
mod salts;
mod slab;
mod solve;
mod span;
mod spans;
mod tails;
mod taken;

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;

use super::effort::Effort;
use super::nodes::{Nodes, Place};
use super::planes::Planes;
use super::slots::{EngineKey, EntryId, SlotId, Slots, Whereabouts};
use crate::prefix::{Field, PrefixKey};
use fact::{SpanId, TrieId};
use records::{Entry, SaltClass, Trie};
use slab::Slab;
use span::Span;

pub(super) use fact::{At, Fact, Frame, Means, Salt};
pub(super) use possible::Possible;
pub(super) use reach::{Looks, Walk};
pub(super) use span::{SparseStore, Tails};

/// Everything of one rank that is undecided.
#[derive(Debug)]
pub(super) struct Limbo {
    field: Field,
    entries: Slab<Entry>,
    spans: Slab<Span>,
    /// Tries and classes, those that are part of others by now included, until the next sweep.
    tries: Vec<Trie>,
    classes: Vec<SaltClass>,
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

/// What limbo reads and changes outside itself: the model's boundaries and bits and the rank's slots,
/// lent for one operation.
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
