//! Where a silent group probably has its windows or states: at the marks that stores leave.
//!
//! A guess, in four steps. A store ends where an insert ended, and an insert keeps a state or the last
//! window. The page that a store hangs on gets one too, because what the new request computes begins
//! there. A prefill longer than the engine's chunk inserts at the end of each chunk, counted from its
//! hit on. And a pool of known size loses what was used least recently.

use hashbrown::HashSet;

use super::pages::{PageId, Pages};
use super::recent::RecentPages;
use super::{Changes, SilentGroup, SilentPools};
use crate::fleet::effort::Effort;

/// What a boundary needs of a silent group.
#[derive(Debug, Clone, Copy)]
pub(super) enum BoundaryNeed {
    /// A state, which stands on a grid of this many pages, if it stands on any.
    State { grid: Option<u32> },
    /// This many pages of window, of which an engine keeps some more.
    Window { needed: u32, kept: u32 },
}

/// The pages at which one group probably has a window's entries or a state.
#[derive(Debug)]
pub(super) struct LikelyMarks {
    pub(super) need: BoundaryNeed,
    /// How many pages, or states, there is room for.
    pub(super) capacity: Option<usize>,
    pub(super) live: RecentPages,
    /// The tokens of windows, or the states, that there is room for in all.
    pub(super) room: Option<u32>,
    /// The tokens before a boundary that a window needs; 0 for states.
    pub(super) window: u32,
    /// The tokens that one chunk of a prefill computes.
    pub(super) chunk: u32,
    /// Tokens per page.
    pub(super) page_size: u32,
    /// Where nodes end, as far as requests have told.
    pub(super) ends: HashSet<PageId>,
}

/// The pages of a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inserted<'a> {
    /// The page that it hangs on.
    pub(super) parent: Option<PageId>,
    /// Its own pages.
    pub(super) new: &'a [PageId],
    /// The tokens that one chunk of a prefill computes.
    pub(super) chunk: Option<u32>,
    /// Tokens per page.
    pub(super) page_size: u32,
    /// What may be spent on pages that the store does not list.
    pub(super) work: &'a Effort,
}

impl LikelyMarks {
    /// No marks, for one group. `grid` is in tokens.
    pub(super) fn new(
        group: SilentGroup,
        pools: SilentPools,
        page_size: u32,
        grid: Option<u32>,
    ) -> Self {
        let room = match group.window_pages {
            None => pools.state_slots,
            Some(_) => pools.window_tokens,
        };
        let (need, capacity) = match group.window_pages {
            None => {
                let spare = if grid.is_some() { 3 } else { 1 };
                let room = room.map(|slots| slots.saturating_sub(spare));
                let grid = grid.map(|grid| (grid / page_size).max(1));
                (BoundaryNeed::State { grid }, room)
            }
            Some(needed) => {
                // With pages of one token, the page before the window is freed one token later.
                let kept = needed + u32::from(page_size == 1);
                let reserve = 2 * needed * page_size;
                let room = room.map(|tokens| tokens.saturating_sub(reserve) / page_size);
                (BoundaryNeed::Window { needed, kept }, room)
            }
        };
        Self {
            need,
            capacity: capacity.map(|room| room as usize),
            live: RecentPages::default(),
            room,
            window: group.window_tokens,
            chunk: pools.chunked_prefill.unwrap_or(u32::MAX),
            page_size,
            ends: HashSet::new(),
        }
    }

    /// Marks what a store shows. Marks at its own pages are always left, because they grow with the
    /// store. Pages before it cost work that is asked for, and what is refused is not marked.
    pub(super) fn insert(&mut self, pages: &Pages, store: Inserted<'_>, changes: &mut Changes) {
        self.cut(pages, store, changes);
        if let Some(parent) = store.parent {
            self.fork_at(pages, (parent, store.work), changes);
        }
        if let Some(&last) = store.new.last() {
            let length = store.new.len();
            match self.need {
                BoundaryNeed::State { .. } => self.touch(pages, last, changes),
                BoundaryNeed::Window { kept, .. } => {
                    let length = length.min(kept as usize);
                    store.work.note(length as u64);
                    self.end_at(pages, last, length, changes);
                }
            }
        }
        self.make_room(pages, changes);
    }

    /// Forgets what is kept at a page.
    pub(super) fn forget(&mut self, page: PageId) {
        self.live.remove(page);
        self.ends.remove(&page);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.live = RecentPages::default();
        self.ends = HashSet::new();
    }

    pub(super) fn touch(&mut self, pages: &Pages, page: PageId, changes: &mut Changes) {
        if pages.is_held(page) && self.live.touch(page) {
            changes.push((pages.hash(page), true));
        }
    }

    /// An insert ended at a page: there is a window of this many pages.
    fn end_at(&mut self, pages: &Pages, page: PageId, length: usize, changes: &mut Changes) {
        let window: Vec<PageId> = pages.back_from(Some(page)).take(length).collect();
        for &page in window.iter().rev() {
            self.touch(pages, page, changes);
        }
    }

    /// A store hangs on a page: its request computed on from there, or from the last point of the grid
    /// before. A state that was there already is not used.
    fn fork_at(&mut self, pages: &Pages, (page, work): (PageId, &Effort), changes: &mut Changes) {
        let depth = pages.depth(page);
        match self.need {
            BoundaryNeed::State { grid: None } => {}
            BoundaryNeed::State { grid: Some(grid) } => {
                let beyond = (depth % grid) as usize;
                if depth < grid || !work.spend(1 + beyond) {
                    return;
                }
                let on_grid = pages.back_from(Some(page)).nth(beyond);
                if let Some(page) = on_grid.filter(|page| !self.live.contains(*page)) {
                    self.touch(pages, page, changes);
                }
            }
            BoundaryNeed::Window { kept, .. } => {
                let length = kept.min(depth) as usize;
                if work.spend(length) {
                    self.end_at(pages, page, length, changes);
                }
            }
        }
    }

    /// Marks the pages at which the chunks of a store's prefill ended.
    fn cut(&mut self, pages: &Pages, store: Inserted<'_>, changes: &mut Changes) {
        let Some(chunk) = store.chunk else {
            return;
        };
        let size = u64::from(store.page_size);
        let parents = store.parent.map_or(0, |parent| pages.depth(parent));
        let end = (u64::from(parents) + store.new.len() as u64) * size;
        if end <= u64::from(chunk) {
            return;
        }
        let Some(hit) = self.hit(pages, store.parent, store.work) else {
            return;
        };
        let first = match self.need {
            BoundaryNeed::State { .. } => hit,
            BoundaryNeed::Window { kept, .. } => hit.saturating_sub(kept),
        };
        let computed_from = u64::from(hit) * size + u64::from(chunk);
        let ends = (computed_from..end).step_by(chunk as usize);
        let known = (parents - first) as usize;
        if !store
            .work
            .spend(known + store.new.len() + ends.size_hint().0)
        {
            return;
        }
        let mut path: Vec<PageId> = pages.back_from(store.parent).take(known).collect();
        path.reverse();
        path.extend(store.new);
        let ends = ends.map(|end| end / size).filter(|end| *end > hit.into());
        let ends = ends.filter_map(|end| usize::try_from(end - u64::from(first)).ok());
        self.end_along(pages, &path, ends, changes);
    }

    /// Inserts ended after these many pages of a path, in order. A page that is in the windows of
    /// several is touched once: the last of them decides when it was used, and later windows end later.
    fn end_along(
        &mut self,
        pages: &Pages,
        path: &[PageId],
        ends: impl Iterator<Item = usize>,
        changes: &mut Changes,
    ) {
        let mut done = 0;
        for end in ends {
            let start = match self.need {
                BoundaryNeed::State { .. } => end - 1,
                BoundaryNeed::Window { kept, .. } => end.saturating_sub(kept as usize),
            };
            for &page in path.get(start.max(done)..end).unwrap_or_default() {
                if self.may_stand_at(pages.depth(page)) {
                    self.touch(pages, page, changes);
                }
            }
            done = end;
        }
    }

    /// Whether the group can keep something at a page of this depth: states may stand on a grid alone.
    fn may_stand_at(&self, depth: u32) -> bool {
        match self.need {
            BoundaryNeed::State { grid: Some(grid) } => depth.is_multiple_of(grid),
            BoundaryNeed::State { grid: None } | BoundaryNeed::Window { .. } => true,
        }
    }

    /// How many pages of a path a request would reuse; `None` if this would take more work than is left.
    pub(super) fn hit(&self, pages: &Pages, last: Option<PageId>, work: &Effort) -> Option<u32> {
        if self.live.len() == 0 {
            return Some(0);
        }
        let (mut run, mut end) = (0, 0);
        for page in pages.back_from(last) {
            if !work.spend(1) {
                return None;
            }
            if !self.live.contains(page) {
                run = 0;
                continue;
            }
            if run == 0 {
                end = pages.depth(page);
            }
            run += 1;
            match self.need {
                BoundaryNeed::Window { needed, .. } if run < needed => {}
                BoundaryNeed::State { .. } | BoundaryNeed::Window { .. } => return Some(end),
            }
        }
        // Everything from the start on is there.
        Some(if run > 0 { end } else { 0 })
    }

    fn make_room(&mut self, pages: &Pages, changes: &mut Changes) {
        let Some(capacity) = self.capacity else {
            return;
        };
        while self.live.len() > capacity
            && let Some(page) = self.live.remove_oldest()
        {
            changes.push((pages.hash(page), false));
        }
    }

    /// The pages that are marked, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.live.iter()
    }

    /// The bytes held, by estimate.
    pub(super) fn bytes(&self) -> usize {
        self.live.bytes() + self.ends.allocation_size()
    }

    /// Panics unless the marks are in order, and at pages that are held.
    pub(super) fn check_integrity(&self, pages: &Pages) {
        self.live.check_integrity();
        assert!(
            self.iter().all(|page| pages.is_held(page)),
            "marks at pages"
        );
    }
}
