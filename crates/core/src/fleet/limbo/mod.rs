//! Hashes whose boundary the events have not told yet, and everything known about where they may
//! stand.
//!
//! Positions and salts are tracked separately (`docs/placing-blocks.md` explains both in words):
//! * a **frame** is where a position is measured from: the absolute start, or a **trie**, which
//!   floats below a hash that some store named as its parent and that has no place yet;
//! * a **span** is a sparse store: its hashes stand at ends of its blocks, in this order;
//! * a **class** is a set of hashes of one chain, which share one salt, known or not.
//!
//! For example, suppose that we start to follow an engine in the middle of its life. Under a parent
//! P that no event has shown before, it stores four blocks of 16 tokens, of which it lists two
//! hashes, a and b:
//!
//! ```text
//! tokens after P      0       16      32      48      64
//! blocks              |   0   |   1   |   2   |   3   |
//! a may end           .       x       x       x          b is listed after it
//! b may end           .               x       x       x  a is listed before it
//! ```
//!
//! P has no place, so a trie is made that floats below P, and the span starts at the trie's origin.
//! P, a and b are one class: they share a salt that is not known. If a request contains these four
//! blocks anywhere, they count in its upper bound but not in its lower bound.
//!
//! Then a request arrives whose own engine chain has the hash P after 80 tokens, a after 112 and b
//! after 144. This gives the facts `P stands at 80`, `a stands at 112` and `b stands at 144`, and
//! the fact that the class has the request's salt. The trie is attached at 80 tokens, so a and b
//! end blocks 1 and 3 of the span, which the span allowed. Each of the three hashes leaves for a
//! node, and the span is gone.
//!
//! New knowledge is a [`Fact`], and `solve` draws its consequences until no new fact follows. A
//! hash that has both an absolute position and a salt leaves for a node. Nothing here ever guesses.
//!
//! In reading order:
//! - `solve`: facts are settled, and hashes leave;
//! - `spans`: sparse stores are added and found again;
//! - `order`: one span is narrowed;
//! - `reach`: where undecided hashes may stand along a request;
//! - `taken`: boundaries where another hash stands;
//! - `possible`: the answer to that;
//! - `tails`: what an engine's retention shows;
//! - `forget`: hashes that no longer matter leave;
//! - `sound`: whether what a snapshot says can be;
//! - `span`: one sparse store;
//! - `frames`: what positions are measured from;
//! - `salts`: hashes that share a salt;
//! - `records`: what is kept for a hash, a trie and a class;
//! - `slab`: items with indices that stay;
//! - `fact`: the words of facts.

use serde::{Deserialize, Serialize};

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
mod sound;
mod span;
mod spans;
mod tails;
mod taken;

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;

use crate::fleet::effort::Effort;
use crate::fleet::presence::nodes::{Nodes, Place};
use crate::fleet::presence::planes::Planes;
use crate::fleet::presence::slots::{EngineKey, LimboId, SlotId, Slots, Whereabouts};
use crate::fleet::snapshot::in_order;
use crate::prefix::{KeyField, PrefixKey};
use fact::{SpanId, TrieId};
use records::{LimboEntry, SaltClass, Trie};
use slab::Slab;
use span::SparseSpan;

pub(super) use fact::{Fact, Frame, PlacedBy, Position, Salt};
pub(super) use possible::Possible;
pub(super) use reach::{Looks, PromptPositions, possible};
pub(super) use sound::{restored, shorten_paths};
pub(super) use span::{SparseStore, Tails};

/// Everything of one rank that is undecided.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Limbo {
    #[serde(skip, default = "no_field")]
    field: KeyField,
    entries: Slab<LimboEntry>,
    spans: Slab<SparseSpan>,
    /// The tries and the classes. Those that became part of others are kept until the next sweep.
    tries: Vec<Trie>,
    classes: Vec<SaltClass>,
    /// The floating tries by their first token. The first token does not depend on any group's
    /// block size, which may be learned only after the trie was made.
    by_first_token: BTreeSet<(u32, TrieId)>,
    /// For each prefix key, one undecided span whose absolute start has that key; its ring has the
    /// others.
    #[serde(serialize_with = "in_order::map")]
    by_start: HashMap<PrefixKey, SpanId>,
    /// For each prefix key, one hash without a known salt whose absolute position has that key; its
    /// ring has the others.
    #[serde(serialize_with = "in_order::map")]
    by_prefix: HashMap<PrefixKey, LimboId>,
    #[serde(skip)]
    facts: Vec<Fact>,
    /// Whether spans are narrowed (`Options::narrows`).
    #[serde(skip)]
    pub narrows: bool,
    /// The spans that changed since they were last looked at.
    #[serde(skip)]
    dirty: VecDeque<SpanId>,
    /// The bytes of the lists of all spans.
    span_bytes: usize,
    /// The number of facts that contradicted each other, since this count was last taken.
    pub contradictions: u64,
    /// The number of listings that a join placed, since this count was last taken.
    pub placed_by_join: u64,
    /// The number of listings that a query placed, since this count was last taken.
    pub placed_by_query: u64,
    /// The number of records right after the last look at what a sweep would keep.
    looked_at: usize,
}

/// What limbo reads and changes outside itself: the model's boundaries and bits, and the rank's
/// slots. They are lent for one operation.
pub(super) struct LimboContext<'a> {
    /// The model's nodes.
    pub nodes: &'a mut Nodes,
    /// The model's presence bits.
    pub planes: &'a mut Planes,
    /// The rank's slots.
    pub slots: &'a mut Slots,
    /// The rank's bit in its planes.
    pub bit: u64,
    /// What is credited with the places found during this operation.
    pub placed_by: PlacedBy,
    /// The effort that may still be spent on narrowing spans. Narrowing is optional; all other work
    /// is not.
    pub effort: &'a Effort,
}

impl LimboContext<'_> {
    /// Points a slot, which was in limbo or is new, to its node, and shows its copies there.
    pub(super) fn settle(&mut self, slot: SlotId, place: Place) {
        let node = self.nodes.find_or_create(place, None);
        self.nodes.acquire(node);
        self.slots.stand_at(slot, node, self.nodes);
        let key = self.nodes.key(node);
        self.slots.set_presence_of(slot, key, self.planes, self.bit);
        if !self.slots.is_held(slot) {
            self.slots.retire(slot);
        }
    }
}

/// Stands for the field in what is read from a snapshot (`restored`).
fn no_field() -> KeyField {
    KeyField::new(1)
}

impl Limbo {
    /// A limbo without any undecided hash.
    #[must_use]
    pub(super) fn new(field: KeyField) -> Self {
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
            narrows: true,
            dirty: VecDeque::new(),
            span_bytes: 0,
            contradictions: 0,
            placed_by_join: 0,
            placed_by_query: 0,
            looked_at: 0,
        }
    }

    /// Whether limbo has no undecided hash.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// The number of undecided hashes.
    #[must_use]
    pub(super) fn num_hashes(&self) -> usize {
        self.entries.len()
    }

    /// Notes that an undecided hash has a new slot.
    pub(super) fn move_slot(&mut self, entry: LimboId, slot: SlotId) {
        self.entries[entry.0].slot = slot;
    }

    /// The slots of the undecided hashes.
    pub(super) fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.entries.iter().map(|(_, e)| e.slot)
    }

    /// The entry of a hash without a place. The entry and a slot are made if there are none.
    ///
    /// # Panics
    /// Panics if the hash has a place: the caller must have looked.
    pub(super) fn entry(
        &mut self,
        key: EngineKey,
        salt: Option<Salt>,
        slots: &mut Slots,
        nodes: &Nodes,
    ) -> LimboId {
        if let Some(slot) = slots.find(key, nodes) {
            match slots.whereabouts(slot) {
                Whereabouts::Limbo(entry) => return entry,
                Whereabouts::Placed(node) => panic!("hash {key} is placed at {node:?}"),
            }
        }
        self.new_entry(key, salt, slots)
    }

    /// Makes an entry and a slot for a hash that has neither.
    pub(super) fn new_entry(
        &mut self,
        key: EngineKey,
        salt: Option<Salt>,
        slots: &mut Slots,
    ) -> LimboId {
        let class = match salt {
            Some(Salt::Of(class)) => self.root(class),
            Some(Salt::Known(label)) => self.new_class(Some(label)),
            None => self.new_class(None),
        };
        let entry = LimboId(self.entries.insert(LimboEntry::new(SlotId(0), class)));
        let slot = slots.insert_undecided(key, entry);
        self.entries[entry.0].slot = slot;
        self.enter_class(entry);
        entry
    }

    /// Counts one more listing of an undecided hash.
    pub(super) fn mention(&mut self, entry: LimboId) {
        self.entries[entry.0].mentions += 1;
    }

    /// The number of listings, of held hashes, that still wait for a place.
    #[must_use]
    pub(super) fn unplaced(&self, slots: &Slots) -> u64 {
        let held = self.entries.iter().filter(|(_, e)| slots.is_held(e.slot));
        held.map(|(_, e)| u64::from(e.mentions)).sum()
    }

    /// The slot of an undecided hash.
    #[must_use]
    pub(super) fn slot_of(&self, entry: LimboId) -> SlotId {
        self.entries[entry.0].slot
    }

    /// Whether any fact waits to be solved.
    #[must_use]
    pub(super) fn is_unsettled(&self) -> bool {
        !self.facts.is_empty() || !self.dirty.is_empty()
    }

    /// Adds a fact. `solve` draws its consequences later.
    pub(super) fn add_fact(&mut self, fact: Fact) {
        self.facts.push(fact);
    }
}
