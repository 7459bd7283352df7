//! Drawing the consequences of facts: positions, attached tries, salts, and hashes that leave
//! limbo.
//!
//! Facts are processed first. The spans that they changed come afterwards, so that each span is
//! looked at once for all changes together. Work on facts is paid for by the event or request that
//! told them; work on spans is optional and has to be paid from the effort.

use super::fact::{Fact, Frame, PlacedBy, Position};
use super::{Limbo, LimboContext};
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::LimboId;
use crate::prefix::Step;

impl Limbo {
    /// Draws every consequence of the facts told so far, as far as the effort allows.
    pub(in crate::fleet) fn solve(&mut self, context: &mut LimboContext<'_>) {
        loop {
            while let Some(fact) = self.facts.pop() {
                context.effort.note(1);
                match fact {
                    Fact::Stands(entry, at, ahead) => self.stands(entry, at, ahead, context),
                    Fact::SameSalt(a, b) => self.unite(a, b, context),
                    Fact::HasSalt(class, salt) => self.has_salt(class, salt, context),
                }
            }
            let Some(span) = self.dirty.pop_front() else {
                return;
            };
            self.narrow(span, context);
        }
    }

    fn stands(&mut self, id: LimboId, at: Position, ahead: u64, context: &mut LimboContext<'_>) {
        let at = self.resolve(at);
        // If the hash has left limbo since the fact was told, its node is what counts.
        let Some(entry) = self.entries.get_mut(id.0) else {
            return;
        };
        if let Some(old) = entry.at {
            self.stands_again(old, at);
            return;
        }
        let trie = entry.trie;
        if trie.is_some_and(|trie| at.frame == Frame::Trie(trie)) {
            // The hash would stand below itself.
            self.contradictions += 1;
            return;
        }
        if ahead != 0 {
            entry.ahead = ahead;
        }
        self.enter_frame(id, at);
        self.mark_spans_of(id);
        if let Some(trie) = trie {
            self.hang(trie, at, context);
        }
        self.leave_if_decided(id, context);
    }

    fn stands_again(&mut self, old: Position, at: Position) {
        let old = self.resolve(old);
        if old.frame == at.frame {
            self.contradictions += u64::from(old.step != at.step);
            return;
        }
        self.align(old, at);
    }

    /// One hash stands at two positions: the trie of one position is attached in the frame of the
    /// other.
    fn align(&mut self, a: Position, b: Position) {
        let (inner, trie, outer) = match (a.frame, b.frame) {
            (Frame::Trie(trie), Frame::Absolute) => (a, trie, b),
            (Frame::Trie(trie), Frame::Trie(_)) if a.step.tokens <= b.step.tokens => (a, trie, b),
            (Frame::Absolute | Frame::Trie(_), Frame::Trie(trie)) => (b, trie, a),
            (Frame::Absolute, Frame::Absolute) => return,
        };
        let Some(tokens) = outer.step.tokens.checked_sub(inner.step.tokens) else {
            self.contradictions += 1;
            return;
        };
        let step = Step {
            tokens,
            local: self.field.undo(inner.step, outer.step.local),
        };
        let root = self.tries[trie.0 as usize].root;
        let at = Position {
            frame: outer.frame,
            step,
        };
        self.facts.push(Fact::Stands(root, at, 0));
    }

    /// A placed hash stands at `inner` in a floating trie, so the trie's own place follows.
    pub(in crate::fleet) fn pin_trie(&mut self, inner: Position, place: Place) {
        let inner = self.resolve(inner);
        if inner.frame != Frame::Absolute {
            self.align(inner, Position::of(place));
        }
    }

    /// Moves a hash from limbo to its node once its absolute position and its salt are known.
    pub(super) fn leave_if_decided(&mut self, id: LimboId, context: &mut LimboContext<'_>) {
        let Some(entry) = self.entries.get(id.0) else {
            return;
        };
        let (Some(at), Some(salt)) = (entry.at, self.label(entry.class)) else {
            return;
        };
        if at.frame != Frame::Absolute {
            return;
        }
        let place = Place {
            boundary: at.step.tokens,
            prefix: at.step.local,
            ahead: entry.ahead,
            salt,
        };
        let (slot, mentions) = (entry.slot, u64::from(entry.mentions));
        match context.placed_by {
            PlacedBy::Join => self.placed_by_join += mentions,
            PlacedBy::Query => self.placed_by_query += mentions,
        }
        self.leave_frame(id);
        self.leave_class(id);
        self.leave_spans(id, place);
        self.entries.remove(id.0);
        context.settle(slot, place);
    }
}
