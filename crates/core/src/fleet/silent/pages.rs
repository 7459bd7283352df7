//! The full-attention pages of one rank as a tree, by the engine's hashes.

use serde::{Deserialize, Serialize};
use std::ops::Range;

use hashbrown::HashMap;

use crate::fleet::presence::slots::EngineKey;
use crate::prefix::PrefixKey;

/// Index of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PageId(pub(super) u32);

#[derive(Debug, Clone, Copy)]
pub(super) struct PageNode {
    pub(super) hash: EngineKey,
    pub(super) parent: Option<PageId>,
    /// How many pages there are from the start of the prompt to its end.
    pub(super) depth: u32,
    pub(super) num_children: u32,
    pub(super) is_held: bool,
    /// The key of its end, if it was noted.
    pub(super) key: Option<PrefixKey>,
}

/// The pages that are held, and those without which they would have no parent.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pub(super) by_hash: HashMap<EngineKey, PageId>,
    pub(super) table: Vec<PageNode>,
    pub(super) free: Vec<PageId>,
    /// The pages by the keys of their ends, once they are asked for.
    pub(super) by_key: Option<HashMap<PrefixKey, PageId>>,
    /// The part of the table whose pages were there before and have not been asked for their keys.
    pub(super) unkeyed: Range<usize>,
}

impl Pages {
    /// The page of a hash.
    pub(super) fn find(&self, hash: EngineKey) -> Option<PageId> {
        self.by_hash.get(&hash).copied()
    }

    /// The hash of a page.
    pub(super) fn hash(&self, page: PageId) -> EngineKey {
        self.get(page).hash
    }

    /// The number of pages up to the end of a page, counted from the first one whose parent is known.
    pub(super) fn depth(&self, page: PageId) -> u32 {
        self.get(page).depth
    }

    /// Whether a page is held.
    pub(super) fn is_held(&self, page: PageId) -> bool {
        self.get(page).is_held
    }

    /// A page, the page before it, and so on to the start of the prompt.
    pub(super) fn back_from(&self, page: Option<PageId>) -> impl Iterator<Item = PageId> + '_ {
        std::iter::successors(page, |&page| self.get(page).parent)
    }

    /// Notes that a page is held after another one. A page that is known stays where it is.
    pub(super) fn store(&mut self, hash: EngineKey, parent: Option<PageId>) -> PageId {
        if let Some(page) = self.find(hash) {
            self.get_mut(page).is_held = true;
            return page;
        }
        let depth = 1 + parent.map_or(0, |parent| self.depth(parent));
        let page = PageNode {
            hash,
            parent,
            depth,
            num_children: 0,
            is_held: true,
            key: None,
        };
        let id = if let Some(id) = self.free.pop() {
            *self.get_mut(id) = page;
            id
        } else {
            self.table.push(page);
            PageId(u32::try_from(self.table.len() - 1).expect("fewer than 2^32 pages"))
        };
        self.by_hash.insert(hash, id);
        if let Some(parent) = parent {
            self.get_mut(parent).num_children += 1;
        }
        id
    }

    /// Notes that a page is no longer held. It is forgotten, with all pages before it that are not
    /// held, unless a page after it is known.
    pub(super) fn remove(&mut self, page: PageId) {
        self.get_mut(page).is_held = false;
        let mut last = Some(page);
        while let Some(page) = last
            && let PageNode {
                hash,
                parent,
                num_children: 0,
                is_held: false,
                key,
                ..
            } = *self.get(page)
        {
            if let (Some(by_key), Some(key)) = (&mut self.by_key, key) {
                by_key.remove(&key);
            }
            self.by_hash.remove(&hash);
            self.free.push(page);
            if let Some(parent) = parent {
                self.get_mut(parent).num_children -= 1;
            }
            last = parent;
        }
        if self.by_hash.is_empty() {
            self.clear();
        }
    }

    /// Forgets all pages, but not whether keys are noted.
    pub(super) fn clear(&mut self) {
        let by_key = self.by_key.as_ref().map(|_| HashMap::new());
        *self = Self {
            by_key,
            ..Self::default()
        };
    }

    /// Whether the keys of pages are noted.
    pub(super) fn has_keys(&self) -> bool {
        self.by_key.is_some()
    }

    /// Notes keys from now on. Returns the hashes of at most so many pages whose keys are still to be
    /// noted; none if there are no more. Hashes that are forgotten may be among them.
    pub(super) fn take_unkeyed(&mut self, most: usize) -> Vec<EngineKey> {
        if self.by_key.is_none() {
            self.by_key = Some(HashMap::with_capacity(self.by_hash.len()));
            self.unkeyed = 0..self.table.len();
        }
        let Range { start, end } = self.unkeyed;
        self.unkeyed.start = start.saturating_add(most).min(end);
        let taken = &self.table[start..self.unkeyed.start];
        taken.iter().map(|page| page.hash).collect()
    }

    /// Forgets the keys, and notes none from now on.
    pub(super) fn forget_keys(&mut self) {
        if self.by_key.take().is_some() {
            for page in &mut self.table {
                page.key = None;
            }
        }
    }

    /// Notes the key of the boundary at which a page ends.
    pub(super) fn note_key(&mut self, hash: EngineKey, key: PrefixKey) {
        let by_key = self.by_key.get_or_insert_default();
        if let Some(page) = self.by_hash.get(&hash)
            && self.table[page.0 as usize].key.is_none()
            && !by_key.contains_key(&key)
        {
            by_key.insert(key, *page);
            self.table[page.0 as usize].key = Some(key);
        }
    }

    /// The pages with these keys that are held, up to the first that is not.
    pub(super) fn path(&self, keys: &[PrefixKey]) -> Vec<PageId> {
        let Some(by_key) = &self.by_key else {
            return Vec::new();
        };
        let pages = keys.iter().map_while(|key| by_key.get(key).copied());
        pages.take_while(|page| self.is_held(*page)).collect()
    }

    /// Whether the page that ends at a key is held.
    pub(super) fn has(&self, key: PrefixKey) -> bool {
        let page = self.by_key.as_ref().and_then(|pages| pages.get(&key));
        page.is_some_and(|page| self.is_held(*page))
    }

    pub(super) fn get(&self, page: PageId) -> &PageNode {
        &self.table[page.0 as usize]
    }

    fn get_mut(&mut self, page: PageId) -> &mut PageNode {
        &mut self.table[page.0 as usize]
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let by_key = self.by_key.as_ref();
        self.by_hash.allocation_size()
            + by_key.map_or(0, HashMap::allocation_size)
            + self.table.capacity() * size_of::<PageNode>()
            + self.free.capacity() * size_of::<PageId>()
    }

    /// Panics unless every page is found by its hash and knows how many pages come right after it.
    pub(super) fn check_integrity(&self) {
        assert_eq!(self.by_hash.len() + self.free.len(), self.table.len());
        let mut children: HashMap<PageId, u32> = HashMap::new();
        for (&hash, &page) in &self.by_hash {
            assert_eq!(self.hash(page), hash, "a page by its hash");
            if let Some(parent) = self.get(page).parent {
                assert!(
                    self.depth(parent) < self.depth(page),
                    "a page before its parent"
                );
                *children.entry(parent).or_insert(0) += 1;
            }
        }
        for (key, page) in self.by_key.iter().flatten() {
            assert_eq!(self.get(*page).key, Some(*key), "a page by its key");
        }
        for &page in self.by_hash.values() {
            let known = children.get(&page).copied().unwrap_or(0);
            assert_eq!(self.get(page).num_children, known, "the pages after one");
            assert!(
                known > 0 || self.get(page).is_held,
                "a page that nobody needs"
            );
        }
    }
}
