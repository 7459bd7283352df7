//! Groups without events in a snapshot: what was inferred of them. What they are follows from the pod's
//! configuration.
//!
//! ```text
//! tag  [number of the slot | hash (8)]  [1 + page before, depth]  [key of the end (8)]
//! ```
//! A page mostly comes after the one before it, and its hash after that one's in the rank's table of
//! hashes. So most records are a tag. `docs/design/snapshot.md` has the format.

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::pages::{PageId, PageNode, Pages};
use super::recent::RecentPages;
use super::routed::Routes;
use super::{AllChanges, LikelyMarks, MOST_WORK_KEPT, Silent};
use crate::fleet::effort::Effort;
use crate::fleet::presence::nodes::Nodes;
use crate::fleet::presence::slots::{PlacesRead, SlotId, Slots};
use crate::fleet::snapshot::bytes::{Reader, put_small};
use crate::fleet::snapshot::in_order;
use crate::prefix::is_key;

/// The page belongs to a hash.
const IN_USE: u8 = 1 << 0;
/// It is held.
const HELD: u8 = 1 << 1;
/// It comes after the page of the record before.
const AFTER: u8 = 1 << 2;
/// Its hash is that of the slot after the last one that was named.
const NEXT_SLOT: u8 = 1 << 3;
/// Its hash is that of the slot whose number follows.
const OF_SLOT: u8 = 1 << 4;
/// The key of its end is noted.
const KEYED: u8 = 1 << 5;
/// It is that of the slot.
const KEY_OF_SLOT: u8 = 1 << 6;

/// What a snapshot has of the groups without events of one rank.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::fleet) struct SavedSilent {
    pages: SavedPages,
    marks: Vec<SavedMarks>,
    routes: Routes,
    unshown: AllChanges,
    work: Effort,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPages {
    num_pages: u32,
    free: Vec<PageId>,
    has_keys: bool,
    unkeyed: std::ops::Range<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMarks {
    /// How many pages there are; they stand after the records, those first that have not been used for
    /// longest.
    num_live: u32,
    #[serde(serialize_with = "in_order::set")]
    ends: HashSet<PageId>,
}

/// The slot after the last one that a record named.
#[derive(Debug, Default)]
pub(in crate::fleet) struct PageBefore {
    next_slot: u32,
}

impl PageBefore {
    fn next(&self) -> SlotId {
        SlotId(self.next_slot)
    }

    fn go_to(&mut self, slot: Option<SlotId>) {
        self.next_slot = slot.map_or(self.next_slot, |slot| slot.0.saturating_add(1));
    }
}

impl Silent {
    /// How many records the pages have.
    pub(in crate::fleet) fn num_pages(&self) -> usize {
        self.pages.table.len()
    }

    /// Writes the record of a page.
    pub(in crate::fleet) fn save_page(
        &self,
        page: u32,
        slots: &Slots,
        nodes: &Nodes,
        before: &mut PageBefore,
        out: &mut Vec<u8>,
    ) {
        self.pages.save(PageId(page), (slots, nodes), before, out);
    }

    /// What a snapshot has of it besides the records of its pages; appends the pages of the marks.
    pub(in crate::fleet) fn saved(&self, out: &mut Vec<u8>) -> SavedSilent {
        let Self {
            groups: _,
            pools: _,
            page_size: _,
            pages,
            marks,
            routes,
            unshown,
            work,
        } = self;
        SavedSilent {
            pages: pages.saved(),
            marks: marks.iter().map(|marks| marks.saved(out)).collect(),
            routes: routes.clone(),
            unshown: unshown.clone(),
            work: work.clone(),
        }
    }

    /// The same groups with what was read from a snapshot; `None` if it cannot be.
    pub(in crate::fleet) fn restored(
        self,
        saved: SavedSilent,
        slots: &Slots,
        places: &PlacesRead,
        reader: &mut Reader<'_>,
    ) -> Option<Self> {
        let SavedSilent {
            pages,
            marks,
            routes,
            unshown,
            work,
        } = saved;
        let num_groups = self.groups.len();
        let pages = pages.restored((slots, places), reader)?;
        let marks = marks
            .into_iter()
            .zip(self.marks)
            .map(|(saved, marks)| marks.restored(saved, &pages, reader));
        let marks: Option<_> = marks.collect();
        let silent = Self {
            pages,
            marks: marks?,
            routes,
            unshown,
            work: work.at_most(MOST_WORK_KEPT)?,
            ..self
        };
        let is_whole = [silent.marks.len(), silent.unshown.len()] == [num_groups; 2];
        (is_whole && silent.routes.is_sound()).then_some(silent)
    }
}

impl Pages {
    fn saved(&self) -> SavedPages {
        let Self {
            by_hash: _,
            table,
            free,
            by_key,
            unkeyed,
        } = self;
        SavedPages {
            num_pages: u32::try_from(table.len()).expect("fewer than 2^32 pages"),
            free: free.clone(),
            has_keys: by_key.is_some(),
            unkeyed: unkeyed.clone(),
        }
    }

    fn save(
        &self,
        id: PageId,
        (slots, nodes): (&Slots, &Nodes),
        before: &mut PageBefore,
        out: &mut Vec<u8>,
    ) {
        let PageNode {
            hash,
            parent,
            depth,
            num_children: _,
            is_held,
            key,
        } = *self.get(id);
        if self.find(hash) != Some(id) {
            out.push(0);
            return;
        }
        let next = before.next();
        let is_next = slots.hash_in(next, nodes) == Some(hash);
        let slot = is_next.then_some(next).or_else(|| slots.find(hash, nodes));
        let is_after = parent.is_some_and(|parent| {
            Some(parent.0) == id.0.checked_sub(1) && self.depth(parent) + 1 == depth
        });
        let prefix = slot.and_then(|slot| slots.prefix(slot, nodes));
        let flag = |is_so: bool, flag: u8| if is_so { flag } else { 0 };
        out.push(
            IN_USE
                | flag(is_held, HELD)
                | flag(is_after, AFTER)
                | flag(is_next, NEXT_SLOT)
                | flag(slot.is_some() && !is_next, OF_SLOT)
                | flag(key.is_some(), KEYED)
                | flag(key.is_some() && key == prefix, KEY_OF_SLOT),
        );
        match slot {
            Some(slot) if !is_next => put_small(out, slot.0),
            Some(_) => {}
            None => out.extend(hash.to_le_bytes()),
        }
        if !is_after {
            put_small(out, parent.map_or(0, |parent| parent.0 + 1));
            put_small(out, depth);
        }
        if let Some(key) = key.filter(|_| key != prefix) {
            out.extend(key.to_le_bytes());
        }
        before.go_to(slot);
    }
}

impl SavedPages {
    fn restored(self, known: (&Slots, &PlacesRead), reader: &mut Reader<'_>) -> Option<Pages> {
        let Self {
            num_pages,
            free,
            has_keys,
            unkeyed,
        } = self;
        let mut pages = Pages {
            by_hash: HashMap::new(),
            table: Vec::new(),
            free,
            by_key: has_keys.then(HashMap::new),
            unkeyed,
        };
        let mut before = PageBefore::default();
        for id in (0..num_pages).map(PageId) {
            let page = pages.read(id, known, &mut before, reader)?;
            pages.table.push(page);
        }
        for id in 0..pages.table.len() {
            if let Some(parent) = pages.table[id].parent {
                let depth = pages.table[id].depth;
                let parent = pages.table.get_mut(parent.0 as usize)?;
                (parent.depth > 0 && parent.depth < depth).then_some(())?;
                parent.num_children += 1;
            }
        }
        pages.is_sound().then_some(pages)
    }
}

/// A page without a hash; no other has a depth of 0.
const FREE: PageNode = PageNode {
    hash: 0,
    parent: None,
    depth: 0,
    num_children: 0,
    is_held: false,
    key: None,
};

impl Pages {
    /// Reads the record of a page, which may be free. `None` if it cannot be one.
    fn read(
        &mut self,
        id: PageId,
        (slots, places): (&Slots, &PlacesRead),
        before: &mut PageBefore,
        reader: &mut Reader<'_>,
    ) -> Option<PageNode> {
        let tag = reader.byte()?;
        if tag == 0 {
            return Some(FREE);
        }
        let slot = match tag & (NEXT_SLOT | OF_SLOT) {
            0 => None,
            NEXT_SLOT => Some(before.next()),
            OF_SLOT => Some(SlotId(reader.small()?)),
            _ => return None,
        };
        let hash = match slot {
            Some(slot) => slots.own_key(slot)?,
            None => reader.u64()?,
        };
        let (parent, depth) = if tag & AFTER == 0 {
            let (parent, depth) = (reader.small()?, reader.small()?);
            (parent.checked_sub(1).map(PageId), depth)
        } else {
            let parent = PageId(id.0.checked_sub(1)?);
            (Some(parent), self.depth(parent).checked_add(1)?)
        };
        let key = match tag & (KEYED | KEY_OF_SLOT) {
            0 => None,
            KEYED => Some(reader.u64()?),
            KEY_OF_SLOT => return None,
            _ => Some(places.prefix(slots, slot?)?),
        };
        before.go_to(slot);
        let is_sound = tag & IN_USE != 0 && tag >> 7 == 0 && depth > 0 && key.is_none_or(is_key);
        let is_first = self.by_hash.insert(hash, id).is_none();
        if let Some(key) = key {
            (self.by_key.as_mut()?.insert(key, id).is_none()).then_some(())?;
        }
        (is_sound && is_first).then_some(PageNode {
            hash,
            parent,
            depth,
            num_children: 0,
            is_held: tag & HELD != 0,
            key,
        })
    }

    /// Whether free indices are those without a page, each once, and no page is there for nothing.
    fn is_sound(&self) -> bool {
        let mut is_free = vec![false; self.table.len()];
        let frees_each = self.free.iter().all(|id| {
            let slot = is_free.get_mut(id.0 as usize);
            slot.is_some_and(|slot| !std::mem::replace(slot, true))
        });
        let is_needed = |page: &PageNode| page.is_held || page.num_children > 0;
        let table = self.table.iter().zip(is_free);
        let mut table = table.map(|(page, is_free)| is_free || page.depth > 0 && is_needed(page));
        let num_free = self.table.iter().filter(|page| page.depth == 0).count();
        frees_each
            && num_free == self.free.len()
            && table.all(|is_so| is_so)
            && self.table.get(self.unkeyed.clone()).is_some()
    }
}

impl LikelyMarks {
    fn saved(&self, out: &mut Vec<u8>) -> SavedMarks {
        let Self {
            need: _,
            capacity: _,
            live,
            room: _,
            window: _,
            chunk: _,
            page_size: _,
            ends,
        } = self;
        let mut next = 0u32;
        for page in live.iter() {
            put_small(out, to_small(page.0.wrapping_sub(next)));
            next = page.0.wrapping_add(1);
        }
        SavedMarks {
            num_live: u32::try_from(live.len()).expect("fewer than 2^32 pages"),
            ends: ends.clone(),
        }
    }

    fn restored(self, saved: SavedMarks, pages: &Pages, reader: &mut Reader<'_>) -> Option<Self> {
        let SavedMarks { num_live, ends } = saved;
        let is_page = |page: PageId| (page.0 as usize) < pages.table.len();
        let mut order = RecentPages::default();
        let mut next = 0u32;
        for _ in 0..num_live {
            let page = PageId(next.wrapping_add(of_small(reader.small()?)));
            (is_page(page) && pages.is_held(page) && order.touch(page)).then_some(())?;
            next = page.0.wrapping_add(1);
        }
        let are_pages = ends.iter().all(|page| is_page(*page));
        are_pages.then_some(Self {
            live: order,
            ends,
            ..self
        })
    }
}

/// A step forward or back, as a number that is small if the step is.
const fn to_small(step: u32) -> u32 {
    (step << 1) ^ (step.cast_signed() >> 31).cast_unsigned()
}

/// The step of such a number.
const fn of_small(number: u32) -> u32 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_in_both_directions_are_small_numbers() {
        let small = [0, 1, 1u32.wrapping_neg(), 63, 64u32.wrapping_neg()].map(to_small);
        assert_eq!(small, [0, 2, 1, 126, 127]);
        for step in [0, 1, 7, 1 << 31, u32::MAX, u32::MAX >> 1] {
            assert_eq!(of_small(to_small(step)), step);
        }
    }
}
