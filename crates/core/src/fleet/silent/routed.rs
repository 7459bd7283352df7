//! What requests that a gateway sent to a pod left of windows and states there.
//!
//! A guess like the marks of stores, by the engine's own rules: a request is looked up, computes its
//! prompt in chunks from its hit on, and inserts at the end of each; what its tokens no longer need of
//! a window is freed, and a pool that is full gives up what was used least recently. Events then say
//! only which pages are there.

use super::pages::{PageId, Pages};
use super::{AllChanges, Silent};
use crate::fleet::effort::Effort;
use crate::prefix::PrefixKey;
use serde::{Deserialize, Serialize};

/// The pages of a request that are followed, and those that go for it at once: some fifty
/// milliseconds of work. One long prompt has fewer, even with pages of one token.
pub(in crate::fleet) const MOST_PAGES: usize = 1 << 17;

/// A request that was sent to the pod, in tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Route {
    /// The keys at the ends of its pages, those of produced tokens too.
    keys: Vec<PrefixKey>,
    /// The tokens of its prompt.
    pub(super) prompt: u32,
    /// The tokens that came back.
    pub(super) produced: u32,
    /// What it probably reused.
    pub(super) hit: u32,
    /// What full attention held of it.
    pub(super) full: u32,
}

/// A request whose pages are waited for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Waiting {
    route: Route,
    /// How many of its pages were there when they were looked for. The next one is awaited.
    seen: usize,
    /// How many have to be there before it leaves its marks.
    needed: usize,
}

/// The request that was sent to the pod and has not left its marks yet, if there is one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Routes {
    waiting: Option<Waiting>,
    /// How many pages have been looked at since this was last asked.
    looks: usize,
}

impl Routes {
    /// Whether what was read from a snapshot is a request that `Silent::route` can have noted.
    pub(super) fn is_sound(&self) -> bool {
        let is_route = |waiting: &Waiting| {
            let route = &waiting.route;
            let tokens = [route.prompt, route.produced, route.hit, route.full];
            route.keys.len() <= MOST_PAGES && tokens.into_iter().all(|tokens| tokens < 1 << 30)
        };
        self.waiting.as_ref().is_none_or(is_route) && self.looks < 1 << 32
    }

    /// Forgets the request.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The request, if its pages are there, or if it shall not wait any longer. A page that was seen
    /// is not looked for again.
    fn next(&mut self, pages: &Pages, shall_end: bool) -> Option<Route> {
        let waiting = self.waiting.as_mut()?;
        let awaited = waiting.route.keys.get(waiting.seen..waiting.needed);
        let seen = awaited.map_or(0, |keys| {
            keys.iter().take_while(|key| pages.has(**key)).count()
        });
        self.looks += 1 + seen;
        waiting.seen += seen;
        let is_over = shall_end || waiting.seen >= waiting.needed;
        let waiting = self.waiting.take_if(|_| is_over)?;
        Some(waiting.route)
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let waiting = self.waiting.as_ref();
        waiting.map_or(0, |it| it.route.keys.capacity() * size_of::<PrefixKey>())
    }
}

impl Silent {
    /// Notes a request by the keys at the ends of its pages. Returns whether something of it is left
    /// out because it has too many.
    pub(in crate::fleet) fn route(
        &mut self,
        mut keys: Vec<PrefixKey>,
        mut prompt: u32,
        mut produced: u32,
    ) -> bool {
        let size = self.page_size;
        let is_long = keys.len() > MOST_PAGES;
        if is_long {
            keys.truncate(MOST_PAGES);
            let most =
                u32::try_from(MOST_PAGES).map_or(u32::MAX, |pages| pages.saturating_mul(size));
            prompt = prompt.min(most);
            produced = produced.min(most - prompt);
        }
        let path = self.pages.path(&keys);
        let before_last = (prompt.saturating_sub(1) / size) as usize;
        let found = &path[..before_last.min(path.len())];
        let work = Effort::of((MOST_PAGES * self.marks.len()) as u64);
        let hits = self.marks.iter();
        let hits = hits.filter_map(|marks| marks.hit(&self.pages, found.last().copied(), &work));
        let num_found = u32::try_from(found.len()).unwrap_or(u32::MAX);
        let hit = hits.min().unwrap_or(0).min(num_found);
        for (marks, changes) in self.marks.iter_mut().zip(&mut self.unshown) {
            marks.admit(&self.pages, (found, hit as usize), prompt, changes);
        }
        let route = Route {
            keys,
            prompt,
            produced,
            hit: hit * size,
            full: num_found * size,
        };
        let needed = self.marks.iter().map(|marks| marks.needs(&route)).max();
        let (seen, needed) = (path.len(), needed.unwrap_or(0));
        if seen < needed {
            self.routes.waiting = Some(Waiting {
                route,
                seen,
                needed,
            });
        } else {
            self.finish(&path, &route);
        }
        is_long || work.is_exhausted()
    }

    /// How many pages have been looked at since this was last asked.
    pub(in crate::fleet) fn take_looks(&mut self) -> usize {
        std::mem::take(&mut self.routes.looks)
    }

    /// Lets the request leave its marks if its pages are there, or if it shall not wait any longer.
    pub(in crate::fleet) fn settle_route(&mut self, shall_end: bool) {
        if let Some(route) = self.routes.next(&self.pages, shall_end) {
            let path = self.pages.path(&route.keys);
            self.routes.looks += path.len() * (1 + self.marks.len());
            self.finish(&path, &route);
        }
    }

    fn finish(&mut self, path: &[PageId], route: &Route) {
        for (marks, changes) in self.marks.iter_mut().zip(&mut self.unshown) {
            marks.finish(&self.pages, path, route, changes);
        }
    }

    /// Takes at most this many changes of each group that are not shown yet, the first ones first.
    pub(in crate::fleet) fn take_unshown(&mut self, most: usize) -> AllChanges {
        let unshown = self.unshown.iter_mut();
        let taken = unshown.map(|changes| {
            if changes.len() > most {
                changes.drain(..most).collect()
            } else {
                std::mem::take(changes)
            }
        });
        taken.collect()
    }
}
