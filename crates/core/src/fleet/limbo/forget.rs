//! Limbo forgets hashes that can no longer matter, and gives back the memory of their records.
//!
//! A hash may be forgotten only when no undecided record refers to it. Otherwise the hash would
//! later come back with a second identity. So a hash stays (1) while it is held, (2) while a trie
//! floats below it that contains a held hash, and (3) while a span lists it together with a held
//! hash. A sweep moves what stays into lists of the right size: the sweep costs as much as there is
//! to look at, and the memory is returned.

use super::Limbo;
use super::fact::{ClassId, Fact, Frame, Position, SpanId, TrieId};
use super::records::{LimboEntry, SaltClass, Trie};
use super::span::SparseSpan;
use crate::fleet::presence::slots::{LimboId, SlotId, Slots, Whereabouts};

/// A rank may keep this many entries, spans, tries and classes without a sweep: about a megabyte.
const ALLOWANCE: usize = 8192;
/// The bytes that a trie's first token takes, in the index by first token and in the trie itself.
const FIRST_TOKEN_BYTES: usize = 32;

/// The records that a sweep keeps.
struct Live {
    entries: Vec<bool>,
    spans: Vec<bool>,
}

/// The new numbers of the records that stay.
struct Renumbered {
    entries: Vec<Option<LimboId>>,
    tries: Vec<Option<TrieId>>,
    classes: Vec<Option<ClassId>>,
}

impl Limbo {
    /// Sweeps when limbo has doubled since the last look, and has more records than the allowance.
    /// Until then, limbo keeps what it knows of a hash even after the hash's last copy went: that
    /// stays true, and it places the hash if the hash comes back.
    pub(crate) fn sweep_if_grown(&mut self, slots: &mut Slots) {
        if self.len() > (2 * self.looked_at).max(ALLOWANCE) {
            self.sweep_if_half_goes(slots);
        }
    }

    /// Sweeps if at least half of the records would go. If fewer went, moving the rest would cost
    /// more than the sweep gives back.
    pub(crate) fn sweep_if_half_goes(&mut self, slots: &mut Slots) {
        let live = self.live(slots);
        if 2 * self.len_of(&live) <= self.len() {
            self.keep(&live, slots);
        }
        self.looked_at = self.len();
    }

    /// Forgets every undecided hash that no held hash depends on.
    pub(crate) fn sweep(&mut self, slots: &mut Slots) {
        let live = self.live(slots);
        self.keep(&live, slots);
        self.looked_at = self.len();
    }

    /// Forgets everything undecided. Returns the slots of the undecided hashes, which now stand
    /// nowhere.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = SlotId> + use<> {
        let old = self.renew();
        old.entries.into_items().map(|(_, entry)| entry.slot)
    }

    /// Empties limbo except for its counters. Returns the old contents.
    fn renew(&mut self) -> Self {
        let old = std::mem::replace(self, Self::new(self.field));
        self.contradictions = old.contradictions;
        (self.placed_by_join, self.placed_by_query) = (old.placed_by_join, old.placed_by_query);
        self.looked_at = old.looked_at;
        old
    }

    /// The number of all records, including the tries and classes that became part of others.
    fn len(&self) -> usize {
        self.entries.len() + self.spans.len() + self.tries.len() + self.classes.len()
    }

    /// The largest number of records that a sweep could leave.
    fn len_of(&self, live: &Live) -> usize {
        let count = |flags: &[bool]| flags.iter().filter(|&&flag| flag).count();
        let hashes = count(&live.entries) + count(&live.spans);
        let floats =
            |trie: &&Trie| trie.hangs.get().is_none() && live.entries[trie.root.0 as usize];
        let is_root = |(id, class): &(u32, &SaltClass)| class.parent.get() == *id;
        let classes = (0u32..).zip(&self.classes).filter(is_root).count();
        hashes + self.tries.iter().filter(floats).count() + classes.min(hashes)
    }

    /// The records that some held hash depends on.
    fn live(&self, slots: &Slots) -> Live {
        let mut live = Live {
            entries: vec![false; self.entries.end()],
            spans: vec![false; self.spans.end()],
        };
        let held = self.entries.iter().filter(|(_, e)| slots.is_held(e.slot));
        let mut found: Vec<LimboId> = held.map(|(id, _)| LimboId(id)).collect();
        let root_of = |at: Position| match self.resolve(at).frame {
            Frame::Trie(trie) => Some(self.tries[trie.0 as usize].root),
            Frame::Absolute => None,
        };
        while let Some(id) = found.pop() {
            if std::mem::replace(&mut live.entries[id.0 as usize], true) {
                continue;
            }
            let entry = &self.entries[id.0];
            found.extend(entry.at.and_then(root_of));
            for &(span_id, i) in &entry.spans {
                let span = &self.spans[span_id.0];
                let is_new = span.listed[i as usize].is_open()
                    && !std::mem::replace(&mut live.spans[span_id.0 as usize], true);
                if is_new {
                    found.extend(root_of(span.start));
                    let open = span.listed.iter().filter(|l| l.is_open());
                    found.extend(open.filter_map(|l| l.entry));
                }
            }
        }
        live
    }

    /// Moves what stays into lists of the right size, and forgets the rest. No fact is waiting by
    /// now.
    fn keep(&mut self, live: &Live, slots: &mut Slots) {
        let mut old = self.renew();
        let mut new = Renumbered {
            entries: vec![None; old.entries.end()],
            tries: vec![None; old.tries.len()],
            classes: vec![None; old.classes.len()],
        };
        self.keep_entries(&old, &mut new, live, slots);
        self.keep_tries(&old, &mut new);
        for (id, entry) in old.entries.iter() {
            if let (Some(at), Some(moved)) = (entry.at, new.entries[id as usize]) {
                self.enter_frame(moved, new.at(&old, at));
            }
        }
        for (id, span) in std::mem::take(&mut old.spans).into_items() {
            if live.spans[id as usize] {
                self.keep_span(&old, &mut new, span);
            }
        }
    }

    fn keep_entries(&mut self, old: &Self, new: &mut Renumbered, live: &Live, slots: &mut Slots) {
        for (id, entry) in old.entries.iter() {
            if !live.entries[id as usize] {
                slots.forget(entry.slot);
                continue;
            }
            let class = self.keep_class(old, new, entry.class);
            let moved = LimboId(self.entries.insert(LimboEntry {
                ahead: entry.ahead,
                mentions: entry.mentions,
                ..LimboEntry::new(entry.slot, class)
            }));
            new.entries[id as usize] = Some(moved);
            slots.set_entry(entry.slot, moved);
            self.enter_class(moved);
        }
    }

    fn keep_class(&mut self, old: &Self, new: &mut Renumbered, class: ClassId) -> ClassId {
        let root = old.root(class);
        *new.classes[root.0 as usize].get_or_insert_with(|| self.new_class(old.label(root)))
    }

    /// Moves the tries that still float, each together with the hash that it floats below.
    fn keep_tries(&mut self, old: &Self, new: &mut Renumbered) {
        for (id, trie) in old.tries.iter().enumerate() {
            if trie.hangs.get().is_none()
                && let Some(root) = new.entries[trie.root.0 as usize]
            {
                let moved = self.new_trie(root);
                new.tries[id] = Some(moved);
                for &token in &trie.first_tokens {
                    self.index_first_token(moved, token);
                }
            }
        }
    }

    fn keep_span(&mut self, old: &Self, new: &mut Renumbered, span: SparseSpan) {
        let (start, class) = (
            new.at(old, span.start),
            self.keep_class(old, new, span.class),
        );
        let id = SpanId(self.spans.insert(span.moved(start, class)));
        for i in 0..self.spans[id.0].listed.len() {
            let entry = self.spans[id.0].listed[i].entry;
            let entry = entry.and_then(|entry| new.entries[entry.0 as usize]);
            let number = u32::try_from(i).unwrap_or(u32::MAX);
            let named_at = entry.map_or(0, |entry| self.name_span(entry, id, number));
            let listed = &mut self.spans[id.0].listed[i];
            (listed.entry, listed.named_at) = (entry, named_at);
        }
        self.span_bytes += self.spans[id.0].list_bytes();
        self.enter_span(id);
    }

    /// The bytes held, by capacity; the index by first token is estimated.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes()
            + self.spans.bytes()
            + self.span_bytes
            + self.tries.capacity() * size_of::<Trie>()
            + self.classes.capacity() * size_of::<SaltClass>()
            + self.by_first_token.len() * FIRST_TOKEN_BYTES
            + self.by_start.allocation_size()
            + self.by_prefix.allocation_size()
            + self.facts.capacity() * size_of::<Fact>()
            + self.dirty.capacity() * size_of::<SpanId>()
    }

    /// Panics unless entries, tries, spans, classes and the indexes that find them agree.
    pub(crate) fn check_integrity(&self, slots: &Slots) {
        assert!(!self.is_unsettled(), "facts or spans are left unsolved");
        self.check_entries(slots);
        self.check_spans(slots);
        let mut placed = 0;
        for (id, trie) in (0..).map(TrieId).zip(&self.tries) {
            for member in self.members(id) {
                let at = self.entries[member.0].at.map(|at| self.resolve(at).frame);
                assert_eq!(at, Some(Frame::Trie(id)), "entry {member:?} of trie {id:?}");
                placed += 1;
            }
            let is_empty = trie.members.is_none() && trie.spans.is_none();
            assert!(
                is_empty || trie.hangs.get().is_none(),
                "trie {id:?} hangs and has something"
            );
        }
        for (&key, &head) in &self.by_prefix {
            for entry in self.at_prefix(key) {
                let at = self.entries[entry.0]
                    .at
                    .filter(|at| at.frame == Frame::Absolute);
                assert_eq!(
                    at.map(|at| at.step.local),
                    Some(key),
                    "entry {head:?} at {key}"
                );
                placed += 1;
            }
        }
        let with_place = self.entries.iter().filter(|(_, e)| e.at.is_some()).count();
        assert_eq!(placed, with_place, "entries found where they stand");
        let lists: usize = self.spans.iter().map(|(_, s)| s.list_bytes()).sum();
        assert_eq!(self.span_bytes, lists, "bytes of the lists of spans");
    }

    fn check_entries(&self, slots: &Slots) {
        let in_classes: usize = (0..self.classes.len())
            .filter_map(|id| u32::try_from(id).ok())
            .map(|id| self.of_class(ClassId(id)).len())
            .sum();
        assert_eq!(in_classes, self.entries.len(), "entries of some class");
        for (id, entry) in self.entries.iter() {
            assert_eq!(
                slots.whereabouts(entry.slot),
                Whereabouts::Limbo(LimboId(id)),
                "entry {id} and its slot disagree"
            );
            if let Some(trie) = entry.trie {
                let trie = &self.tries[trie.0 as usize];
                assert_eq!(trie.root, LimboId(id), "trie below entry {id}");
                assert!(
                    entry.at.is_none() && trie.hangs.get().is_none(),
                    "entry {id} has a position and a floating trie"
                );
            }
            for (at, &(span, i)) in entry.spans.iter().enumerate() {
                let listed = &self.spans[span.0].listed[i as usize];
                assert_eq!(
                    (listed.entry, listed.named_at as usize, listed.slot),
                    (Some(LimboId(id)), at, entry.slot),
                    "entry {id} and span {span:?} disagree"
                );
            }
        }
    }

    fn check_spans(&self, slots: &Slots) {
        let starting = self
            .by_start
            .keys()
            .map(|&key| self.spans_from(key).count());
        let floating = (0u32..).map(TrieId).take(self.tries.len());
        let floating = floating.map(|trie| self.spans_in(trie).count());
        assert_eq!(
            starting.chain(floating).sum::<usize>(),
            self.spans.len(),
            "spans found where they start"
        );
        for (id, span) in self.spans.iter() {
            for (slot, low, high) in span.open() {
                assert!(low <= high, "span {id}: no block is left for slot {slot:?}");
                assert!(
                    matches!(slots.whereabouts(slot), Whereabouts::Limbo(_)),
                    "span {id} waits for slot {slot:?}, which is placed"
                );
            }
        }
    }
}

impl Renumbered {
    /// The same position, measured in the frames that stay.
    fn at(&self, old: &Limbo, at: Position) -> Position {
        let at = old.resolve(at);
        let frame = match at.frame {
            Frame::Absolute => Frame::Absolute,
            Frame::Trie(trie) => {
                let moved = self.tries[trie.0 as usize];
                Frame::Trie(moved.expect("what is live keeps what it hangs below"))
            }
        };
        Position { frame, ..at }
    }
}
