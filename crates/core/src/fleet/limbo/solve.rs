//! Drawing the consequences of facts: positions, grafts, salts, and the way out of limbo.

use super::{At, ClassId, Fact, Frame, Limbo, Means, TrieId, World};
use crate::fleet::nodes::{Place, SaltId};
use crate::fleet::slots::EntryId;
use crate::prefix::Step;

impl Limbo {
    /// Draws every consequence of the facts told so far.
    pub(crate) fn solve(&mut self, world: &mut World<'_>) {
        while let Some(fact) = self.facts.pop() {
            world.effort.note(1);
            match fact {
                Fact::Stands(entry, at, ahead) => self.stands(entry, at, ahead, world),
                Fact::SameSalt(a, b) => self.unite(a, b, world),
                Fact::HasSalt(class, salt) => self.has_salt(class, salt, world),
                Fact::Recheck(span) => self.narrow(span, world),
            }
        }
    }

    fn stands(&mut self, id: EntryId, at: At, ahead: u64, world: &mut World<'_>) {
        // The entry may have left since the fact was told: then its node knows better.
        let Some(entry) = self.entries.get_mut(id.0) else {
            return;
        };
        let Some(old) = entry.at else {
            let trie = entry.trie;
            if trie.is_some_and(|trie| at.frame == Frame::Trie(trie)) {
                // A hash below itself.
                self.contradictions += 1;
                return;
            }
            entry.at = Some(at);
            if ahead != 0 {
                entry.ahead = ahead;
            }
            let spans = entry.spans.clone();
            self.facts.extend(spans.into_iter().map(Fact::Recheck));
            match at.frame {
                Frame::Trie(outer) => self.tries[outer.0].members.push(id),
                Frame::Absolute => {
                    self.by_prefix.entry(at.step.local).or_default().push(id);
                }
            }
            if let Some(trie) = trie {
                self.graft(trie, at);
            }
            self.leave_if_decided(id, world);
            return;
        };
        if old.frame == at.frame {
            if old.step != at.step {
                self.contradictions += 1;
            }
            return;
        }
        self.align(old, at);
    }

    /// One hash stands at two positions: the trie of one of them hangs in the frame of the other.
    fn align(&mut self, a: At, b: At) {
        let (inner, trie, outer) = match (a.frame, b.frame) {
            (Frame::Trie(trie), Frame::Absolute) => (a, trie, b),
            (Frame::Trie(trie), Frame::Trie(_)) if a.step.tokens <= b.step.tokens => (a, trie, b),
            (Frame::Absolute | Frame::Trie(_), Frame::Trie(trie)) => (b, trie, a),
            (Frame::Absolute, Frame::Absolute) => return,
        };
        if inner.step.tokens > outer.step.tokens {
            self.contradictions += 1;
            return;
        }
        let step = Step {
            tokens: outer.step.tokens - inner.step.tokens,
            local: self.field.undo(inner.step, outer.step.local),
        };
        let root = self.tries[trie.0].root;
        self.facts.push(Fact::Stands(
            root,
            At {
                frame: outer.frame,
                step,
            },
            0,
        ));
    }

    /// The hash that a trie floats below got a position: everything in the trie gets one with it.
    fn graft(&mut self, id: TrieId, base: At) {
        let Some(trie) = self.tries.remove(id.0) else {
            return;
        };
        self.unindex(id, &trie.first_tokens);
        self.entries[trie.root.0].trie = None;
        for fact in &mut self.facts {
            if let Fact::Stands(_, at, _) = fact
                && at.frame == Frame::Trie(id)
            {
                *at = At {
                    frame: base.frame,
                    step: self.field.then(base.step, at.step),
                };
            }
        }
        for member in trie.members {
            // Told anew in the outer frame, each member draws its own consequences there.
            if let Some(entry) = self.entries.get_mut(member.0)
                && let Some(old) = entry.at.take_if(|at| at.frame == Frame::Trie(id))
            {
                let at = At {
                    frame: base.frame,
                    step: self.field.then(base.step, old.step),
                };
                let ahead = entry.ahead;
                self.facts.push(Fact::Stands(member, at, ahead));
            }
        }
        for span in trie.spans {
            self.move_span(span, base);
        }
    }

    fn unite(&mut self, a: ClassId, b: ClassId, world: &mut World<'_>) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        let sizes = [a, b].map(|c| self.classes[c.0 as usize].members.len());
        let (small, large) = if sizes[0] < sizes[1] { (a, b) } else { (b, a) };
        let members = std::mem::take(&mut self.classes[small.0 as usize].members);
        let labels = (self.label(small), self.label(large));
        self.classes[small.0 as usize].parent = large.0;
        for &member in &members {
            // An index may be in use again, by a hash of another class.
            if let Some(entry) = self.entries.get_mut(member.0).filter(|e| e.class == small) {
                entry.class = large;
            }
        }
        self.classes[large.0 as usize].members.extend(members);
        match labels {
            (Some(x), Some(y)) if x != y => self.contradictions += 1,
            (Some(salt), _) | (None, Some(salt)) => {
                self.classes[large.0 as usize].label = None;
                self.has_salt(large, salt, world);
            }
            (None, None) => {}
        }
    }

    fn has_salt(&mut self, class: ClassId, salt: SaltId, world: &mut World<'_>) {
        let root = self.root(class);
        match self.classes[root.0 as usize].label {
            Some(old) if old == salt => {}
            Some(_) => self.contradictions += 1,
            None => {
                self.classes[root.0 as usize].label = Some(salt);
                let members = std::mem::take(&mut self.classes[root.0 as usize].members);
                for &member in &members {
                    self.leave_if_decided(member, world);
                }
                // Those that stay must be found again when they get a position.
                let stay = members
                    .into_iter()
                    .filter(|m| self.entries.get(m.0).is_some());
                let stay: Vec<EntryId> = stay.collect();
                self.classes[root.0 as usize].members.extend(stay);
            }
        }
    }

    /// A hash with an absolute position and a known salt gets its node and leaves.
    fn leave_if_decided(&mut self, id: EntryId, world: &mut World<'_>) {
        let Some(entry) = self.entries.get(id.0) else {
            return;
        };
        let (
            Some(At {
                frame: Frame::Absolute,
                step,
            }),
            Some(salt),
        ) = (entry.at, self.label(entry.class))
        else {
            return;
        };
        let place = Place {
            boundary: step.tokens,
            prefix: step.local,
            ahead: entry.ahead,
            salt,
        };
        world.settle(entry.slot, place);
        let mentions = u64::from(entry.mentions);
        match world.means {
            Means::Join => self.placed_by_join += mentions,
            Means::Query => self.placed_by_query += mentions,
        }
        self.remove_entry(id);
    }

    /// Takes an entry out of every index; its slot stays.
    pub(super) fn remove_entry(&mut self, id: EntryId) {
        let Some(entry) = self.entries.remove(id.0) else {
            return;
        };
        if let Some(At {
            frame: Frame::Absolute,
            step,
        }) = entry.at
            && let Some(ids) = self.by_prefix.get_mut(&step.local)
        {
            ids.retain(|e| *e != id);
            if ids.is_empty() {
                self.by_prefix.remove(&step.local);
            }
        }
        self.facts
            .extend(entry.spans.into_iter().map(Fact::Recheck));
    }
}
