//! The full-attention pages of one rank as a tree, by the engine's hashes.

use hashbrown::HashMap;

use crate::fleet::slots::EngineKey;

/// Index of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PageId(u32);

#[derive(Debug, Clone, Copy)]
struct Page {
    hash: EngineKey,
    parent: Option<PageId>,
    /// How many pages there are from the start of the prompt to its end.
    depth: u32,
    num_children: u32,
    is_held: bool,
}

/// The pages that are held, and those without which they would have no parent.
#[derive(Debug, Default)]
pub(super) struct Pages {
    by_hash: HashMap<EngineKey, PageId>,
    table: Vec<Page>,
    free: Vec<PageId>,
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
        let page = Page {
            hash,
            parent,
            depth,
            num_children: 0,
            is_held: true,
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
            && let Page {
                hash,
                parent,
                num_children: 0,
                is_held: false,
                ..
            } = *self.get(page)
        {
            self.by_hash.remove(&hash);
            self.free.push(page);
            if let Some(parent) = parent {
                self.get_mut(parent).num_children -= 1;
            }
            last = parent;
        }
        if self.by_hash.is_empty() {
            *self = Self::default();
        }
    }

    fn get(&self, page: PageId) -> &Page {
        &self.table[page.0 as usize]
    }

    fn get_mut(&mut self, page: PageId) -> &mut Page {
        &mut self.table[page.0 as usize]
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.by_hash.allocation_size()
            + self.table.capacity() * size_of::<Page>()
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
