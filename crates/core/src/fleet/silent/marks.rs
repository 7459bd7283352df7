//! Where a silent group probably has its windows or states: at the marks that stores leave.
//!
//! A guess, in four steps. A store ends where an insert ended, and an insert keeps a state or the last
//! window. The page that a store hangs on gets one too, because what the new request computes begins
//! there. A prefill longer than the engine's chunk inserts at the end of each chunk, counted from its
//! hit on. And a pool of known size loses what was used least recently.

use hashbrown::HashSet;

use super::pages::{PageId, Pages};
use super::recent::Recent;
use super::{Changes, SilentGroup, SilentPools};

/// What a boundary needs of a silent group.
#[derive(Debug, Clone, Copy)]
pub(super) enum Need {
    /// A state, which stands on a grid of this many pages, if it stands on any.
    State { grid: Option<u32> },
    /// This many pages of window, of which an engine keeps some more.
    Window { needed: u32, kept: u32 },
}

/// The pages at which one group probably has a window's entries or a state.
#[derive(Debug)]
pub(super) struct Marks {
    pub(super) need: Need,
    /// How many pages, or states, there is room for.
    capacity: Option<usize>,
    pub(super) live: Recent,
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
}

impl Marks {
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
                (Need::State { grid }, room)
            }
            Some(needed) => {
                // With pages of one token, the page before the window is freed one token later.
                let kept = needed + u32::from(page_size == 1);
                let reserve = 2 * needed * page_size;
                let room = room.map(|tokens| tokens.saturating_sub(reserve) / page_size);
                (Need::Window { needed, kept }, room)
            }
        };
        Self {
            need,
            capacity: capacity.map(|room| room as usize),
            live: Recent::default(),
            room,
            window: group.window_tokens,
            chunk: pools.chunked_prefill.unwrap_or(u32::MAX),
            page_size,
            ends: HashSet::new(),
        }
    }

    /// Marks what a store shows.
    pub(super) fn insert(&mut self, pages: &Pages, store: Inserted<'_>, changes: &mut Changes) {
        for page in self.cuts(pages, store) {
            self.end_at(pages, page, u32::MAX, changes);
        }
        if let Some(parent) = store.parent {
            self.fork_at(pages, parent, changes);
        }
        if let Some(&last) = store.new.last() {
            let length = u32::try_from(store.new.len()).unwrap_or(u32::MAX);
            match self.need {
                Need::State { .. } => self.touch(pages, last, changes),
                Need::Window { .. } => self.end_at(pages, last, length, changes),
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
        self.live = Recent::default();
        self.ends = HashSet::new();
    }

    pub(super) fn touch(&mut self, pages: &Pages, page: PageId, changes: &mut Changes) {
        if pages.is_held(page) && self.live.touch(page) {
            changes.push((pages.hash(page), true));
        }
    }

    /// An insert ended at a page: there is a state, if the page is on the grid, or a window of at most
    /// this many pages.
    fn end_at(&mut self, pages: &Pages, page: PageId, most: u32, changes: &mut Changes) {
        match self.need {
            Need::State { grid } => {
                if grid.is_none_or(|grid| pages.depth(page).is_multiple_of(grid)) {
                    self.touch(pages, page, changes);
                }
            }
            Need::Window { kept, .. } => {
                let window = pages.back_from(Some(page)).take(kept.min(most) as usize);
                let window: Vec<PageId> = window.collect();
                for &page in window.iter().rev() {
                    self.touch(pages, page, changes);
                }
            }
        }
    }

    /// A store hangs on a page: its request computed on from there, or from the last point of the grid
    /// before. A state that was there already is not used.
    fn fork_at(&mut self, pages: &Pages, page: PageId, changes: &mut Changes) {
        match self.need {
            Need::State { grid: None } => {}
            Need::State { grid: Some(grid) } => {
                let mut back = pages.back_from(Some(page)).take(grid as usize);
                let on_grid = back.find(|page| pages.depth(*page).is_multiple_of(grid));
                if let Some(page) = on_grid.filter(|page| !self.live.contains(*page)) {
                    self.touch(pages, page, changes);
                }
            }
            Need::Window { .. } => self.end_at(pages, page, u32::MAX, changes),
        }
    }

    /// The pages at which the chunks of a store's prefill ended.
    fn cuts(&self, pages: &Pages, store: Inserted<'_>) -> Vec<PageId> {
        let Some(chunk) = store.chunk else {
            return Vec::new();
        };
        let size = u64::from(store.page_size);
        let parents = store.parent.map_or(0, |parent| pages.depth(parent));
        let end = (u64::from(parents) + store.new.len() as u64) * size;
        if end <= u64::from(chunk) {
            return Vec::new();
        }
        let hit = self.hit(pages, store.parent);
        let after_hit = pages.back_from(store.parent);
        let mut path: Vec<PageId> = after_hit.take((parents - hit) as usize).collect();
        path.reverse();
        path.extend(store.new);
        let hit = u64::from(hit);
        let ends = (hit * size + u64::from(chunk)..end).step_by(chunk as usize);
        let at = ends.filter_map(|end| usize::try_from(end / size - hit).ok()?.checked_sub(1));
        at.filter_map(|at| path.get(at).copied()).collect()
    }

    /// How many pages of a path a request would reuse.
    pub(super) fn hit(&self, pages: &Pages, last: Option<PageId>) -> u32 {
        let (mut run, mut end) = (0, 0);
        for page in pages.back_from(last) {
            if !self.live.contains(page) {
                run = 0;
                continue;
            }
            if run == 0 {
                end = pages.depth(page);
            }
            run += 1;
            match self.need {
                Need::Window { needed, .. } if run < needed => {}
                Need::State { .. } | Need::Window { .. } => return end,
            }
        }
        // Everything from the start on is there.
        if run > 0 { end } else { 0 }
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
