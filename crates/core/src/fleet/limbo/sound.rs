//! Whether what a snapshot says of undecided hashes can be: every index leads somewhere, every ring
//! closes, every path ends.
//!
//! Limbo is written as it is, so what is read must have the laws that every other operation keeps. A
//! file whose laws are broken would lead to a panic or to an endless search later; it is refused here.
//! The cost is proportional to what is read.

use super::Limbo;
use super::fact::{ClassId, Frame, Position, SpanId, TrieId};
use super::records::{OfClass, OfFrame};
use super::slab::{Linked, Slab};
use super::span::{Listed, SparseSpan};
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::{LimboId, SlotId, Slots};
use crate::prefix::{KeyField, Step, is_key};

/// No prompt has so many tokens; positions are added up, so the sum of a few stays a number.
const MOST_TOKENS: u32 = 1 << 28;
/// The blocks between two ends of tails are a small number (`Catalog::tails`).
const MOST_EVERY: u32 = 64;

/// Takes what was read from a snapshot, for an index with this field. Every undecided slot then has its
/// entry. `None` if it cannot be.
pub(crate) fn restored(
    saved: Limbo,
    field: KeyField,
    narrows: bool,
    slots: &mut Slots,
) -> Option<Limbo> {
    let limbo = Limbo {
        field,
        narrows,
        ..saved
    };
    let read = AsRead(&limbo);
    let is_sound = read.has_sound_records(slots) && read.has_sound_rings();
    (is_sound && enter_slots(&limbo, slots)).then_some(limbo)
}

/// Ends the paths that look-ups shorten by and by, so that equal limbos are written alike.
pub(crate) fn shorten_paths(limbo: &Limbo) {
    for (id, class) in (0u32..).zip(&limbo.classes) {
        class.parent.set(limbo.root(ClassId(id)).0);
    }
    for id in (0u32..).take(limbo.tries.len()) {
        limbo.resolve(Position {
            frame: Frame::Trie(TrieId(id)),
            step: Step::NONE,
        });
    }
}

/// Points each undecided slot to its entry. False if one has none, or two.
fn enter_slots(limbo: &Limbo, slots: &mut Slots) -> bool {
    let mut entries = limbo.entries.iter();
    entries.all(|(id, entry)| slots.enter_limbo(entry.slot, LimboId(id)))
        && slots.num_awaited() == 0
}

/// What was read.
#[derive(Clone, Copy)]
struct AsRead<'a>(&'a Limbo);

impl AsRead<'_> {
    fn has_sound_records(self, slots: &Slots) -> bool {
        let end = slots.end();
        let has_slot = |slot: SlotId| (slot.0 as usize) < end;
        self.0.entries.is_sound()
            && self.0.spans.is_sound()
            && self.classes_end()
            && self.tries_end()
            && self.0.entries.iter().all(|(id, entry)| {
                has_slot(entry.slot) && is_key(entry.ahead) && self.is_sound_entry(LimboId(id))
            })
            && self.0.spans.iter().all(|(id, span)| {
                span.listed.iter().all(|listed| has_slot(listed.slot))
                    && self.is_sound_span(SpanId(id), span)
            })
            && self.has_sound_first_tokens()
            && self.0.span_bytes
                == self
                    .0
                    .spans
                    .iter()
                    .map(|(_, s)| s.list_bytes())
                    .sum::<usize>()
    }

    /// Every class leads to one that is its own parent, and salts and members are kept there.
    fn classes_end(self) -> bool {
        let parents: Vec<u32> = self.0.classes.iter().map(|c| c.parent.get()).collect();
        let up = |id: u32| (parents[id as usize] != id).then_some(parents[id as usize]);
        parents.iter().all(|id| (*id as usize) < parents.len())
            && ends(parents.len(), up)
            && (0u32..).zip(&self.0.classes).all(|(id, class)| {
                let is_root = class.parent.get() == id;
                class.label.is_none_or(|salt| is_key(salt.0))
                    && (is_root || class.members.is_none())
            })
    }

    /// Every trie floats below a hash that knows it, or hangs, and what it hangs in ends.
    fn tries_end(self) -> bool {
        let outer = |id: u32| match self.0.tries[id as usize].hangs.get()?.frame {
            Frame::Trie(trie) => Some(trie.0),
            Frame::Absolute => None,
        };
        let is_sound = |(id, trie): (u32, &super::Trie)| {
            if let Some(at) = trie.hangs.get() {
                self.is_position(at)
                    && (trie.members.is_none() && trie.spans.is_none())
                    && trie.first_tokens.is_empty()
            } else {
                let root = self.0.entries.get(trie.root.0);
                root.is_some_and(|root| root.trie == Some(TrieId(id)))
            }
        };
        (0u32..).zip(&self.0.tries).all(is_sound) && ends(self.0.tries.len(), outer)
    }

    fn is_position(self, at: Position) -> bool {
        let is_frame = match at.frame {
            Frame::Trie(trie) => (trie.0 as usize) < self.0.tries.len(),
            Frame::Absolute => true,
        };
        is_frame && is_step(at.step)
    }

    fn is_sound_entry(self, id: LimboId) -> bool {
        let entry = &self.0.entries[id.0];
        let floats = entry.trie.is_none_or(|trie| {
            let trie = self.0.tries.get(trie.0 as usize);
            entry.at.is_none() && trie.is_some_and(|t| t.root == id && t.hangs.get().is_none())
        });
        let is_named = |(at, &(span, i)): (u32, &(SpanId, u32))| {
            let span = self.0.spans.get(span.0);
            let listed = span.and_then(|span| span.listed.get(i as usize));
            listed.is_some_and(|l| l.entry == Some(id) && l.named_at == at && l.slot == entry.slot)
        };
        (entry.class.0 as usize) < self.0.classes.len()
            && entry.at.is_none_or(|at| self.is_position(at))
            && floats
            && (0u32..).zip(&entry.spans).all(is_named)
    }

    fn is_sound_span(self, id: SpanId, span: &SparseSpan) -> bool {
        let num_blocks = u32::try_from(span.ends.len()).unwrap_or(u32::MAX);
        let is_listed = |(i, listed): (u32, &Listed)| {
            let is_known = match listed.entry {
                None => listed.elsewhere.is_some(),
                Some(entry) => self.0.entries.get(entry.0).is_some_and(|entry| {
                    entry.spans.get(listed.named_at as usize) == Some(&(id, i))
                }),
            };
            (is_known || (listed.fixed && listed.entry.is_none()))
                && listed.low <= listed.high
                && listed.high < num_blocks
                && is_key(listed.ahead)
                && listed.elsewhere.is_none_or(is_place)
        };
        let is_tail = |every: u32| (2..=MOST_EVERY).contains(&every);
        (span.class.0 as usize) < self.0.classes.len()
            && self.is_position(span.start)
            && !span.is_dirty
            && span.ends.iter().all(|end| end.tokens > 0 && is_step(*end))
            && span.ends.is_sorted_by(|a, b| a.tokens < b.tokens)
            && span
                .tails
                .is_none_or(|t| is_tail(t.every) && t.blocks < MOST_TOKENS)
            && (0u32..).zip(&span.listed).all(is_listed)
    }

    fn has_sound_first_tokens(self) -> bool {
        let mut indexed = self.0.by_first_token.iter();
        let listed: usize = self
            .0
            .tries
            .iter()
            .map(|trie| trie.first_tokens.len())
            .sum();
        indexed.all(|(token, trie)| {
            let trie = self.0.tries.get(trie.0 as usize);
            trie.is_some_and(|trie| trie.first_tokens.contains(token))
        }) && listed == self.0.by_first_token.len()
    }

    /// Every item of a ring names its neighbours, and every owner has one ring of all that is its own.
    fn has_sound_rings(self) -> bool {
        let all = |_: u32| true;
        let placed = |id: u32| self.0.entries[id].at.is_some();
        self.0.entries.is_linked::<OfClass>(all)
            && self.0.entries.is_linked::<OfFrame>(placed)
            && self.0.spans.is_linked::<OfFrame>(all)
            && self.rings_of_classes() == Some(self.0.entries.len())
            && self.rings_of_hashes()
                == Some(self.0.entries.iter().filter(|(id, _)| placed(*id)).count())
            && self.rings_of_spans() == Some(self.0.spans.len())
    }

    /// How many hashes are in the rings of classes; `None` if one is in another's ring.
    fn rings_of_classes(self) -> Option<usize> {
        let owners = (0u32..).zip(&self.0.classes);
        count_rings::<OfClass, _>(
            &self.0.entries,
            owners.filter_map(|(id, class)| Some((ClassId(id), class.members?.0))),
            |class, id| self.0.class_of(LimboId(id)) == class,
        )
    }

    fn rings_of_hashes(self) -> Option<usize> {
        let of_tries = (0u32..).zip(&self.0.tries);
        let of_tries =
            of_tries.filter_map(|(id, trie)| Some((Frame::Trie(TrieId(id)), 0, trie.members?.0)));
        let absolute = self
            .0
            .by_prefix
            .iter()
            .map(|(key, head)| (Frame::Absolute, *key, head.0));
        let owners = of_tries
            .chain(absolute)
            .map(|(frame, key, head)| ((frame, key), head));
        count_rings::<OfFrame, _>(&self.0.entries, owners, |owner, id| {
            let at = self.0.entries[id].at.map(|at| self.0.resolve(at));
            at.map(owner_at) == Some(owner)
        })
    }

    fn rings_of_spans(self) -> Option<usize> {
        let of_tries = (0u32..).zip(&self.0.tries);
        let of_tries =
            of_tries.filter_map(|(id, trie)| Some((Frame::Trie(TrieId(id)), 0, trie.spans?.0)));
        let absolute = self
            .0
            .by_start
            .iter()
            .map(|(key, head)| (Frame::Absolute, *key, head.0));
        let owners = of_tries
            .chain(absolute)
            .map(|(frame, key, head)| ((frame, key), head));
        count_rings::<OfFrame, _>(&self.0.spans, owners, |owner, id| {
            owner_at(self.0.resolve(self.0.spans[id].start)) == owner
        })
    }
}

/// What keeps the ring of the records at a position: a trie, or a key.
fn owner_at(at: Position) -> (Frame, u64) {
    match at.frame {
        Frame::Trie(_) => (at.frame, 0),
        Frame::Absolute => (at.frame, at.step.local),
    }
}

/// How many items the rings of these owners have; `None` if an item is not its owner's. The links are
/// known to be mutual, so every ring closes.
fn count_rings<Ring, Owner: Copy>(
    items: &Slab<impl Linked<Ring>>,
    owners: impl Iterator<Item = (Owner, u32)>,
    is_of: impl Fn(Owner, u32) -> bool,
) -> Option<usize> {
    let mut count = 0;
    for (owner, head) in owners {
        items.get(head).filter(|_| is_of(owner, head))?;
        for id in items.ring::<Ring>(Some(head)) {
            if !is_of(owner, id) {
                return None;
            }
            count += 1;
        }
    }
    Some(count)
}

/// Whether every path from one of so many items to the next one ends.
fn ends(len: usize, next: impl Fn(u32) -> Option<u32>) -> bool {
    let mut is_known = vec![false; len];
    for start in 0..len {
        let (mut path, mut at) = (Vec::new(), u32::try_from(start).ok());
        while let Some(id) = at.filter(|id| !is_known[*id as usize]) {
            if path.len() == len {
                return false;
            }
            path.push(id);
            at = next(id);
        }
        for id in path {
            is_known[id as usize] = true;
        }
    }
    true
}

fn is_step(step: Step) -> bool {
    step.tokens < MOST_TOKENS && is_key(step.local)
}

fn is_place(place: Place) -> bool {
    place.boundary < MOST_TOKENS
        && [place.prefix, place.ahead, place.salt.0]
            .into_iter()
            .all(is_key)
}

impl<T> Slab<T> {
    /// Whether the free indices are those without an item, each once.
    fn is_sound(&self) -> bool {
        let mut is_free = vec![false; self.items.len()];
        self.free.iter().all(|id| {
            let slot = is_free.get_mut(*id as usize);
            slot.is_some_and(|slot| !std::mem::replace(slot, true))
        }) && self.items.iter().map(Option::is_none).eq(is_free)
    }

    /// Whether each of these items names neighbours among them that name it.
    fn is_linked<Ring>(&self, is_in: impl Fn(u32) -> bool) -> bool
    where
        T: Linked<Ring>,
    {
        let is_mutual = |(id, item): (u32, &T)| {
            let after = item.links().after;
            self.get(after)
                .is_some_and(|next| is_in(after) && next.links().before == id)
        };
        self.iter().filter(|(id, _)| is_in(*id)).all(is_mutual)
    }
}
