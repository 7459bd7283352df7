//! A set of pages in the order in which they were last used.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::pages::PageId;

/// Pages, each with the tick at which it was last used.
#[derive(Debug, Default)]
pub(super) struct Recent {
    used_at: HashMap<PageId, u64>,
    in_order: BTreeMap<u64, PageId>,
    tick: u64,
}

impl Recent {
    /// Makes a page the most recent one. Returns true if it is new.
    pub(super) fn touch(&mut self, page: PageId) -> bool {
        self.tick += 1;
        self.in_order.insert(self.tick, page);
        let before = self.used_at.insert(page, self.tick);
        if let Some(before) = before {
            self.in_order.remove(&before);
        }
        before.is_none()
    }

    /// Removes a page. Returns true if it was there.
    pub(super) fn remove(&mut self, page: PageId) -> bool {
        let before = self.used_at.remove(&page);
        if let Some(before) = before {
            self.in_order.remove(&before);
        }
        before.is_some()
    }

    /// Removes the page that has not been used for the longest time.
    pub(super) fn remove_oldest(&mut self) -> Option<PageId> {
        let (_, page) = self.in_order.pop_first()?;
        self.used_at.remove(&page);
        Some(page)
    }

    /// Whether a page is there.
    pub(super) fn contains(&self, page: PageId) -> bool {
        self.used_at.contains_key(&page)
    }

    /// The number of pages.
    pub(super) fn len(&self) -> usize {
        self.used_at.len()
    }

    /// The pages, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.used_at.keys().copied()
    }

    /// The bytes held, by estimate.
    pub(super) fn bytes(&self) -> usize {
        // A node of the ordered map is two thirds full on average.
        self.used_at.allocation_size() + self.in_order.len() * size_of::<(u64, PageId)>() * 3 / 2
    }

    /// Panics unless the order has the pages of the set.
    pub(super) fn check_integrity(&self) {
        assert_eq!(self.used_at.len(), self.in_order.len(), "pages in order");
        for (tick, page) in &self.in_order {
            assert_eq!(self.used_at.get(page), Some(tick), "when a page was used");
        }
    }
}
