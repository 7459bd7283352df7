//! Groups without events in a snapshot: what was inferred of them. What they are follows from the pod's
//! configuration.

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::pages::{PageId, PageNode, Pages};
use super::recent::RecentPages;
use super::routed::Routes;
use super::{AllChanges, LikelyMarks, MOST_WORK_KEPT, Silent};
use crate::fleet::effort::Effort;
use crate::fleet::presence::slots::EngineKey;
use crate::fleet::snapshot::in_order;
use crate::prefix::{PrefixKey, is_key};

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
    /// By index; `None` is free.
    table: Vec<Option<SavedPage>>,
    free: Vec<PageId>,
    has_keys: bool,
    unkeyed: std::ops::Range<usize>,
}

/// The hash, the page before, how many pages end there, whether it is held, and the key of its end.
#[derive(Debug, Serialize, Deserialize)]
struct SavedPage(EngineKey, Option<PageId>, u32, bool, Option<PrefixKey>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMarks {
    /// Those first that have not been used for longest.
    live: Vec<PageId>,
    #[serde(serialize_with = "in_order::set")]
    ends: HashSet<PageId>,
}

impl Silent {
    /// What a snapshot has of it.
    pub(in crate::fleet) fn saved(&self) -> SavedSilent {
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
            marks: marks.iter().map(LikelyMarks::saved).collect(),
            routes: routes.clone(),
            unshown: unshown.clone(),
            work: work.clone(),
        }
    }

    /// The same groups with what was read from a snapshot; `None` if it cannot be.
    pub(in crate::fleet) fn restored(self, saved: SavedSilent) -> Option<Self> {
        let SavedSilent {
            pages,
            marks,
            routes,
            unshown,
            work,
        } = saved;
        let num_groups = self.groups.len();
        let pages = pages.restored()?;
        let marks = marks
            .into_iter()
            .zip(self.marks)
            .map(|(saved, marks)| marks.restored(saved, &pages));
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
            by_hash,
            table,
            free,
            by_key,
            unkeyed,
        } = self;
        let save = |(id, page): (u32, &PageNode)| {
            let PageNode {
                hash,
                parent,
                depth,
                num_children: _,
                is_held,
                key,
            } = *page;
            let is_in_use = by_hash.get(&hash) == Some(&PageId(id));
            is_in_use.then_some(SavedPage(hash, parent, depth, is_held, key))
        };
        SavedPages {
            table: (0u32..).zip(table).map(save).collect(),
            free: free.clone(),
            has_keys: by_key.is_some(),
            unkeyed: unkeyed.clone(),
        }
    }
}

impl SavedPages {
    fn restored(self) -> Option<Pages> {
        let Self {
            table: saved,
            free,
            has_keys,
            unkeyed,
        } = self;
        let mut pages = Pages {
            by_hash: HashMap::with_capacity(saved.len()),
            table: saved
                .iter()
                .map(|page| SavedPage::node(page.as_ref()))
                .collect(),
            free,
            by_key: has_keys.then(HashMap::new),
            unkeyed,
        };
        for (id, page) in (0u32..).map(PageId).zip(&saved) {
            let Some(SavedPage(hash, parent, depth, _, key)) = *page else {
                continue;
            };
            if pages.by_hash.insert(hash, id).is_some() {
                return None;
            }
            if let Some(key) = key {
                let is_first = pages.by_key.as_mut()?.insert(key, id).is_none();
                is_first.then_some(()).filter(|()| is_key(key))?;
            }
            if let Some(parent) = parent {
                let SavedPage(_, _, before, _, _) = saved.get(parent.0 as usize)?.as_ref()?;
                (*before < depth).then_some(())?;
                pages.table[parent.0 as usize].num_children += 1;
            }
        }
        pages.is_sound(&saved).then_some(pages)
    }
}

impl SavedPage {
    fn node(page: Option<&Self>) -> PageNode {
        let Self(hash, parent, depth, is_held, key) = page.unwrap_or(&Self::FREE);
        PageNode {
            hash: *hash,
            parent: *parent,
            depth: *depth,
            num_children: 0,
            is_held: *is_held,
            key: *key,
        }
    }

    const FREE: Self = Self(0, None, 0, false, None);
}

impl Pages {
    /// Whether free indices are those without a page, each once, and no page is there for nothing.
    fn is_sound(&self, saved: &[Option<SavedPage>]) -> bool {
        let mut is_free = vec![false; saved.len()];
        let frees_each = self.free.iter().all(|id| {
            let slot = is_free.get_mut(id.0 as usize);
            slot.is_some_and(|slot| !std::mem::replace(slot, true))
        });
        let is_needed = |page: &PageNode| page.is_held || page.num_children > 0;
        frees_each
            && saved.iter().map(Option::is_none).eq(is_free)
            && self
                .by_hash
                .values()
                .all(|id| is_needed(&self.table[id.0 as usize]))
            && self.unkeyed.end <= self.table.len()
    }
}

impl LikelyMarks {
    fn saved(&self) -> SavedMarks {
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
        SavedMarks {
            live: live.iter().collect(),
            ends: ends.clone(),
        }
    }

    fn restored(self, saved: SavedMarks, pages: &Pages) -> Option<Self> {
        let SavedMarks { live, ends } = saved;
        let is_page = |page: PageId| (page.0 as usize) < pages.table.len();
        let mut order = RecentPages::default();
        let in_order = live
            .into_iter()
            .all(|page| is_page(page) && pages.is_held(page) && order.touch(page));
        let are_pages = ends.iter().all(|page| is_page(*page));
        (in_order && are_pages).then_some(Self {
            live: order,
            ends,
            ..self
        })
    }
}
