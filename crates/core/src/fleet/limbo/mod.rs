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
mod reach;
mod solve;
mod span;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::effort::Effort;
use super::nodes::{Nodes, Place, SaltId};
use super::planes::Planes;
use super::slots::{EngineKey, EntryId, SlotId, Slots, Whereabouts};
use crate::prefix::{Field, PrefixKey, Step};

pub(super) use reach::{Possible, Walk};
pub(super) use span::SparseStore;

/// Index of a floating trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// Something a span depends on changed.
    Recheck(SpanId),
}

#[derive(Debug)]
struct Entry {
    slot: SlotId,
    class: ClassId,
    at: Option<At>,
    ahead: u64,
    spans: SmallVec<[SpanId; 2]>,
    /// The trie that floats below this hash.
    trie: Option<TrieId>,
    /// Store listings that wait here, for the statistics of what placed them.
    mentions: u32,
}

#[derive(Debug)]
struct Trie {
    root: EntryId,
    members: Vec<EntryId>,
    spans: Vec<SpanId>,
    /// Its first tokens, under which requests find it.
    first_tokens: SmallVec<[u32; 1]>,
}

#[derive(Debug, Default)]
struct Class {
    parent: u32,
    label: Option<SaltId>,
    members: Vec<EntryId>,
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
    tries: Slab<Trie>,
    spans: Slab<span::Span>,
    classes: Vec<Class>,
    /// Floating tries by their first token: what does not depend on any group's block size, which
    /// may be learned after the trie began.
    by_first_token: HashMap<u32, Vec<TrieId>>,
    /// Undecided spans with an absolute start, by the prefix key of that start.
    by_start: HashMap<PrefixKey, Vec<SpanId>>,
    /// Hashes with an absolute position and an unknown salt, by prefix key.
    by_prefix: HashMap<PrefixKey, SmallVec<[EntryId; 1]>>,
    facts: Vec<Fact>,
    /// Facts that contradicted each other, since the last look.
    pub contradictions: u64,
    /// Listings placed by a join and by a query, since the last look.
    pub placed_by_join: u64,
    /// See `placed_by_join`.
    pub placed_by_query: u64,
    swept_at: usize,
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
        for channel in self.slots.held_channels(slot) {
            self.planes
                .set(self.slots.channel(channel).plane, node, self.bit);
        }
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
            tries: Slab::default(),
            spans: Slab::default(),
            classes: Vec::new(),
            by_first_token: HashMap::new(),
            by_start: HashMap::new(),
            by_prefix: HashMap::new(),
            facts: Vec::new(),
            contradictions: 0,
            placed_by_join: 0,
            placed_by_query: 0,
            swept_at: 0,
        }
    }

    /// Whether nothing is undecided.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == 0
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
        let class = match salt {
            Some(Salt::Of(class)) => self.root(class),
            Some(Salt::Known(label)) => self.new_class(Some(label)),
            None => self.new_class(None),
        };
        let entry = EntryId(self.entries.insert(Entry {
            slot: SlotId(0),
            class,
            at: None,
            ahead: 0,
            spans: SmallVec::new(),
            trie: None,
            mentions: 0,
        }));
        let slot = slots.insert(key, Whereabouts::Limbo(entry));
        self.entries[entry.0].slot = slot;
        self.classes[class.0 as usize].members.push(entry);
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

    /// Where a hash stands as far as known: its own position, or the origin of the trie that
    /// floats below it (made when there is none).
    pub(super) fn anchor(&mut self, entry: EntryId) -> (At, ClassId) {
        let class = self.root(self.entries[entry.0].class);
        if let Some(at) = self.entries[entry.0].at {
            return (at, class);
        }
        let trie = if let Some(trie) = self.entries[entry.0].trie {
            trie
        } else {
            let trie = TrieId(self.tries.insert(Trie {
                root: entry,
                members: Vec::new(),
                spans: Vec::new(),
                first_tokens: SmallVec::new(),
            }));
            self.entries[entry.0].trie = Some(trie);
            trie
        };
        (
            At {
                frame: Frame::Trie(trie),
                step: Step::NONE,
            },
            class,
        )
    }

    /// A class of its own.
    pub(super) fn new_class(&mut self, label: Option<SaltId>) -> ClassId {
        let id = u32::try_from(self.classes.len()).expect("fewer than 2^32 classes");
        self.classes.push(Class {
            parent: id,
            label,
            members: Vec::new(),
        });
        ClassId(id)
    }

    /// The class that stands for `class` by now.
    #[must_use]
    pub(super) fn root(&self, class: ClassId) -> ClassId {
        let mut id = class.0;
        while self.classes[id as usize].parent != id {
            id = self.classes[id as usize].parent;
        }
        ClassId(id)
    }

    fn label(&self, class: ClassId) -> Option<SaltId> {
        self.classes[self.root(class).0 as usize].label
    }

    /// The slot of an undecided hash.
    #[must_use]
    pub(super) fn slot_of(&self, entry: EntryId) -> SlotId {
        self.entries[entry.0].slot
    }

    /// The salt class of a hash.
    #[must_use]
    pub(super) fn class_of(&self, entry: EntryId) -> ClassId {
        self.root(self.entries[entry.0].class)
    }

    /// Whether facts wait to be solved.
    #[must_use]
    pub(super) fn is_unsettled(&self) -> bool {
        !self.facts.is_empty()
    }

    /// Notes under which first token a trie is found by requests.
    pub(super) fn index_first_token(&mut self, trie: TrieId, token: u32) {
        let known = &mut self.tries[trie.0].first_tokens;
        if !known.contains(&token) {
            known.push(token);
            self.by_first_token.entry(token).or_default().push(trie);
        }
    }

    /// A trie that goes is found under its first tokens no more.
    fn unindex(&mut self, id: TrieId, first_tokens: &[u32]) {
        for token in first_tokens {
            if let Some(tries) = self.by_first_token.get_mut(token) {
                tries.retain(|&t| t != id);
                if tries.is_empty() {
                    self.by_first_token.remove(token);
                }
            }
        }
    }

    /// Adds a fact; `solve` draws its consequences.
    pub(super) fn tell(&mut self, fact: Fact) {
        self.facts.push(fact);
    }
}

/// Slots with stable indices that are used again.
#[derive(Debug)]
struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    fn insert(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = Some(item);
            return id;
        }
        self.items.push(Some(item));
        u32::try_from(self.items.len() - 1).expect("fewer than 2^32 items")
    }

    fn remove(&mut self, id: u32) -> Option<T> {
        let item = self.items[id as usize].take();
        if item.is_some() {
            self.free.push(id);
        }
        item
    }

    fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.items.get_mut(id as usize)?.as_mut()
    }

    fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> + '_ {
        (0u32..)
            .zip(&self.items)
            .filter_map(|(id, item)| item.as_ref().map(|item| (id, item)))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        self.get(id).expect("a live item")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.get_mut(id).expect("a live item")
    }
}
