//! Groups that no event tells of: what their stores of full attention tell of them all the same.
//!
//! SGLang keeps windows and states in the tree of its full-attention pages and publishes these alone.
//! What such a group certainly holds is counted like any copy, in a channel of its own group number, so
//! the rule, the clears and the limits treat it like any other. A pod without such groups has none of this.
//!
//! Law: what is inferred as certain is there, as long as the events say everything. The state at the end
//! of a leaf goes only with the leaf itself, and that is told of: so the last page of a store has its
//! state until a page is stored after it. The window or state of an inner page can go in silence, but only
//! if its pool runs short. If it never does, every end of a store has its window or state until the page
//! is removed. Windows of leaves are not certain without that: several inserts can be told as one store,
//! so where the last one began, and with it where the leaf begins, is not known.

use smallvec::SmallVec;

use crate::spec::{GroupSpec, SpecKind, Topology};

/// What an operator says about the memory of groups that no event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SilentPools {
    /// Whether these groups lose nothing before the full-attention pages that they belong to.
    pub never_short: bool,
}

/// The number of the group under which the certain copies of a silent group are counted, less the
/// group's own. No event has such a number.
pub(super) const CERTAIN: u16 = 0x8000;

/// A group that no event tells of, and of which something can be inferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SilentGroup {
    /// Its index in the configuration.
    pub(super) index: u16,
    /// The pages of a window that are needed before a boundary; `None` for states.
    pub(super) window_pages: Option<u32>,
}

/// The silent groups of one rank.
#[derive(Debug)]
pub(super) struct Silent {
    /// The groups.
    pub(super) groups: SmallVec<[SilentGroup; 2]>,
    /// What the operator says about their memory.
    pub(super) pools: SilentPools,
}

impl SilentGroup {
    /// The group with this index, if anything can be inferred of its kind.
    fn new(index: u16, group: &GroupSpec, page: u32) -> Option<Self> {
        let window_pages = if group.kind.is_window() {
            let needed = group.window?.saturating_sub(1);
            Some(needed.div_ceil(page).max(1))
        } else if group.kind == SpecKind::Mamba {
            None
        } else {
            return None;
        };
        Some(Self {
            index,
            window_pages,
        })
    }
}

impl Silent {
    /// The silent groups among these, if there are any, and something can be inferred of each of them.
    pub(super) fn new(groups: &[GroupSpec], pools: SilentPools) -> Option<Self> {
        let page = page(groups)?;
        let silent = (0u16..).zip(groups).filter(|(_, group)| is_silent(group));
        let silent: Option<SmallVec<_>> = silent
            .map(|(index, group)| SilentGroup::new(index, group, page))
            .collect();
        Some(Self {
            groups: silent.filter(|silent| !silent.is_empty())?,
            pools,
        })
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
