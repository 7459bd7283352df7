//! Forgetting what can no longer matter, and what a memory limit does not allow.
//!
//! A name may go only when nothing undecided still speaks of it: otherwise its hash would come
//! back with a second identity. So a hash stays while it is held, while a floating trie hangs
//! below it that holds something, and while a span lists it beside something held.

use hashbrown::HashSet;

use super::{Class, ClassId, Limbo, Slab};
use crate::fleet::nodes::SaltId;
use crate::fleet::slots::{EntryId, SlotId, Slots, Whereabouts};

/// Entries and spans that a rank may keep without a sweep: about a megabyte.
const ALLOWANCE: usize = 4096;

impl Limbo {
    /// Sweeps when limbo has doubled since the last sweep, beyond an allowance: what is known of a
    /// hash stays true when its last copy goes, and names it again when it comes back.
    pub(crate) fn sweep_if_grown(&mut self, slots: &mut Slots) {
        if self.entries.len() + self.spans.len() > (2 * self.swept_at).max(ALLOWANCE) {
            self.sweep(slots);
        }
    }

    /// Forgets every undecided hash that nothing held depends on.
    pub(crate) fn sweep(&mut self, slots: &mut Slots) {
        let live = self.live_entries(slots);
        let dead_spans: Vec<u32> = (self.spans.iter())
            .filter(|(_, s)| !s.open().any(|(slot, ..)| is_live(slot, slots, &live)))
            .map(|(id, _)| id)
            .collect();
        for id in dead_spans {
            self.remove_span(super::SpanId(id), slots);
        }
        let dead: Vec<EntryId> = (self.entries.iter())
            .map(|(id, _)| EntryId(id))
            .filter(|id| !live.contains(id))
            .collect();
        for id in dead {
            self.drop_trie_of(id);
            let slot = self.entries[id.0].slot;
            self.remove_entry(id);
            slots.forget(slot);
        }
        self.facts.clear();
        self.rebuild_classes();
        self.swept_at = self.entries.len() + self.spans.len();
    }

    /// The entries that something held depends on.
    fn live_entries(&self, slots: &Slots) -> HashSet<EntryId> {
        let mut live: HashSet<EntryId> = (self.entries.iter())
            .filter(|(_, e)| slots.is_held(e.slot))
            .map(|(id, _)| EntryId(id))
            .collect();
        loop {
            let before = live.len();
            for (_, trie) in self.tries.iter() {
                let held = |id: &EntryId| live.contains(id);
                let in_span = |id: &super::SpanId| {
                    self.spans[id.0]
                        .open()
                        .any(|(slot, ..)| is_live(slot, slots, &live))
                };
                if trie.members.iter().any(held) || trie.spans.iter().any(in_span) {
                    live.insert(trie.root);
                }
            }
            for (_, span) in self.spans.iter() {
                if span.open().any(|(slot, ..)| is_live(slot, slots, &live)) {
                    for (slot, ..) in span.open() {
                        if let Whereabouts::Limbo(entry) = slots.whereabouts(slot) {
                            live.insert(entry);
                        }
                    }
                }
            }
            if live.len() == before {
                return live;
            }
        }
    }

    fn drop_trie_of(&mut self, id: EntryId) {
        let Some(trie_id) = self.entries[id.0].trie.take() else {
            return;
        };
        let Some(trie) = self.tries.remove(trie_id.0) else {
            return;
        };
        self.unindex(trie_id, &trie.first_tokens);
    }

    fn rebuild_classes(&mut self) {
        let old = std::mem::take(&mut self.classes);
        let root = |mut id: u32| {
            while old[id as usize].parent != id {
                id = old[id as usize].parent;
            }
            id
        };
        let mut renamed: hashbrown::HashMap<u32, u32> = hashbrown::HashMap::new();
        let mut classes: Vec<Class> = Vec::new();
        let mut rename = |id: ClassId| {
            let old_root = root(id.0);
            *renamed.entry(old_root).or_insert_with(|| {
                let new = u32::try_from(classes.len()).unwrap_or(u32::MAX);
                let label: Option<SaltId> = old[old_root as usize].label;
                classes.push(Class {
                    parent: new,
                    label,
                    members: Vec::new(),
                });
                new
            })
        };
        for (_, entry) in self.entries.iter_mut() {
            entry.class = ClassId(rename(entry.class));
        }
        for (_, span) in self.spans.iter_mut() {
            span.class = ClassId(rename(span.class));
        }
        for (id, entry) in self.entries.iter() {
            classes[entry.class.0 as usize].members.push(EntryId(id));
        }
        self.classes = classes;
    }

    /// Bytes held, by estimate of what each item carries.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        let spans: usize = self.spans.iter().map(|(_, s)| s.bytes()).sum();
        let members: usize = self
            .tries
            .iter()
            .map(|(_, t)| t.members.capacity() * 4)
            .sum();
        spans
            + members
            + self.entries.len() * (size_of::<super::Entry>() + 48)
            + self.tries.len() * (size_of::<super::Trie>() + 32)
            + self.classes.len() * size_of::<Class>()
    }

    /// Panics unless entries, tries, spans and indices agree.
    pub(crate) fn check_integrity(&self, slots: &Slots) {
        assert!(self.facts.is_empty(), "facts are left unsolved");
        for (id, entry) in self.entries.iter() {
            assert_eq!(
                slots.whereabouts(entry.slot),
                Whereabouts::Limbo(EntryId(id)),
                "entry {id} and its slot disagree"
            );
            if let Some(trie) = entry.trie {
                assert_eq!(
                    self.tries[trie.0].root,
                    EntryId(id),
                    "trie below entry {id}"
                );
                assert!(
                    entry.at.is_none(),
                    "entry {id} has a position and a floating trie"
                );
            }
            if let Some(super::At {
                frame: super::Frame::Trie(trie),
                ..
            }) = entry.at
            {
                assert!(
                    self.tries[trie.0].members.contains(&EntryId(id)),
                    "entry {id} is not among the members of its trie"
                );
            }
        }
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

fn is_live(slot: SlotId, slots: &Slots, live: &HashSet<EntryId>) -> bool {
    matches!(slots.whereabouts(slot), Whereabouts::Limbo(entry) if live.contains(&entry))
}

impl<T> Slab<T> {
    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> + '_ {
        (0u32..)
            .zip(&mut self.items)
            .filter_map(|(id, item)| item.as_mut().map(|item| (id, item)))
    }
}
