//! What requests that a gateway sent to a pod left of windows and states there.
//!
//! A guess like the marks of stores, by the engine's own rules: a request is looked up, computes its
//! prompt in chunks from its hit on, and inserts at the end of each; what its tokens no longer need of
//! a window is freed, and a pool that is full gives up what was used least recently. Events then say
//! only which pages are there.

use std::collections::VecDeque;

use super::pages::Pages;
use super::{AllChanges, Changes, Silent};
use crate::fleet::effort::Effort;
use crate::prefix::PrefixKey;

/// The requests whose pages are waited for, and the boundaries that they have together.
const MOST_WAITING: usize = 64;
const MOST_KEYS: usize = 1 << 18;

/// A request that was sent to the pod, in tokens.
#[derive(Debug)]
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
#[derive(Debug)]
struct Waiting {
    route: Route,
    /// How many of its pages were there when they were looked for. The next one is awaited.
    seen: usize,
    /// How many have to be there before it leaves its marks.
    needed: usize,
}

/// The requests that were sent to the pod and have not left their marks yet.
#[derive(Debug, Default)]
pub(super) struct Routes {
    waiting: VecDeque<Waiting>,
    /// The boundaries that they have together.
    num_keys: usize,
    /// How many pages have been looked for since this was last asked.
    looks: u64,
}

impl Routes {
    /// Forgets all requests.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn push(&mut self, waiting: Waiting) {
        self.num_keys += waiting.route.keys.len();
        self.waiting.push_back(waiting);
    }

    /// The first request, if its pages are there, or if it shall not wait any longer. A page that
    /// was seen is not looked for again.
    fn next(&mut self, pages: &Pages, all: bool) -> Option<Route> {
        let is_crowded = self.waiting.len() > MOST_WAITING || self.num_keys > MOST_KEYS;
        let first = self.waiting.front_mut()?;
        let before = first.seen;
        let awaited = first.route.keys.get(before..first.needed);
        let seen = awaited.map_or(0, |keys| {
            keys.iter().take_while(|key| pages.has(**key)).count()
        });
        self.looks += 1 + seen as u64;
        first.seen += seen;
        if !(all || is_crowded || first.seen >= first.needed) {
            return None;
        }
        let route = self.waiting.pop_front()?.route;
        self.num_keys -= route.keys.len();
        Some(route)
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let keys = self.waiting.iter();
        let keys: usize = keys.map(|first| first.route.keys.capacity()).sum();
        self.waiting.capacity() * size_of::<Waiting>() + keys * size_of::<PrefixKey>()
    }
}

impl Silent {
    /// Notes a request by the keys at the ends of its pages. Returns what changes of each group's
    /// probable copies.
    pub(in crate::fleet) fn route(
        &mut self,
        keys: Vec<PrefixKey>,
        prompt: u32,
        produced: u32,
    ) -> AllChanges {
        let mut changes = self.settle_routes(true);
        let size = self.page_size;
        let mut path = self.pages.path(&keys);
        path.truncate((prompt.saturating_sub(1) / size) as usize);
        let last = path.last().copied();
        let work = Effort::of(u64::MAX);
        let hits = self.marks.iter();
        let hits = hits.filter_map(|marks| marks.hit(&self.pages, last, &work));
        let hit = hits
            .min()
            .unwrap_or(0)
            .min(u32::try_from(path.len()).unwrap_or(0));
        for (marks, changes) in self.marks.iter_mut().zip(&mut changes) {
            marks.admit(&self.pages, (&path, hit as usize), prompt, changes);
        }
        let full = u32::try_from(path.len()).unwrap_or(0) * size;
        let route = Route {
            keys,
            prompt,
            produced,
            hit: hit * size,
            full,
        };
        let needed = self.marks.iter().map(|marks| marks.needs(&route)).max();
        self.routes.push(Waiting {
            route,
            seen: 0,
            needed: needed.unwrap_or(0),
        });
        let more = self.settle_routes(false);
        for (changes, more) in changes.iter_mut().zip(more) {
            changes.extend(more);
        }
        changes
    }

    /// How many pages have been looked for since this was last asked.
    pub(in crate::fleet) fn take_looks(&mut self) -> u64 {
        std::mem::take(&mut self.routes.looks)
    }

    /// Lets the requests leave their marks whose pages are there, or all. An earlier one is first.
    pub(in crate::fleet) fn settle_routes(&mut self, all: bool) -> AllChanges {
        let mut changes = AllChanges::from_elem(Changes::new(), self.marks.len());
        while let Some(route) = self.routes.next(&self.pages, all) {
            let path = self.pages.path(&route.keys);
            self.routes.looks += path.len() as u64;
            for (marks, changes) in self.marks.iter_mut().zip(&mut changes) {
                marks.finish(&self.pages, &path, &route, changes);
            }
        }
        changes
    }
}
