//! What one request leaves of a group's windows or states, by the rules of the engine (SGLang 0.5.23).

use super::Changes;
use super::marks::{BoundaryNeed, LikelyMarks};
use super::pages::{PageId, Pages};
use super::routed::{MOST_PAGES, Route};

/// Slots of states that a request needs before it runs.
const SLOTS_OF_A_REQUEST: u32 = 4;
/// An engine that keeps states on a grid keeps those of produced tokens at multiples of this.
const PRODUCED_GRID: u32 = 256;
/// How many produced tokens go by before what left the window is freed.
const FREED_EVERY: u32 = 128;

/// The part of a request's own window entries that is in use, in tokens.
struct WindowUse {
    /// What comes before is not the request's to free: it was found, or is inserted.
    protected: u32,
    /// What comes before is freed.
    freed: u32,
    /// The pages that the request has left or used so far.
    used: usize,
}

impl LikelyMarks {
    /// A request is looked up and gets its memory: what it finds is used, and what is oldest may go.
    pub(super) fn admit(
        &mut self,
        pages: &Pages,
        (path, hit): (&[PageId], usize),
        prompt: u32,
        changes: &mut Changes,
    ) {
        let found = path.get(..hit).unwrap_or(path);
        match self.need {
            BoundaryNeed::State { .. } => {
                let last = found.last().filter(|page| self.live.contains(**page));
                if let Some(&page) = last {
                    self.live.touch(page);
                }
            }
            BoundaryNeed::Window { .. } => {
                self.ends.extend(path.last());
                self.use_window(found, 0);
                let computed = prompt.saturating_sub(self.tokens(hit));
                self.free_window(pages, computed + self.page_size, changes);
            }
        }
    }

    /// How many pages of a request have to be there before it has left everything that it leaves.
    pub(super) fn needs(&self, route: &Route) -> usize {
        let end = match self.need {
            BoundaryNeed::State { .. } => self.states_of(route).last().copied().unwrap_or(0),
            BoundaryNeed::Window { .. } => (route.prompt + route.produced).saturating_sub(1),
        };
        (end / self.page_size) as usize
    }

    /// A request has run: it leaves states, or windows, along its pages.
    pub(super) fn finish(
        &mut self,
        pages: &Pages,
        path: &[PageId],
        route: &Route,
        changes: &mut Changes,
    ) {
        match self.need {
            BoundaryNeed::State { .. } => {
                for end in self.states_of(route) {
                    self.free_slots(pages, changes);
                    let page = (end / self.page_size).checked_sub(1);
                    if let Some(&page) = page.and_then(|at| path.get(at as usize)) {
                        self.touch(pages, page, changes);
                    }
                }
            }
            BoundaryNeed::Window { .. } => self.leave_windows(pages, path, route, changes),
        }
    }

    /// The lengths at which a request keeps a state, in order.
    fn states_of(&self, route: &Route) -> Vec<u32> {
        let BoundaryNeed::State { grid } = self.need else {
            return Vec::new();
        };
        let end = (route.prompt + route.produced).saturating_sub(1);
        let (mut kept, mut at) = (Vec::new(), route.hit);
        let grid = grid.map(|pages| pages * self.page_size);
        while at < route.prompt {
            let to = route.prompt.min(at.saturating_add(self.chunk));
            match grid {
                None => kept.push(to),
                Some(grid) if to - at >= grid => {
                    let last = at + (to - at) / grid * grid;
                    // Where the pages of another request end, a state is missing.
                    let fork = route.full / grid * grid;
                    let is_inside = fork > route.hit && (at + 1..last).contains(&fork);
                    kept.push(if is_inside { fork } else { last });
                }
                Some(_) => {}
            }
            at = to;
        }
        let last = match grid {
            None if route.produced > 1 => end,
            None => 0,
            Some(grid) => {
                let step = crate::divisors::lcm([grid, PRODUCED_GRID].into_iter());
                end / step * step
            }
        };
        kept.extend(Some(last).filter(|last| *last > route.prompt));
        kept
    }

    fn free_slots(&mut self, pages: &Pages, changes: &mut Changes) {
        let Some(slots) = self.room else { return };
        let most = slots.saturating_sub(SLOTS_OF_A_REQUEST) as usize;
        while self.live.len() > most
            && let Some(page) = self.live.remove_oldest()
        {
            changes.push((pages.hash(page), false));
        }
    }

    fn leave_windows(
        &mut self,
        pages: &Pages,
        path: &[PageId],
        route: &Route,
        changes: &mut Changes,
    ) {
        let page = self.page_size;
        let mut span = WindowUse {
            protected: route.hit,
            freed: route.hit,
            used: 0,
        };
        let mut at = route.hit;
        let mut fork = Some(route.full).filter(|full| *full > route.hit);
        while at < route.prompt {
            at = route.prompt.min(at.saturating_add(self.chunk));
            // What another request computed is inserted alone, to give its pages their windows back.
            let alone = fork.take_if(|fork| *fork <= at);
            let end = alone.unwrap_or(at / page * page);
            self.slide(&mut span, alone.unwrap_or(at), 1);
            self.leave_window(pages, path, (&mut span, end), changes);
            span.protected = span.protected.max(end);
            if alone.is_some() {
                self.slide(&mut span, at, 1);
            }
        }
        let end = route.prompt + route.produced;
        for length in route.prompt + 2..=end {
            self.slide(&mut span, length, FREED_EVERY);
        }
        let last = end.saturating_sub(1) / page * page;
        if last > span.protected {
            let leaf = span.protected.max(span.freed);
            self.leave_window(pages, path, (&mut span, last), changes);
            let tail = self.window.next_multiple_of(page);
            if last - leaf > tail {
                // One window is a node of its own.
                let cut = ((last - tail) / page) as usize;
                self.ends
                    .extend(cut.checked_sub(1).and_then(|at| path.get(at)));
            }
        }
    }

    /// Frees what a request of this length no longer needs, if it is at least so many tokens.
    fn slide(&self, span: &mut WindowUse, length: u32, least: u32) {
        let position = length.saturating_sub(1);
        if position >= self.window + span.freed + least {
            let kept = self
                .window
                .max(self.page_size)
                .next_multiple_of(self.page_size);
            let freed = position.saturating_sub(kept) / self.page_size * self.page_size;
            span.freed = span.freed.max(span.protected).max(freed);
        }
    }

    /// An insert brings the window entries that a request still has before this token.
    fn leave_window(
        &mut self,
        pages: &Pages,
        path: &[PageId],
        (span, end): (&mut WindowUse, u32),
        changes: &mut Changes,
    ) {
        let at = |tokens: u32| ((tokens / self.page_size) as usize).min(path.len());
        let (from, to) = (at(span.protected.max(span.freed)), at(end));
        if to <= span.used {
            return;
        }
        if from < to {
            self.ends.extend(from.checked_sub(1).map(|at| path[at]));
            for &page in &path[from..to] {
                self.touch(pages, page, changes);
            }
        }
        self.ends.insert(path[to - 1]);
        self.use_window(&path[..to], span.used);
        span.used = to;
    }

    /// The last window of a path is used, whole nodes at a time. What the same request has used of it
    /// before is older than the rest in any case, and later windows begin later: so each page is looked
    /// at once, however many chunks a prompt has.
    fn use_window(&mut self, path: &[PageId], used: usize) {
        let mut start = path.len();
        while start > used && self.tokens(path.len() - start) < self.window + self.page_size {
            start -= 1;
            while start > used && !self.ends.contains(&path[start - 1]) {
                start -= 1;
            }
        }
        for &page in &path[start..] {
            if self.live.contains(page) {
                self.live.touch(page);
            }
        }
    }

    /// Makes room for some tokens: whole nodes go, those first that have not been used for longest. If
    /// these are many, the rest goes with the next request.
    fn free_window(&mut self, pages: &Pages, tokens: u32, changes: &mut Changes) {
        let Some(room) = self.room else { return };
        while self.tokens(self.live.len()).saturating_add(tokens) > room
            && changes.len() < MOST_PAGES
            && let Some(oldest) = self.live.remove_oldest()
        {
            changes.push((pages.hash(oldest), false));
            for page in pages.back_from(Some(oldest)).skip(1) {
                if self.ends.contains(&page) || !self.live.remove(page) {
                    break;
                }
                changes.push((pages.hash(page), false));
            }
        }
    }

    /// The tokens of some pages.
    fn tokens(&self, num_pages: usize) -> u32 {
        u32::try_from(num_pages)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.page_size)
    }
}
