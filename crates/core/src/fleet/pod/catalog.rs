//! What is known of the groups of one pod, from its configuration or from its events.
//!
//! Configuration takes precedence, and events are checked against it. Without configuration, a
//! group's block size is the largest size that any event showed, and its kind and window are the
//! first that an event told. If events carry no window or chunk, the operator's is used.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

use super::page::{GroupOfModel, groups_of_page};
use super::publisher::{Hidden, Publisher};
use super::reach::LongestPrompt;
use super::sizes::{SizeNews, Sizes};
use crate::divisors::{gcd, lcm};
use crate::error::{Error, Result};
use crate::fleet::limbo::Tails;
use crate::fleet::silent::SilentPools;
use crate::spec::{GroupSpec, SpecKind, Topology};
use crate::wire::MAX_GROUPS;

/// What the operator says about a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodConfig {
    /// The groups and the alignment, as far as they are given.
    pub topology: Option<Topology>,
    /// Whether the operator left open if the engine has hits inside blocks.
    pub may_hit_inside: bool,
    /// Whose events the pod sends.
    pub publisher: Publisher,
    /// Whether the engine announces reused blocks again although there is no new copy. Counts then
    /// drift, so lower bounds are 0.
    pub full_reports: bool,
    /// Whether the engine keeps whole windows of its window groups, which end at multiples of the
    /// alignment.
    pub keeps_whole_windows: bool,
    /// The blocks of the engine's pool on the GPU, with its null block. They bound what may be held
    /// there of which nothing is known.
    pub num_gpu_blocks: Option<NonZeroU32>,
    /// What separates prefixes without being told of.
    pub hidden: Hidden,
    /// The window or chunk, in tokens, of learned groups whose events do not carry it, by kind.
    pub unsent: Vec<(SpecKind, u32)>,
    /// The groups that the operator's model has, by kind and window, where groups are learned. One
    /// that no event has told of yet may hold nothing.
    pub model_groups: Vec<(SpecKind, Option<u32>)>,
    /// The memory of groups that no event tells of.
    pub silent: SilentPools,
    /// The groups of a pod whose groups are not listed, besides the full attention that its events
    /// tell of. `None` if they are not known; only an engine that tells of nothing else has any.
    pub silent_groups: Option<Vec<GroupOfModel>>,
}

/// What one store says about its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) struct GroupNews {
    /// `group_idx`; `None` from producers that do not send one.
    pub group: Option<u32>,
    /// The kind, if it was sent.
    pub kind: Option<SpecKind>,
    /// The window in tokens, if it was sent.
    pub window: Option<u32>,
    /// Tokens per block of this store; 0 is a placeholder that says nothing.
    pub block_size: u32,
    /// Tokens that the store is about, if the engine has computed them or found them on its GPU.
    pub span: u32,
    /// Tokens after a block that its hash also covers; 0 if the store lists none.
    pub lookahead: u32,
}

/// The way in which a store contradicts what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) enum Contradiction {
    /// The kind differs from the configured or learned one.
    Kind,
    /// The window differs from the configured or learned one.
    Window,
    /// The block is larger than the configured one, or smaller and no part of one.
    BlockSize,
    /// The configuration has no such group.
    Group,
    /// The number of lookahead tokens differs.
    Lookahead,
    /// The block is longer than any request.
    SizeLimit,
}

impl Contradiction {
    /// The name under which the contradiction is counted.
    #[must_use]
    pub(in crate::fleet) const fn reason(self) -> &'static str {
        match self {
            Self::Kind => "contradicts_kind",
            Self::Window => "contradicts_window",
            Self::BlockSize => "contradicts_block_size",
            Self::Group => "contradicts_group_count",
            Self::Lookahead => "contradicts_lookahead",
            Self::SizeLimit => "contradicts_size_limit",
        }
    }
}

/// What is known of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fleet) struct LearnedGroup {
    /// The group's kind, if a store has told it.
    pub(in crate::fleet) kind: Option<SpecKind>,
    /// The group's window in tokens, if a store has told it.
    pub(in crate::fleet) window: Option<u32>,
    /// Tokens per block.
    pub(in crate::fleet) block_size: u32,
    /// The greatest common divisor of all sizes seen: entries inside a block end at hashes too.
    pub(in crate::fleet) grain: u32,
}

/// The index of the group that ungrouped events of an unconfigured pod belong to.
pub(in crate::fleet) const UNGROUPED: u16 = u16::MAX;
/// With more blocks than this per alignment, what a retention keeps tells too little for its cost.
const MOST_BLOCKS_PER_ALIGNMENT: u32 = 64;

/// The largest number of tokens of a block. It is the longest request that the HTTP service answers
/// unless more is configured; real engines have blocks of at most a few thousand tokens.
pub(in crate::fleet) const MAX_BLOCK_TOKENS: u32 = 1 << 20;

/// The groups of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fleet) struct Catalog {
    /// What the operator said.
    #[serde(skip)]
    pub(in crate::fleet) config: PodConfig,
    /// The groups that the operator's model and the first store's page size make up.
    completed: Option<Topology>,
    /// What was learned of each group, by group index.
    pub(in crate::fleet) learned: Vec<Option<LearnedGroup>>,
    /// The group of events without an index.
    pub(in crate::fleet) ungrouped: Option<LearnedGroup>,
    /// What stores have shown of the configured block sizes.
    pub(in crate::fleet) sizes: Sizes,
    /// How long a prompt the stores have told of.
    pub(in crate::fleet) reach: LongestPrompt,
    /// Tokens after a block that its hash also covers; 0 until an event or the operator says so.
    lookahead: u32,
    /// Whether a store has named a component.
    pub(in crate::fleet) shows_components: bool,
}

/// The only group, or else the only full-attention group, as (index, whether it is a full group).
fn only_one(groups: impl Iterator<Item = (u16, bool)> + Clone) -> u16 {
    let mut full = groups.clone().filter(|(_, is_full)| *is_full);
    let mut all = groups;
    match (full.next(), full.next(), all.next(), all.next()) {
        (Some((index, _)), None, ..) | (None, None, Some((index, _)), None) => index,
        _ => UNGROUPED,
    }
}

impl Catalog {
    /// Starts from what the operator configured.
    ///
    /// # Errors
    /// The errors of `Topology::validate`; more groups or larger blocks than any engine has; a
    /// window or chunk of no tokens.
    pub(in crate::fleet) fn new(config: PodConfig) -> Result<Self> {
        if let Some(topology) = &config.topology {
            topology.validate()?;
            if topology.groups.len() > MAX_GROUPS as usize {
                let text = format!("{} groups; at most {MAX_GROUPS}", topology.groups.len());
                return Err(Error::InvalidValue(text));
            }
            if let Some(group) = (topology.groups.iter()).find(|g| g.block_size > MAX_BLOCK_TOKENS)
            {
                let text = format!(
                    "block_size {} of a {} group; a block has at most {MAX_BLOCK_TOKENS} tokens",
                    group.block_size,
                    group.kind.name()
                );
                return Err(Error::InvalidValue(text));
            }
        }
        if let Some((kind, _)) = config.unsent.iter().find(|(_, tokens)| *tokens == 0) {
            let text = format!("unsent tokens of {}: 0; give at least 1", kind.name());
            return Err(Error::InvalidValue(text));
        }
        let lookahead = config.topology.as_ref().map_or(0, |t| t.hash_lookahead);
        Ok(Self {
            config,
            completed: None,
            learned: Vec::new(),
            ungrouped: None,
            sizes: Sizes::default(),
            reach: LongestPrompt::default(),
            lookahead,
            shows_components: false,
        })
    }

    /// A catalog that knows nothing but its configuration, with what was read from a snapshot; `None`
    /// if that cannot have been learned.
    pub(in crate::fleet) fn restored(self, saved: Self) -> Option<Self> {
        let Self {
            config: _,
            completed,
            learned,
            ungrouped,
            sizes,
            reach,
            lookahead,
            shows_components,
        } = saved;
        let is_size = |size: u32| size <= MAX_BLOCK_TOKENS;
        let mut groups = learned.iter().flatten().chain(&ungrouped);
        let is_learned = learned.len() <= MAX_GROUPS as usize
            && groups.all(|known| is_size(known.block_size) && is_size(known.grain))
            && sizes.is_sound()
            && completed.as_ref().is_none_or(|topology| {
                let page = topology.groups.first().map_or(0, |group| group.block_size);
                let silent = self.config.silent_groups.as_deref();
                let given = self.config.topology.as_ref();
                page > 0
                    && is_size(page)
                    && silent.and_then(|s| groups_of_page(s, page, given)).as_ref()
                        == Some(topology)
            });
        is_learned.then_some(Self {
            config: self.config,
            completed,
            learned,
            ungrouped,
            sizes,
            reach,
            lookahead,
            shows_components,
        })
    }

    /// The topology that the operator gave, completed if it lists no groups.
    pub(in crate::fleet) fn topology(&self) -> Option<&Topology> {
        self.completed.as_ref().or(self.config.topology.as_ref())
    }

    /// The groups that the operator listed, or that the operator's model has, if any.
    pub(in crate::fleet) fn configured_groups(&self) -> Option<&[GroupSpec]> {
        let groups = self.topology().map(|t| t.groups.as_slice())?;
        (!groups.is_empty()).then_some(groups)
    }

    /// Whether the operator said which groups there are.
    #[must_use]
    pub(in crate::fleet) fn is_configured(&self) -> bool {
        self.configured_groups().is_some()
    }

    /// The group that an event belongs to. Events without an index belong to the only group, or to
    /// the only full-attention group (SGLang publishes only that component).
    #[must_use]
    pub(in crate::fleet) fn resolve(&self, group: Option<u32>) -> u16 {
        if let Some(index) = group {
            return u16::try_from(index).unwrap_or(UNGROUPED);
        }
        match self.configured_groups() {
            Some(groups) => only_one((0u16..).zip(groups).map(|(i, g)| (i, g.kind.is_full()))),
            // Once an event came without an index, the producer is known to send none.
            None if self.ungrouped.is_some() => UNGROUPED,
            None => only_one((0u16..).zip(&self.learned).filter_map(|(index, known)| {
                Some((index, known.as_ref()?.kind.is_some_and(SpecKind::is_full)))
            })),
        }
    }

    fn known(&self, group: u16) -> Option<LearnedGroup> {
        if let Some(groups) = self.configured_groups() {
            let g = groups.get(usize::from(group))?;
            return Some(LearnedGroup {
                kind: Some(g.kind),
                window: g.window,
                block_size: g.block_size,
                grain: g.block_size,
            });
        }
        if group == UNGROUPED {
            self.ungrouped
        } else {
            *self.learned.get(usize::from(group))?
        }
    }

    /// The block size of a group; 0 while it is unknown.
    #[must_use]
    pub(in crate::fleet) fn block_size(&self, group: u16) -> u32 {
        self.known(group).map_or(0, |k| k.block_size)
    }

    /// Tokens after a block that its hash also covers.
    #[must_use]
    pub(in crate::fleet) fn lookahead(&self) -> u32 {
        self.lookahead
    }

    /// Compares a store with the configured sizes; `learn` does so where there is but one.
    pub(in crate::fleet) fn note_size(&mut self, news: GroupNews) -> SizeNews {
        let group = self.resolve(news.group);
        let has_several = !self.config.publisher.has_one_block_size();
        let topology = self.config.topology.as_ref().filter(|_| has_several);
        let size = (news.block_size, news.span);
        topology.map_or_else(SizeNews::default, |t| self.sizes.note(t, group, size))
    }

    /// Learns from a store. Returns true if what is known of the groups has changed.
    ///
    /// # Errors
    /// The first contradiction; then nothing is changed.
    pub(in crate::fleet) fn learn(
        &mut self,
        news: GroupNews,
    ) -> std::result::Result<bool, Contradiction> {
        if news.block_size > MAX_BLOCK_TOKENS {
            return Err(Contradiction::SizeLimit);
        }
        let has_new_lookahead = news.lookahead > 0 && news.lookahead != self.lookahead;
        if has_new_lookahead && self.lookahead > 0 {
            return Err(Contradiction::Lookahead);
        }
        let is_changed = self.learn_group(news)?;
        if has_new_lookahead {
            self.lookahead = news.lookahead;
        }
        Ok(is_changed || has_new_lookahead)
    }

    fn learn_group(&mut self, news: GroupNews) -> std::result::Result<bool, Contradiction> {
        let was_configured = self.is_configured();
        if news.group.is_none() && news.block_size > 0 && !was_configured {
            let silent = self.config.silent_groups.as_ref();
            let silent = silent.filter(|_| self.config.publisher.tells_only_full());
            let given = self.config.topology.as_ref();
            self.completed = silent.and_then(|s| groups_of_page(s, news.block_size, given));
        }
        let group = self.resolve(news.group);
        let configured = self.is_configured();
        let known = self.known(group);
        if configured && known.is_none() {
            return Err(Contradiction::Group);
        }
        let Some(known) = known else {
            self.set_learned(
                group,
                LearnedGroup {
                    kind: news.kind,
                    window: news.window,
                    block_size: news.block_size,
                    grain: news.block_size,
                },
            );
            return Ok(true);
        };
        let is_smaller = (1..known.block_size).contains(&news.block_size);
        if configured && is_smaller && self.config.publisher.has_one_block_size() {
            return Err(Contradiction::BlockSize);
        }
        let merged = merge(known, news, configured)?;
        if merged == known || configured {
            return Ok(configured != was_configured);
        }
        self.set_learned(group, merged);
        Ok(true)
    }

    fn set_learned(&mut self, group: u16, known: LearnedGroup) {
        if group == UNGROUPED {
            self.ungrouped = Some(known);
            return;
        }
        let index = usize::from(group);
        if self.learned.len() <= index {
            self.learned.resize(index + 1, None);
        }
        self.learned[index] = Some(known);
    }

    /// Tokens per hash of the engine's chain, if the operator listed the groups.
    #[must_use]
    pub(in crate::fleet) fn configured_hash_block(&self) -> Option<u32> {
        let topology = self.topology()?;
        (!topology.groups.is_empty()).then_some(topology.hash_block_size)
    }

    /// The number of tokens that every boundary seen so far is a multiple of: the configured hash
    /// block, or else the greatest common divisor of all sizes seen, which the engine's hash block
    /// divides. It is 0 while nothing is known.
    #[must_use]
    pub(in crate::fleet) fn grain(&self) -> u32 {
        self.configured_hash_block().unwrap_or_else(|| {
            // A group that no prefix is looked up in need not follow the hash chain.
            self.reused().map(|known| known.grain).fold(0, gcd)
        })
    }

    /// The tails that the engine keeps of this group, for a store of blocks of this size. `None`
    /// unless the operator said that whole windows are kept, and unless that tells anything. The
    /// alignment of learned groups only grows, so tails also end at multiples of any earlier,
    /// smaller alignment.
    #[must_use]
    pub(in crate::fleet) fn tails(&self, group: u16, block_size: u32) -> Option<Tails> {
        if !self.config.keeps_whole_windows || self.config.full_reports {
            return None;
        }
        let known = self.known(group)?;
        let topology = self.topology();
        let groups = self.configured_groups().unwrap_or_default();
        // Entries inside blocks, and the windows of a draft head, end elsewhere.
        if topology.is_some_and(|t| t.partial_hits)
            || groups.iter().any(|g| g.eagle)
            || known.block_size != block_size
        {
            return None;
        }
        let spec = groups.get(usize::from(group)).copied();
        let spec = spec.unwrap_or_else(|| self.learned_group(known));
        let window = spec.window.filter(|_| spec.kind.is_window())?;
        let alignment = match topology.filter(|_| !groups.is_empty()) {
            Some(topology) => topology.alignment,
            None => lcm(self.reused().map(|k| k.block_size.max(1))),
        };
        let every = alignment / block_size.max(1);
        let blocks = (window - 1).div_ceil(block_size.max(1));
        let tells = blocks > 0 && every * block_size == alignment;
        (tells && (2..=MOST_BLOCKS_PER_ALIGNMENT).contains(&every))
            .then_some(Tails { blocks, every })
    }

    /// The learned groups that prefixes are looked up in.
    fn reused(&self) -> impl Iterator<Item = &LearnedGroup> + Clone {
        let all = self.learned.iter().flatten().chain(&self.ungrouped);
        all.filter(|known| !known.kind.is_some_and(SpecKind::is_never_reused))
    }

    /// A learned group in the form that the rule takes.
    pub(in crate::fleet) fn learned_group(&self, known: LearnedGroup) -> GroupSpec {
        let kind = known.kind.unwrap_or(SpecKind::Unknown);
        let unsent = self.config.unsent.iter().find(|(of, _)| *of == kind);
        let unsent = unsent.map(|(_, tokens)| *tokens);
        let window = known.window.or(unsent).filter(|_| kind.is_window());
        // A window group whose window is not known is treated as a group of unknown kind.
        let is_windowless = kind.is_window() && window.is_none();
        let rule = if is_windowless {
            SpecKind::Unknown
        } else {
            kind
        };
        GroupSpec {
            window,
            chunk: unsent.filter(|_| kind == SpecKind::ChunkedLocalAttention),
            ..GroupSpec::new(rule, known.block_size.max(1))
        }
    }
}

fn merge(
    known: LearnedGroup,
    news: GroupNews,
    configured: bool,
) -> std::result::Result<LearnedGroup, Contradiction> {
    let kind = match (known.kind, news.kind) {
        (Some(a), Some(b)) if a != b && b != SpecKind::Unknown && a != SpecKind::Unknown => {
            return Err(Contradiction::Kind);
        }
        (None | Some(SpecKind::Unknown), Some(b)) => Some(b),
        (a, _) => a,
    };
    let window = match (known.window, news.window) {
        (Some(a), Some(b)) if a != b => return Err(Contradiction::Window),
        (None, Some(b)) => Some(b),
        (a, _) => a,
    };
    if configured && news.block_size > known.block_size {
        return Err(Contradiction::BlockSize);
    }
    Ok(LearnedGroup {
        kind,
        window,
        block_size: known.block_size.max(news.block_size),
        grain: gcd(known.grain, news.block_size),
    })
}
