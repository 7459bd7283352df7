//! Groups without events. SGLang publishes full attention only; this module infers what its windows
//! and states hold.
//!
//! SGLang keeps windows and states in the tree of its full-attention pages and publishes these alone.
//! What such a group certainly holds is counted like any copy, in a channel of its own group number, so
//! the rule, the clears and the limits treat it like any other. A pod without such groups has none of this.
//!
//! Invariant: what is inferred as certain is there, as long as the events say everything. The state at the end
//! of a leaf goes only with the leaf itself, and that is told of: so the last page of a store has its
//! state until a page is stored after it. The window or state of an inner page can go in silence, but only
//! if its pool runs short. If it never does, every end of a store has its window or state until the page
//! is removed. Windows of leaves are not certain without that: several inserts can be told as one store,
//! so where the last one began, and with it where the leaf begins, is not known.
//!
//! What such a group probably holds (`marks`) is a guess for the expected value. It is counted in a
//! second channel in the same way.
//!
//! In reading order:
//! - `saved`: what a snapshot has of all this;
//! - `engine`: what one request leaves in a pod, by the engine's rules;
//! - `routed`: the requests that a gateway reported;
//! - `marks`: where windows or states likely are;
//! - `recent`: pages in the order of their last use;
//! - `pages`: the tree of full-attention pages.

mod engine;
mod marks;
mod pages;
mod recent;
mod routed;
mod saved;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::divisors::lcm;
use crate::fleet::effort::Effort;
use crate::fleet::presence::slots::EngineKey;
use crate::prefix::PrefixKey;
use crate::spec::{GroupSpec, SpecKind, Topology};
use marks::{Inserted, LikelyMarks};
use pages::{PageId, Pages};
pub(super) use routed::MOST_PAGES;
use routed::Routes;
pub(super) use saved::{PageBefore, SavedSilent};

/// What an operator says about the memory of groups that no event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SilentPools {
    /// Whether these groups lose nothing before the full-attention pages that they belong to.
    pub never_short: bool,
    /// The tokens that the windows of all requests and of the cache have room for.
    pub window_tokens: Option<u32>,
    /// The states that all requests and the cache have room for.
    pub state_slots: Option<u32>,
    /// The most tokens of a prompt that are computed at once.
    pub chunked_prefill: Option<u32>,
}

/// The number of the group under which the certain copies of a silent group are counted, less the
/// group's own. No event has such a number.
pub(super) const CERTAIN: u16 = 0x8000;
/// The same for the copies that it probably holds.
pub(super) const LIKELY: u16 = 0xC000;
/// States of an engine with pages stand on a grid of at least this many tokens.
const LEAST_GRID: u32 = 64;
/// The pages before a store that may be looked at for each page that it lists.
const WORK_PER_PAGE: usize = 64;
/// The pages that a rank may look at beyond that: some ten milliseconds of work. One window or one
/// long prompt needs fewer.
const MOST_WORK_KEPT: u64 = 1 << 17;

/// Pages at which a group now has something, or no longer has.
type Changes = Vec<(EngineKey, bool)>;
/// The same for each group.
pub(super) type AllChanges = SmallVec<[Changes; 2]>;

/// A group that no event tells of, and of which something can be inferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SilentGroup {
    /// Its index in the configuration.
    pub(super) index: u16,
    /// The pages of a window that are needed before a boundary; `None` for states.
    pub(super) window_pages: Option<u32>,
    /// The tokens that are needed; 0 for states.
    window_tokens: u32,
}

/// The silent groups of a pod: one, as a rule.
pub(super) type SilentGroups = SmallVec<[SilentGroup; 2]>;

/// What is inferred of the silent groups of one rank.
#[derive(Debug)]
pub(super) struct Silent {
    /// The groups.
    pub(super) groups: SilentGroups,
    /// What the operator says about their memory.
    pub(super) pools: SilentPools,
    page_size: u32,
    pages: Pages,
    /// What each group probably holds, in the order of the groups.
    marks: SmallVec<[LikelyMarks; 2]>,
    /// The requests that a gateway sent here, if it says so.
    routes: Routes,
    /// What they have changed of each group's probable copies and no copy shows yet.
    unshown: AllChanges,
    /// What stores may spend on marks at pages that they do not list.
    work: Effort,
}

impl SilentGroup {
    /// The group with this index, if anything can be inferred of its kind.
    fn new(index: u16, group: &GroupSpec, page: u32) -> Option<Self> {
        let window_tokens = group.window.map_or(0, |window| window.saturating_sub(1));
        let window_pages = if group.kind.is_window() {
            Some(window_tokens.div_ceil(page).max(1))
        } else if group.kind == SpecKind::Mamba {
            None
        } else {
            return None;
        };
        Some(Self {
            index,
            window_pages,
            window_tokens,
        })
    }
}

impl Silent {
    /// The silent groups among these, if there are any, and something can be inferred of each of them.
    pub(super) fn new(topology: &Topology, pools: SilentPools) -> Option<Self> {
        let page_size = page(&topology.groups)?;
        let groups = (0u16..).zip(&topology.groups);
        let silent = groups.filter(|(_, group)| is_silent(group));
        let silent: Option<SilentGroups> = silent
            .map(|(index, group)| SilentGroup::new(index, group, page_size))
            .collect();
        let groups = silent.filter(|silent| !silent.is_empty())?;
        let alignment = topology.alignment;
        let has_grid = page_size > 1 || alignment > 1;
        let grid = has_grid.then(|| lcm([alignment, LEAST_GRID, page_size].into_iter()));
        let marks = groups.iter();
        Some(Self {
            marks: marks
                .map(|group| LikelyMarks::new(*group, pools, page_size, grid))
                .collect(),
            unshown: SmallVec::from_elem(Changes::new(), groups.len()),
            groups,
            pools,
            page_size,
            pages: Pages::default(),
            routes: Routes::default(),
            work: Effort::of(MOST_WORK_KEPT),
        })
    }

    /// Notes a store of pages. Returns, for each group, what this changes of its probable copies.
    pub(super) fn note_store(
        &mut self,
        parent: Option<EngineKey>,
        hashes: &[EngineKey],
    ) -> AllChanges {
        let parent = parent.and_then(|hash| self.pages.find(hash));
        let mut new: Vec<PageId> = Vec::with_capacity(hashes.len());
        for &hash in hashes {
            new.push(self.pages.store(hash, new.last().copied().or(parent)));
        }
        self.work.renew(MOST_WORK_KEPT);
        if self.pages.has_keys() {
            // What requests leave is known from the requests.
            return SmallVec::from_elem(Changes::new(), self.marks.len());
        }
        self.work.earn(WORK_PER_PAGE.saturating_mul(hashes.len()));
        let store = Inserted {
            parent,
            new: &new,
            chunk: self.pools.chunked_prefill,
            page_size: self.page_size,
            work: &self.work,
        };
        let marks = self.marks.iter_mut();
        marks
            .map(|marks| {
                let mut changes = Vec::new();
                marks.insert(&self.pages, store, &mut changes);
                changes
            })
            .collect()
    }

    /// The work of the last store on marks, and whether some was refused.
    pub(super) fn work(&self) -> (u64, bool) {
        (self.work.spent(), self.work.is_exhausted())
    }

    /// Forgets a page, and what is kept at it.
    pub(super) fn forget(&mut self, hash: EngineKey) {
        if let Some(page) = self.pages.find(hash) {
            for marks in &mut self.marks {
                marks.forget(page);
            }
            self.pages.remove(page);
        }
    }

    /// Forgets all pages.
    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.routes.clear();
        self.unshown.fill(Changes::new());
        for marks in &mut self.marks {
            marks.clear();
        }
    }

    /// Whether the keys of pages are noted, because requests are told of.
    pub(super) fn is_routed(&self) -> bool {
        self.pages.has_keys()
    }

    /// Tokens per page.
    pub(super) fn page_size(&self) -> u32 {
        self.page_size
    }

    /// Notes the keys of pages from now on. Returns the hashes of at most so many pages whose keys
    /// are still to be noted; none if there are no more.
    pub(super) fn take_unkeyed(&mut self, most: usize) -> Vec<EngineKey> {
        self.pages.take_unkeyed(most)
    }

    /// Lets stores leave marks again.
    pub(super) fn stop_routing(&mut self) {
        self.pages.forget_keys();
        self.routes.clear();
    }

    /// Notes the key of the boundary at which the page of a hash ends.
    pub(super) fn note_key(&mut self, hash: EngineKey, key: PrefixKey) {
        self.pages.note_key(hash, key);
    }

    /// The hashes that are marked, with the number of the group of the copy that shows it, and whether this
    /// copy will be there once all changes are shown; `None`: none of these is about it.
    pub(super) fn marked(&self) -> impl Iterator<Item = (u16, EngineKey, Option<bool>)> + '_ {
        let groups = self.groups.iter().zip(&self.marks).zip(&self.unshown);
        groups.flat_map(move |((group, marks), unshown)| {
            let unshown: HashMap<EngineKey, bool> = unshown.iter().copied().collect();
            let hashes = marks.iter().map(move |page| self.pages.hash(page));
            hashes.map(move |hash| (LIKELY + group.index, hash, unshown.get(&hash).copied()))
        })
    }

    /// Lets changes be shown after those that are not shown yet; returns them if there are none.
    pub(super) fn queue(&mut self, changes: AllChanges) -> AllChanges {
        if self.unshown.iter().all(Vec::is_empty) {
            return changes;
        }
        for (unshown, changes) in self.unshown.iter_mut().zip(changes) {
            unshown.extend(changes);
        }
        AllChanges::new()
    }

    /// The bytes held, by capacity and estimate.
    pub(super) fn bytes(&self) -> usize {
        let marks: usize = self.marks.iter().map(LikelyMarks::bytes).sum();
        let unshown: usize = self.unshown.iter().map(Vec::capacity).sum();
        let unshown = unshown * size_of::<(EngineKey, bool)>();
        size_of::<Self>() + self.pages.bytes() + self.routes.bytes() + unshown + marks
    }

    /// Panics unless pages and marks agree.
    pub(super) fn check_integrity(&self) {
        self.pages.check_integrity();
        for marks in &self.marks {
            marks.check_integrity(&self.pages);
        }
    }

    /// The topology of all these groups, which the rule is evaluated with, and the number under which
    /// the copies of each are counted: its own, plus `base` for a silent group.
    pub(super) fn whole(
        groups: &[GroupSpec],
        told: &Topology,
        base: u16,
    ) -> Option<(Topology, Vec<u16>)> {
        let page = page(groups)?;
        let mut topology = told.clone();
        // A tree has pages of one size.
        let of_page = |group: &GroupSpec| GroupSpec {
            block_size: page,
            ..*group
        };
        topology.groups = groups.iter().map(of_page).collect();
        let numbers = (0u16..).zip(groups);
        let numbers = numbers.map(|(index, group)| index + u16::from(is_silent(group)) * base);
        Some((topology, numbers.collect()))
    }
}

/// Tokens per page of an engine that tells of full attention alone.
fn page(groups: &[GroupSpec]) -> Option<u32> {
    let mut pages = groups.iter().filter(|g| g.kind.is_full());
    let page = pages.next()?.block_size;
    pages.all(|g| g.block_size == page).then_some(page)
}

/// Whether a group of an engine that tells of full attention alone restricts a prefix in silence.
fn is_silent(group: &GroupSpec) -> bool {
    group.prefix_cacheable && !group.kind.is_full() && !group.kind.is_never_reused()
}
