//! Adding sparse stores, finding them again, and telling what narrowing one says about its hashes.

use super::fact::{ClassId, Fact, Frame, Position, Salt, SpanId, TrieId};
use super::order::SpanOrder;
use super::records::OfFrame;
use super::span::{Listed, SparseSpan, SparseStore};
use super::{Limbo, LimboContext};
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::{LimboId, SlotId, Whereabouts};
use crate::prefix::PrefixKey;

impl Limbo {
    /// Adds a sparse store of which at least one hash is undecided.
    pub(crate) fn add_span(&mut self, store: SparseStore<'_>, context: &mut LimboContext<'_>) {
        let class = match store.salt {
            Salt::Of(class) => self.root(class),
            Salt::Known(salt) => self.new_class(Some(salt)),
        };
        for &(slot, ahead) in store.listed {
            match context.slots.whereabouts(slot) {
                Whereabouts::Limbo(entry) => {
                    let entry = &mut self.entries[entry.0];
                    entry.ahead = ahead;
                    self.facts.push(Fact::SameSalt(class, entry.class));
                }
                Whereabouts::Placed(node) => {
                    let salt = context.nodes.place(node).salt;
                    self.facts.push(Fact::HasSalt(class, salt));
                }
            }
        }
        if self.is_told(&store, context) {
            return;
        }
        let id = SpanId(self.spans.insert(SparseSpan::default()));
        let span = self.span_of(id, class, store, context);
        self.span_bytes += span.list_bytes();
        self.spans[id.0] = span;
        self.enter_span(id);
        self.mark(id);
    }

    fn span_of(
        &mut self,
        id: SpanId,
        class: ClassId,
        store: SparseStore<'_>,
        context: &LimboContext<'_>,
    ) -> SparseSpan {
        let num_blocks = u32::try_from(store.ends.len()).unwrap_or(u32::MAX);
        let num_listed = u32::try_from(store.listed.len()).unwrap_or(u32::MAX);
        let listed = (0u32..).zip(store.listed).map(|(i, &(slot, ahead))| {
            let (entry, elsewhere) = match context.slots.whereabouts(slot) {
                Whereabouts::Limbo(entry) => (Some(entry), None),
                Whereabouts::Placed(node) => (None, Some(context.nodes.place(node))),
            };
            Listed {
                slot,
                entry,
                named_at: entry.map_or(0, |entry| self.name_span(entry, id, i)),
                ahead,
                low: i,
                high: num_blocks.saturating_sub(num_listed - i),
                fixed: false,
                elsewhere,
            }
        });
        SparseSpan {
            start: store.start,
            class,
            listed: listed.collect(),
            ends: store.ends.into_boxed_slice(),
            tails: store.tails,
            is_new: true,
            ..SparseSpan::default()
        }
    }

    /// Notes in an entry that a span lists it as number `i`. Returns the index of the note.
    pub(super) fn name_span(&mut self, entry: LimboId, id: SpanId, i: u32) -> u32 {
        let spans = &mut self.entries[entry.0].spans;
        spans.push((id, i));
        u32::try_from(spans.len() - 1).unwrap_or(u32::MAX)
    }

    /// Whether a known span says exactly what a store says, because engines repeat themselves.
    fn is_told(&self, store: &SparseStore<'_>, context: &LimboContext<'_>) -> bool {
        let whereabouts = |&(slot, _): &(SlotId, u64)| context.slots.whereabouts(slot);
        let first = store
            .listed
            .iter()
            .find_map(|listed| match whereabouts(listed) {
                Whereabouts::Limbo(entry) => Some(entry),
                Whereabouts::Placed(_) => None,
            });
        let Some(first) = first else { return false };
        let start = self.resolve(store.start);
        let mut spans = self.entries[first.0].spans.iter();
        spans
            .by_ref()
            .take_while(|_| context.effort.spend(1))
            .map(|&(id, _)| &self.spans[id.0])
            .any(|span| {
                span.listed.len() == store.listed.len()
                    && self.resolve(span.start) == start
                    && *span.ends == *store.ends
                    && (span.listed.iter().zip(store.listed)).all(|(known, listed)| {
                        match whereabouts(listed) {
                            Whereabouts::Limbo(entry) => known.entry == Some(entry),
                            Whereabouts::Placed(node) => {
                                known.elsewhere == Some(context.nodes.place(node))
                            }
                        }
                    })
            })
    }

    /// Adds a span to the ring of the spans with its start.
    pub(super) fn enter_span(&mut self, id: SpanId) {
        let start = self.resolve(self.spans[id.0].start);
        self.spans[id.0].start = start;
        match start.frame {
            Frame::Trie(trie) => {
                let trie = &mut self.tries[trie.0 as usize];
                trie.weight += 1;
                let head = trie.spans.map(|s| s.0);
                trie.spans = Some(SpanId(self.spans.enter::<OfFrame>(head, id.0)));
            }
            Frame::Absolute => {
                let head = self.by_start.get(&start.step.local).map(|s| s.0);
                let head = SpanId(self.spans.enter::<OfFrame>(head, id.0));
                self.by_start.insert(start.step.local, head);
            }
        }
    }

    fn leave_start(&mut self, id: SpanId) {
        let start = self.resolve(self.spans[id.0].start);
        let rest = self.spans.leave::<OfFrame>(id.0).map(SpanId);
        match (start.frame, rest) {
            (Frame::Trie(trie), rest) => self.tries[trie.0 as usize].spans = rest,
            (Frame::Absolute, Some(rest)) => {
                self.by_start.insert(start.step.local, rest);
            }
            (Frame::Absolute, None) => {
                self.by_start.remove(&start.step.local);
            }
        }
    }

    /// The undecided spans whose absolute start has this key.
    pub(super) fn spans_from(&self, key: PrefixKey) -> impl Iterator<Item = SpanId> + '_ {
        let head = self.by_start.get(&key).map(|s| s.0);
        self.spans.ring::<OfFrame>(head).map(SpanId)
    }

    /// The undecided spans with the same start as this one, which is included.
    pub(super) fn spans_beside(&self, id: SpanId) -> impl Iterator<Item = SpanId> + '_ {
        self.spans.ring::<OfFrame>(Some(id.0)).map(SpanId)
    }

    /// The undecided spans that start in a floating trie.
    pub(super) fn spans_in(&self, trie: TrieId) -> impl Iterator<Item = SpanId> + '_ {
        let head = self.tries[trie.0 as usize].spans.map(|s| s.0);
        self.spans.ring::<OfFrame>(head).map(SpanId)
    }

    /// Marks a span that something changed for, so it will be looked at.
    pub(super) fn mark(&mut self, id: SpanId) {
        if let Some(span) = self.spans.get_mut(id.0)
            && !std::mem::replace(&mut span.is_dirty, true)
        {
            self.dirty.push_back(id);
        }
    }

    /// Marks the spans that list a hash that something changed for.
    pub(super) fn mark_spans_of(&mut self, id: LimboId) {
        for at in 0..self.entries[id.0].spans.len() {
            self.mark(self.entries[id.0].spans[at].0);
        }
    }

    /// Marks a span and all spans that list one of its undecided hashes, so they are compared
    /// again.
    pub(super) fn mark_around(&mut self, id: SpanId) {
        self.mark(id);
        for i in 0..self.spans[id.0].listed.len() {
            let listed = &self.spans[id.0].listed[i];
            if let Some(entry) = listed.entry.filter(|_| listed.is_open()) {
                self.mark_spans_of(entry);
            }
        }
    }

    /// Tells the spans that list a hash that the hash now stands at a node.
    pub(super) fn leave_spans(&mut self, id: LimboId, place: Place) {
        for (span_id, i) in std::mem::take(&mut self.entries[id.0].spans) {
            let span = &mut self.spans[span_id.0];
            let listed = &mut span.listed[i as usize];
            listed.entry = None;
            listed.elsewhere = Some(place);
            self.facts.push(Fact::HasSalt(span.class, place.salt));
            self.mark(span_id);
        }
    }

    fn order<'a, 'c>(&'a self, id: SpanId, context: &'a LimboContext<'c>) -> SpanOrder<'a, 'c> {
        SpanOrder {
            limbo: self,
            context,
            id,
        }
    }

    /// Narrows where the hashes of a span may stand, and tells the facts that follow. If the effort
    /// is used up, the span stays as wide as it is, which is always correct.
    pub(super) fn narrow(&mut self, id: SpanId, context: &mut LimboContext<'_>) {
        let Some(span) = self.spans.get_mut(id.0) else {
            return;
        };
        span.is_dirty = false;
        let cost = 1 + 2 * span.listed.len();
        if std::mem::take(&mut span.is_new) {
            context.effort.note(cost as u64);
        } else if !context.effort.spend(cost) {
            return;
        }
        let mut span = std::mem::take(span);
        span.start = self.resolve(span.start);
        let before: Vec<(u32, u32)> = span.listed.iter().map(|l| (l.low, l.high)).collect();
        let is_consistent = self.fix_known(&mut span)
            && (!self.narrows
                || self.order(id, context).narrow(&mut span) && span.keep_whole_windows());
        if is_consistent {
            self.tell_fixed(&mut span);
        } else {
            self.contradictions += 1;
        }
        for (listed, before) in span.listed.iter().zip(before) {
            if (listed.low, listed.high) != before
                && let Some(entry) = listed.entry
            {
                for at in 0..self.entries[entry.0].spans.len() {
                    let (other, i) = self.entries[entry.0].spans[at];
                    if other != id && (!is_consistent || self.is_news(&span, listed, other, i)) {
                        self.mark(other);
                    }
                }
            }
        }
        let is_decided = span.listed.iter().all(|l| l.fixed);
        self.spans[id.0] = span;
        if is_decided || !is_consistent {
            self.remove_span(id);
        }
    }

    /// Whether the range of a hash in one span excludes something that another span leaves to it.
    fn is_news(&self, span: &SparseSpan, listed: &Listed, other: SpanId, i: u32) -> bool {
        let other = &self.spans[other.0];
        let theirs = &other.listed[i as usize];
        let start = self.resolve(other.start);
        let end = |block: u32| start.step.tokens + other.end_from_start(block).tokens;
        start.frame == span.start.frame
            && !theirs.fixed
            && (end(theirs.low) < span.tokens_at(listed.low)
                || end(theirs.high) > span.tokens_at(listed.high))
    }

    /// Tells the position of every hash that has only one possible block left.
    fn tell_fixed(&mut self, span: &mut SparseSpan) {
        let SparseSpan {
            start,
            ends,
            listed,
            ..
        } = span;
        for listed in listed.iter_mut().filter(|l| !l.fixed && l.low == l.high) {
            listed.fixed = true;
            let at = self.further(*start, ends[listed.low as usize]);
            if let Some(place) = listed.elsewhere {
                self.pin_trie(at, place);
            } else if let Some(entry) = listed.entry {
                self.facts.push(Fact::Stands(entry, at, listed.ahead));
            }
        }
    }

    /// Fixes the hashes whose place is known from elsewhere. Returns false if such a place lies
    /// outside the span.
    fn fix_known(&self, span: &mut SparseSpan) -> bool {
        for i in 0..span.listed.len() {
            let listed = &span.listed[i];
            if listed.fixed {
                continue;
            }
            let at = match (listed.elsewhere, listed.entry) {
                (Some(place), _) => Some(Position::of(place)),
                (None, Some(entry)) => self.entries[entry.0].at.map(|at| self.resolve(at)),
                (None, None) => None,
            };
            let Some(at) = at.filter(|at| at.frame == span.start.frame) else {
                continue;
            };
            let Some(block) = span.block_at(self.field, span.start.step, at.step) else {
                return false;
            };
            let listed = &mut span.listed[i];
            (listed.low, listed.high, listed.fixed) = (block, block, true);
        }
        true
    }

    /// Removes a span; its undecided hashes keep their entries.
    fn remove_span(&mut self, id: SpanId) {
        self.leave_start(id);
        for i in 0..self.spans[id.0].listed.len() {
            let Listed {
                entry, named_at, ..
            } = self.spans[id.0].listed[i];
            let Some(entry) = entry else { continue };
            let spans = &mut self.entries[entry.0].spans;
            spans.swap_remove(named_at as usize);
            // The reference that moved into the removed one's index is told its new index. It may
            // belong to this same span, which can list a hash twice.
            if let Some(&(moved, at)) = spans.get(named_at as usize) {
                self.spans[moved.0].listed[at as usize].named_at = named_at;
            }
        }
        if let Some(span) = self.spans.remove(id.0) {
            self.span_bytes -= span.list_bytes();
        }
    }
}
