//! A set of pages in the order in which they were last used.

use super::pages::PageId;

/// No page, at either end of the order.
const NONE: u32 = u32::MAX;
/// What stands in place of the neighbours of a page that is not in the set.
const ABSENT: Link = Link {
    older: NONE - 1,
    newer: NONE - 1,
};

/// The pages next to one in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Link {
    older: u32,
    newer: u32,
}

/// Pages, linked in the order in which they were last used: a use costs the same whatever their
/// number.
#[derive(Debug)]
pub(super) struct RecentPages {
    /// By the number of the page.
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    len: usize,
}

impl Default for RecentPages {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }
}

impl RecentPages {
    /// Makes a page the most recent one. Returns true if it is new.
    pub(super) fn touch(&mut self, page: PageId) -> bool {
        if self.newest == page.0 {
            return false;
        }
        let is_new = !self.remove(page);
        let at = page.0 as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, ABSENT);
        }
        let older = std::mem::replace(&mut self.newest, page.0);
        self.links[at] = Link { older, newer: NONE };
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = page.0,
            None => self.oldest = page.0,
        }
        self.len += 1;
        is_new
    }

    /// Removes a page. Returns true if it was there.
    pub(super) fn remove(&mut self, page: PageId) -> bool {
        if !self.contains(page) {
            return false;
        }
        let Link { older, newer } = std::mem::replace(&mut self.links[page.0 as usize], ABSENT);
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        self.len -= 1;
        true
    }

    /// Removes the page that has not been used for the longest time.
    pub(super) fn remove_oldest(&mut self) -> Option<PageId> {
        let page = self.iter().next()?;
        self.remove(page);
        Some(page)
    }

    /// Whether a page is there.
    pub(super) fn contains(&self, page: PageId) -> bool {
        let link = self.links.get(page.0 as usize);
        link.is_some_and(|link| *link != ABSENT)
    }

    /// The number of pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The pages, those first that have not been used for longest.
    pub(super) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        let known = |page: u32| (page != NONE).then_some(page);
        let pages = std::iter::successors(known(self.oldest), move |&page| {
            known(self.links[page as usize].newer)
        });
        pages.map(PageId)
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }

    /// Panics unless every page of the set stands in the order once, between its neighbours.
    pub(super) fn check_integrity(&self) {
        let mut older = NONE;
        let mut count = 0;
        for page in self.iter() {
            assert_eq!(self.links[page.0 as usize].older, older, "the page before");
            older = page.0;
            count += 1;
        }
        let linked = self.links.iter().filter(|link| **link != ABSENT).count();
        assert_eq!((older, count, linked), (self.newest, self.len, self.len));
    }
}
