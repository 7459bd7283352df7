//! Sparse stores: hashes that stand, in order, at ends of blocks of a span of tokens.
//!
//! ```text
//! blocks      |  0  |  1  |  2  |  3  |  4  |      listed  a  b
//! a may be    |--lo-----------hi|                  order:  a before b
//! b may be          |--lo-----------hi|
//! ```

use super::{At, ClassId, Fact, Frame, Limbo, Salt, SpanId, World};
use crate::fleet::nodes::Place;
use crate::fleet::slots::{EntryId, SlotId, Slots, Whereabouts};
use crate::prefix::{Field, Step};

/// A sparse store as it comes from the wire.
pub(crate) struct SparseStore<'a> {
    /// Where its tokens start.
    pub start: At,
    /// The salt of its chain.
    pub salt: Salt,
    /// For each block, the step from `start` to the block's end.
    pub ends: Vec<Step>,
    /// The slots of the listed hashes, in order, each with its lookahead part.
    pub listed: &'a [(SlotId, u64)],
}

#[derive(Debug)]
struct Listed {
    slot: SlotId,
    ahead: u64,
    low: u32,
    high: u32,
    /// Its block is known; the slot may be gone.
    fixed: bool,
    /// It stands at a node, but the span floats: noted here because the slot may go.
    elsewhere: Option<Place>,
}

/// An undecided sparse store.
#[derive(Debug)]
pub(super) struct Span {
    field: Field,
    start: At,
    pub(super) class: ClassId,
    ends: Vec<Step>,
    listed: Vec<Listed>,
}

impl Span {
    fn end(&self, block: u32) -> Step {
        self.field.then(self.start.step, self.ends[block as usize])
    }

    /// The block of the span that ends at this step from its frame's origin.
    fn block_at(&self, step: Step) -> Option<u32> {
        let tokens = step.tokens.checked_sub(self.start.step.tokens)?;
        let block = self
            .ends
            .binary_search_by_key(&tokens, |end| end.tokens)
            .ok()?;
        let block = u32::try_from(block).ok()?;
        (self.end(block) == step).then_some(block)
    }

    /// Undecided hashes, each with the first and the last block whose end it may be.
    pub(super) fn open(&self) -> impl Iterator<Item = (SlotId, u32, u32)> + '_ {
        let open = self
            .listed
            .iter()
            .filter(|l| !l.fixed && l.elsewhere.is_none());
        open.map(|l| (l.slot, l.low, l.high))
    }

    pub(super) fn start_step(&self) -> Step {
        self.start.step
    }

    pub(super) fn end_from_start(&self, block: u32) -> Step {
        self.ends[block as usize]
    }

    pub(super) fn first_end(&self) -> Step {
        self.end(0)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.ends.capacity() * size_of::<Step>()
            + self.listed.capacity() * size_of::<Listed>()
    }
}

impl Limbo {
    /// Takes in a sparse store of which at least one hash is undecided.
    pub(crate) fn add_span(&mut self, store: SparseStore<'_>, world: &mut World<'_>) {
        let class = match store.salt {
            Salt::Of(class) => self.root(class),
            Salt::Known(salt) => self.new_class(Some(salt)),
        };
        let num_blocks = u32::try_from(store.ends.len()).unwrap_or(u32::MAX);
        let num_listed = u32::try_from(store.listed.len()).unwrap_or(u32::MAX);
        let listed = (0u32..)
            .zip(store.listed)
            .map(|(i, &(slot, ahead))| Listed {
                slot,
                ahead,
                low: i,
                high: num_blocks.saturating_sub(num_listed - i),
                fixed: false,
                elsewhere: None,
            });
        let span = Span {
            field: self.field,
            start: store.start,
            class,
            ends: store.ends,
            listed: listed.collect(),
        };
        let start = span.start;
        let id = SpanId(self.spans.insert(span));
        match start.frame {
            Frame::Absolute => self.by_start.entry(start.step.local).or_default().push(id),
            Frame::Trie(trie) => self.tries[trie.0].spans.push(id),
        }
        for &(slot, ahead) in store.listed {
            if let Whereabouts::Limbo(entry) = world.slots.whereabouts(slot) {
                self.entries[entry.0].spans.push(id);
                self.entries[entry.0].ahead = ahead;
                let other = self.entries[entry.0].class;
                self.facts.push(Fact::SameSalt(class, other));
            }
        }
        self.facts.push(Fact::Recheck(id));
    }

    /// The trie that a span was in hangs at `base` now.
    pub(super) fn move_span(&mut self, id: SpanId, base: At) {
        let Some(span) = self.spans.get_mut(id.0) else {
            return;
        };
        span.start = At {
            frame: base.frame,
            step: self.field.then(base.step, span.start.step),
        };
        let start = span.start;
        match start.frame {
            Frame::Absolute => self.by_start.entry(start.step.local).or_default().push(id),
            Frame::Trie(trie) => self.tries[trie.0].spans.push(id),
        }
        self.facts.push(Fact::Recheck(id));
    }

    /// Narrows where the hashes of a span may stand, and tells what follows.
    pub(super) fn narrow(&mut self, id: SpanId, world: &mut World<'_>) {
        // What is left unlooked at stays as wide as it is: that is allowed at any time.
        let Some(mut span) = (self.spans.get_mut(id.0))
            .filter(|span| world.effort.spend(1 + 2 * span.listed.len()))
            .map(std::mem::take)
        else {
            return;
        };
        let before: Vec<(u32, u32)> = span.listed.iter().map(|l| (l.low, l.high)).collect();
        let consistent = self.fix_known(&mut span, world) && self.order(&mut span, world);
        if !consistent {
            self.contradictions += 1;
        }
        for listed in &mut span.listed {
            if listed.fixed || listed.low != listed.high || !consistent {
                continue;
            }
            listed.fixed = true;
            let step = (self.field).then(span.start.step, span.ends[listed.low as usize]);
            let at = At {
                frame: span.start.frame,
                step,
            };
            if let Some(place) = listed.elsewhere {
                self.pin_trie(at, place);
            } else if let Whereabouts::Limbo(entry) = world.slots.whereabouts(listed.slot) {
                self.facts.push(Fact::Stands(entry, at, listed.ahead));
            }
        }
        let is_decided = span.listed.iter().all(|l| l.fixed);
        for (listed, before) in span.listed.iter().zip(before) {
            if (listed.low, listed.high) != before
                && let Whereabouts::Limbo(entry) = world.slots.whereabouts(listed.slot)
                && let Some(entry) = self.entries.get(entry.0)
            {
                let others = entry.spans.iter().filter(|other| **other != id);
                self.facts.extend(others.map(|&other| Fact::Recheck(other)));
            }
        }
        self.spans[id.0] = span;
        if is_decided || !consistent {
            self.remove_span(id, world.slots);
        }
    }

    /// Fixes the hashes whose place is known from elsewhere. False: a place outside the span.
    fn fix_known(&mut self, span: &mut Span, world: &World<'_>) -> bool {
        for i in 0..span.listed.len() {
            let listed = &mut span.listed[i];
            if listed.fixed {
                continue;
            }
            if listed.elsewhere.is_none()
                && let Whereabouts::Placed(node) = world.slots.whereabouts(listed.slot)
            {
                let place = world.nodes.place(node);
                listed.elsewhere = Some(place);
                self.facts.push(Fact::HasSalt(span.class, place.salt));
            }
            let Some(step) = self.known_step(&span.listed[i], span.start.frame, world) else {
                continue;
            };
            let Some(block) = span.block_at(step) else {
                return false;
            };
            let listed = &mut span.listed[i];
            (listed.low, listed.high, listed.fixed) = (block, block, true);
        }
        true
    }

    /// Where a listed hash stands in `frame`, if that is known.
    fn known_step(&self, listed: &Listed, frame: Frame, world: &World<'_>) -> Option<Step> {
        if let Some(place) = listed.elsewhere {
            let step = Step {
                tokens: place.boundary,
                local: place.prefix,
            };
            return (frame == Frame::Absolute).then_some(step);
        }
        let Whereabouts::Limbo(entry) = world.slots.whereabouts(listed.slot) else {
            return None;
        };
        self.entries[entry.0]
            .at
            .filter(|at| at.frame == frame)
            .map(|at| at.step)
    }

    /// A placed hash stands at `inner` in a floating trie: the trie has its place.
    pub(crate) fn pin_trie(&mut self, inner: At, place: Place) {
        let Frame::Trie(trie) = inner.frame else {
            return;
        };
        let Some(tokens) = place.boundary.checked_sub(inner.step.tokens) else {
            self.contradictions += 1;
            return;
        };
        let step = Step {
            tokens,
            local: self.field.undo(inner.step, place.prefix),
        };
        let root = self.tries[trie.0].root;
        self.facts.push(Fact::Stands(
            root,
            At {
                frame: Frame::Absolute,
                step,
            },
            0,
        ));
    }

    /// Propagates the order of the listed hashes, skipping boundaries that another hash of the
    /// same salt has. False: no block is left for some hash.
    fn order(&self, span: &mut Span, world: &World<'_>) -> bool {
        let mut next = 0;
        for i in 0..span.listed.len() {
            let mut low = span.listed[i].low.max(next);
            while !span.listed[i].fixed
                && low <= span.listed[i].high
                && !self.may_end(span, i, low, world)
            {
                low += 1;
            }
            span.listed[i].low = low;
            next = low + 1;
        }
        let mut bound = u32::try_from(span.ends.len()).unwrap_or(u32::MAX);
        for i in (0..span.listed.len()).rev() {
            let Some(last) = bound.checked_sub(1) else {
                return false;
            };
            let mut high = span.listed[i].high.min(last);
            while !span.listed[i].fixed
                && high > span.listed[i].low
                && !self.may_end(span, i, high, world)
            {
                high -= 1;
            }
            if high < span.listed[i].low {
                return false;
            }
            span.listed[i].high = high;
            bound = high;
        }
        true
    }

    /// Whether a listed hash may stand at the end of a block: no other hash is known there, and
    /// every other span that lists the hash has that boundary among its own candidates.
    fn may_end(&self, span: &Span, index: usize, block: u32, world: &World<'_>) -> bool {
        let slot = span.listed[index].slot;
        if !world.effort.spend(1) {
            return true;
        }
        if self.is_taken(span, slot, block, world) {
            return false;
        }
        let Whereabouts::Limbo(entry) = world.slots.whereabouts(slot) else {
            return true;
        };
        let end = span.end(block);
        self.entries[entry.0]
            .spans
            .iter()
            .filter_map(|id| self.spans.get(id.0))
            .all(|other| {
                // The span at hand is lent out, so that it is not found among the others.
                if !world.effort.spend(1 + other.listed.len() / 8) {
                    return true;
                }
                let listed = other.listed.iter().find(|l| !l.fixed && l.slot == slot);
                other.start.frame != span.start.frame
                    || listed.is_none_or(|l| {
                        other
                            .block_at(end)
                            .is_some_and(|b| (l.low..=l.high).contains(&b))
                    })
            })
    }

    /// Whether another hash of the same salt is known to stand at the end of a block.
    pub(super) fn is_taken(
        &self,
        span: &Span,
        slot: SlotId,
        block: u32,
        world: &World<'_>,
    ) -> bool {
        if span.start.frame != Frame::Absolute {
            return false;
        }
        let step = span.end(block);
        let class = self.root(span.class);
        let in_class = |e: &EntryId| {
            let entry = &self.entries[e.0];
            entry.slot != slot && self.root(entry.class) == class
        };
        if self
            .by_prefix
            .get(&step.local)
            .is_some_and(|ids| ids.iter().any(in_class))
        {
            return true;
        }
        // An undecided hash is at no node: whatever is held there is another hash.
        let (Some(salt), Whereabouts::Limbo(entry)) =
            (self.label(class), world.slots.whereabouts(slot))
        else {
            return false;
        };
        let ahead = self.entries[entry.0].ahead;
        let place = Place {
            boundary: step.tokens,
            prefix: step.local,
            ahead,
            salt,
        };
        world
            .nodes
            .find(world.nodes.key_of(place), None)
            .is_some_and(|node| {
                let mut planes = world.slots.planes().iter();
                planes.any(|&plane| world.planes.word(plane, node) & world.bit != 0)
            })
    }

    /// Drops a span; its undecided hashes keep their entries.
    pub(super) fn remove_span(&mut self, id: SpanId, slots: &Slots) {
        let Some(span) = self.spans.remove(id.0) else {
            return;
        };
        match span.start.frame {
            Frame::Absolute => {
                let key = span.start.step.local;
                if let Some(ids) = self.by_start.get_mut(&key) {
                    ids.retain(|s| *s != id);
                    if ids.is_empty() {
                        self.by_start.remove(&key);
                    }
                }
            }
            Frame::Trie(trie) => {
                if let Some(trie) = self.tries.get_mut(trie.0) {
                    trie.spans.retain(|s| *s != id);
                }
            }
        }
        for listed in span
            .listed
            .iter()
            .filter(|l| !l.fixed && l.elsewhere.is_none())
        {
            if let Whereabouts::Limbo(entry) = slots.whereabouts(listed.slot)
                && let Some(entry) = self.entries.get_mut(entry.0)
            {
                entry.spans.retain(|s| *s != id);
            }
        }
    }
}

impl Default for Span {
    fn default() -> Self {
        Self {
            field: Field::new(0),
            start: At {
                frame: Frame::Absolute,
                step: Step::NONE,
            },
            class: ClassId(0),
            ends: Vec::new(),
            listed: Vec::new(),
        }
    }
}
