//! The frames that positions are measured from: floating tries, and how a trie is attached to a
//! position.
//!
//! An attached trie *hangs* at a position. Attaching it only records where its origin stands.
//! What was in the trie keeps its position, measured from the trie's own origin, and
//! [`Limbo::resolve`] translates that position when it is read. The member rings of both frames are
//! joined, so attaching costs the same however many members there are. Only attaching a trie to the
//! absolute start visits each member, once, because each may then leave for a node.

use std::cell::Cell;

use smallvec::SmallVec;

use super::fact::{ClassId, Fact, Frame, Position, SpanId, TrieId};
use super::records::{OfFrame, Trie};
use super::{Limbo, LimboContext};
use crate::fleet::presence::slots::LimboId;
use crate::prefix::{PrefixKey, Step};

impl Limbo {
    /// Where the tokens after a hash start, as far as known: at the hash's own position, or at the
    /// origin of the trie that floats below the hash. The trie is made if there is none.
    pub(in crate::fleet) fn anchor(&mut self, entry: LimboId) -> (Position, ClassId) {
        let class = self.class_of(entry);
        if let Some(at) = self.entries[entry.0].at {
            return (self.resolve(at), class);
        }
        let trie = match self.entries[entry.0].trie {
            Some(trie) => trie,
            None => self.new_trie(entry),
        };
        (
            Position {
                frame: Frame::Trie(trie),
                step: Step::NONE,
            },
            class,
        )
    }

    /// Makes a trie that floats below a hash.
    pub(super) fn new_trie(&mut self, root: LimboId) -> TrieId {
        let id = TrieId(u32::try_from(self.tries.len()).expect("fewer than 2^32 tries"));
        self.tries.push(Trie {
            root,
            hangs: Cell::new(None),
            members: None,
            spans: None,
            weight: 0,
            first_tokens: SmallVec::new(),
        });
        self.entries[root.0].trie = Some(id);
        id
    }

    /// The same position, measured from the absolute start or from a trie that still floats.
    pub(super) fn resolve(&self, at: Position) -> Position {
        match at.frame {
            Frame::Absolute => at,
            Frame::Trie(trie) => {
                (self.origin(trie)).map_or(at, |origin| self.further(origin, at.step))
            }
        }
    }

    /// The position that lies one step after another position.
    pub(super) fn further(&self, at: Position, step: Step) -> Position {
        Position {
            frame: at.frame,
            step: self.field.then(at.step, step),
        }
    }

    /// The position of a trie's origin, if the trie is attached anywhere.
    fn origin(&self, mut trie: TrieId) -> Option<Position> {
        let hangs = |trie: TrieId| self.tries[trie.0 as usize].hangs.get();
        let mut path: SmallVec<[TrieId; 8]> = SmallVec::new();
        while let Some(Position {
            frame: Frame::Trie(outer),
            ..
        }) = hangs(trie)
            && hangs(outer).is_some()
        {
            path.push(trie);
            trie = outer;
        }
        let mut origin = hangs(trie)?;
        for &trie in path.iter().rev() {
            let below = hangs(trie)?;
            origin = self.further(origin, below.step);
            self.tries[trie.0 as usize].hangs.set(Some(origin));
        }
        Some(origin)
    }

    /// Gives a hash its position. The position must be resolved.
    pub(super) fn enter_frame(&mut self, id: LimboId, at: Position) {
        self.entries[id.0].at = Some(at);
        match at.frame {
            Frame::Trie(trie) => {
                let trie = &mut self.tries[trie.0 as usize];
                trie.weight += 1;
                let head = trie.members.map(|e| e.0);
                trie.members = Some(LimboId(self.entries.enter::<OfFrame>(head, id.0)));
            }
            Frame::Absolute => {
                let head = self.by_prefix.get(&at.step.local).map(|e| e.0);
                let head = LimboId(self.entries.enter::<OfFrame>(head, id.0));
                self.by_prefix.insert(at.step.local, head);
            }
        }
    }

    /// Takes a hash out of the ring of the hashes at its position.
    pub(super) fn leave_frame(&mut self, id: LimboId) {
        let Some(at) = self.entries[id.0].at.map(|at| self.resolve(at)) else {
            return;
        };
        let rest = self.entries.leave::<OfFrame>(id.0).map(LimboId);
        match (at.frame, rest) {
            (Frame::Trie(trie), rest) => self.tries[trie.0 as usize].members = rest,
            (Frame::Absolute, Some(rest)) => {
                self.by_prefix.insert(at.step.local, rest);
            }
            (Frame::Absolute, None) => {
                self.by_prefix.remove(&at.step.local);
            }
        }
    }

    /// The undecided hashes whose absolute position has this key.
    pub(super) fn at_prefix(&self, key: PrefixKey) -> impl Iterator<Item = LimboId> + '_ {
        let head = self.by_prefix.get(&key).map(|e| e.0);
        self.entries.ring::<OfFrame>(head).map(LimboId)
    }

    /// The undecided hashes at the same position as this one, which is included.
    pub(super) fn hashes_beside(&self, id: LimboId) -> impl Iterator<Item = LimboId> + '_ {
        self.entries.ring::<OfFrame>(Some(id.0)).map(LimboId)
    }

    /// The hashes that have a position in a floating trie.
    pub(super) fn members(&self, trie: TrieId) -> impl Iterator<Item = LimboId> + '_ {
        let head = self.tries[trie.0 as usize].members.map(|e| e.0);
        self.entries.ring::<OfFrame>(head).map(LimboId)
    }

    /// The hash that a trie floats below got a position, and with it everything in the trie.
    pub(super) fn hang(&mut self, id: TrieId, at: Position, context: &LimboContext<'_>) {
        self.unindex(id);
        let trie = &mut self.tries[id.0 as usize];
        trie.hangs.set(Some(at));
        self.entries[trie.root.0].trie = None;
        match at.frame {
            Frame::Trie(outer) => self.merge_tries(id, outer, context),
            Frame::Absolute => self.land(id, context),
        }
    }

    /// One trie was attached to a position in another: spans of one may now narrow hashes of the
    /// other.
    fn merge_tries(&mut self, inner: TrieId, outer: TrieId, context: &LimboContext<'_>) {
        let weight = |id: TrieId| self.tries[id.0 as usize].weight;
        let sum = weight(inner) + weight(outer);
        let small = if weight(inner) <= weight(outer) {
            inner
        } else {
            outer
        };
        // A span and a hash that now share a frame can be matched starting from either one, so it
        // suffices to visit the smaller set.
        let members: Vec<LimboId> = self.members(small).collect();
        let spans: Vec<SpanId> = self.spans_in(small).collect();
        context.effort.note((members.len() + spans.len()) as u64);
        for id in members {
            self.mark_spans_of(id);
        }
        for id in spans {
            self.mark_around(id);
        }
        let Trie { members, spans, .. } = &mut self.tries[inner.0 as usize];
        let (members, spans) = (members.take(), spans.take());
        let into = &mut self.tries[outer.0 as usize];
        into.weight = sum;
        let (a, b) = (into.members.map(|e| e.0), members.map(|e| e.0));
        into.members = self.entries.join::<OfFrame>(a, b).map(LimboId);
        let (a, b) = (into.spans.map(|s| s.0), spans.map(|s| s.0));
        into.spans = self.spans.join::<OfFrame>(a, b).map(SpanId);
    }

    /// A trie was attached to the absolute start. Each member's position is told as a new fact, so
    /// its consequences are drawn.
    fn land(&mut self, id: TrieId, context: &LimboContext<'_>) {
        let members: Vec<LimboId> = self.members(id).collect();
        let spans: Vec<SpanId> = self.spans_in(id).collect();
        context.effort.note((members.len() + spans.len()) as u64);
        let trie = &mut self.tries[id.0 as usize];
        (trie.members, trie.spans) = (None, None);
        for member in members {
            let entry = &mut self.entries[member.0];
            let ahead = entry.ahead;
            if let Some(at) = entry.at.take() {
                let at = self.resolve(at);
                self.facts.push(Fact::Stands(member, at, ahead));
            }
        }
        for span in spans {
            self.enter_span(span);
            self.mark(span);
        }
    }

    /// Notes a first token under which requests find a trie.
    pub(in crate::fleet) fn index_first_token(&mut self, trie: TrieId, token: u32) {
        if self.by_first_token.insert((token, trie)) {
            self.tries[trie.0 as usize].first_tokens.push(token);
        }
    }

    /// The floating tries below which some store starts with this token.
    pub(super) fn tries_from(&self, token: u32) -> impl Iterator<Item = TrieId> + '_ {
        let range = (token, TrieId(0))..=(token, TrieId(u32::MAX));
        self.by_first_token.range(range).map(|&(_, trie)| trie)
    }

    /// Removes a trie from the index by first token, because it no longer floats.
    fn unindex(&mut self, id: TrieId) {
        for token in std::mem::take(&mut self.tries[id.0 as usize].first_tokens) {
            self.by_first_token.remove(&(token, id));
        }
    }
}
