//! What is known of one pod's groups: configured, or learned from its events.
//!
//! Configuration wins; what events say is checked against it. Without configuration the largest
//! block size seen of a group is its block size, and its first kind and window are its own; a
//! window or chunk that no event carries is what the operator said of its kind.

use super::divisors::{gcd, lcm};
use super::limbo::Tails;
use crate::error::{Error, Result};
use crate::spec::{GroupSpec, SpecKind, Topology};
use crate::wire::MAX_GROUPS;

/// What an operator says of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodConfig {
    /// Groups and alignment, where given.
    pub topology: Option<Topology>,
    /// The engine publishes its full-attention component only (SGLang): other groups are silent.
    pub only_full_is_published: bool,
    /// Reused blocks are announced again without a copy: counts drift, so that lower is 0.
    pub full_reports: bool,
    /// The engine keeps whole windows of its window groups, that end at multiples of the alignment.
    pub keeps_whole_windows: bool,
    /// The window or chunk, in tokens, of learned groups of a kind where events do not carry it.
    pub unsent: Vec<(SpecKind, u32)>,
}

/// What one store says of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupNews {
    /// `group_idx`; `None` from producers that do not send it.
    pub group: Option<u32>,
    /// The kind, where sent.
    pub kind: Option<SpecKind>,
    /// The window in tokens, where sent.
    pub window: Option<u32>,
    /// Tokens per block of this store; 0 = a placeholder that does not say.
    pub block_size: u32,
    /// Tokens after a block that its hash also covers; 0 = none listed.
    pub lookahead: u32,
}

/// Why a store contradicts what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contradiction {
    /// Another kind than configured or learned.
    Kind,
    /// Another window than configured or learned.
    Window,
    /// A larger block than the configured one.
    BlockSize,
    /// A group that the configuration does not have.
    Group,
    /// Another number of lookahead tokens.
    Lookahead,
    /// A block that no request is as long as.
    SizeLimit,
}

impl Contradiction {
    /// The name under which it is counted.
    #[must_use]
    pub(super) const fn reason(self) -> &'static str {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// Its kind, where a store told it.
    pub(super) kind: Option<SpecKind>,
    /// Its window in tokens, where a store told it.
    pub(super) window: Option<u32>,
    /// Tokens per block.
    pub(super) block_size: u32,
    /// What all sizes seen are multiples of: entries within a block stand at hashes too.
    pub(super) grain: u32,
}

/// The index of the group that ungrouped events of an unconfigured pod belong to.
pub(super) const UNGROUPED: u16 = u16::MAX;
/// Of an alignment of more blocks, what a retention keeps tells too little for what it costs.
const MOST_BLOCKS_PER_ALIGNMENT: u32 = 64;

/// No block has more tokens: it is the longest request that the HTTP service answers as long as
/// nobody configures more, and engines have blocks of at most a few thousand.
pub(super) const MAX_BLOCK_TOKENS: u32 = 1 << 20;

/// The groups of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Catalog {
    /// What the operator said.
    pub(super) config: PodConfig,
    /// What was learned, by group index.
    pub(super) learned: Vec<Option<Known>>,
    /// The group of events without an index.
    pub(super) ungrouped: Option<Known>,
    /// Tokens after a block that its hash also covers; 0 until an event or the operator says so.
    lookahead: u32,
}

/// The only group there is, else the only one of full attention: (index, whether it is full).
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
    /// Whatever `Topology::validate` refuses; more groups or larger blocks than any engine has; a
    /// window or chunk of no tokens.
    pub(super) fn new(config: PodConfig) -> Result<Self> {
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
            learned: Vec::new(),
            ungrouped: None,
            lookahead,
        })
    }

    /// The groups that the operator named, if there are any.
    pub(super) fn configured_groups(&self) -> Option<&[GroupSpec]> {
        let groups = self.config.topology.as_ref().map(|t| t.groups.as_slice())?;
        (!groups.is_empty()).then_some(groups)
    }

    /// Whether the operator said which groups there are.
    #[must_use]
    pub(super) fn is_configured(&self) -> bool {
        self.configured_groups().is_some()
    }

    /// Which group an event speaks of. Events without an index belong to the only group there is,
    /// or to the only full-attention group (SGLang publishes that component alone).
    #[must_use]
    pub(super) fn resolve(&self, group: Option<u32>) -> u16 {
        if let Some(index) = group {
            return u16::try_from(index).unwrap_or(UNGROUPED);
        }
        match self.configured_groups() {
            Some(groups) => only_one((0u16..).zip(groups).map(|(i, g)| (i, g.kind.is_full()))),
            // Once something came without an index, that is the producer's way.
            None if self.ungrouped.is_some() => UNGROUPED,
            None => only_one((0u16..).zip(&self.learned).filter_map(|(index, known)| {
                Some((index, known.as_ref()?.kind.is_some_and(SpecKind::is_full)))
            })),
        }
    }

    fn known(&self, group: u16) -> Option<Known> {
        if let Some(groups) = self.configured_groups() {
            let g = groups.get(usize::from(group))?;
            return Some(Known {
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

    /// The block size of a group, 0 while unknown.
    #[must_use]
    pub(super) fn block_size(&self, group: u16) -> u32 {
        self.known(group).map_or(0, |k| k.block_size)
    }

    /// Tokens after a block that its hash also covers.
    #[must_use]
    pub(super) fn lookahead(&self) -> u32 {
        self.lookahead
    }

    /// Takes in what a store says; mutates what is learned. True when the view changed.
    ///
    /// # Errors
    /// The first contradiction; what is known stays as it was.
    pub(super) fn learn(&mut self, news: GroupNews) -> std::result::Result<bool, Contradiction> {
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
        let group = self.resolve(news.group);
        let configured = self.configured_groups().is_some();
        let known = self.known(group);
        if configured && known.is_none() {
            return Err(Contradiction::Group);
        }
        let Some(known) = known else {
            self.set_learned(
                group,
                Known {
                    kind: news.kind,
                    window: news.window,
                    block_size: news.block_size,
                    grain: news.block_size,
                },
            );
            return Ok(true);
        };
        let merged = merge(known, news, configured)?;
        if merged == known || configured {
            return Ok(false);
        }
        self.set_learned(group, merged);
        Ok(true)
    }

    fn set_learned(&mut self, group: u16, known: Known) {
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

    /// Tokens per hash of the engine's chain, where the operator said which groups there are.
    #[must_use]
    pub(super) fn configured_hash_block(&self) -> Option<u32> {
        let topology = self.config.topology.as_ref()?;
        (!topology.groups.is_empty()).then_some(topology.hash_block_size)
    }

    /// What every boundary seen is a multiple of, in tokens: the configured hash block, or the
    /// greatest common divisor of all sizes seen, of which the engine's hash block is a divisor;
    /// 0 while nothing is known.
    #[must_use]
    pub(super) fn grain(&self) -> u32 {
        self.configured_hash_block().unwrap_or_else(|| {
            // What no prefix is looked up in need not follow the chain.
            self.reused().map(|known| known.grain).fold(0, gcd)
        })
    }

    /// What a store of blocks of this size keeps of its group, if the operator said that whole
    /// windows are kept, and that tells anything. The alignment of learned groups only grows, so
    /// that tails end at multiples of a smaller one too.
    #[must_use]
    pub(super) fn tails(&self, group: u16, block_size: u32) -> Option<Tails> {
        if !self.config.keeps_whole_windows || self.config.full_reports {
            return None;
        }
        let known = self.known(group)?;
        let topology = self.config.topology.as_ref();
        let groups = self.configured_groups().unwrap_or_default();
        // Entries within blocks, and a draft head's windows, end elsewhere.
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

    /// Learned groups that some prefix is looked up in.
    fn reused(&self) -> impl Iterator<Item = &Known> + Clone {
        let all = self.learned.iter().flatten().chain(&self.ungrouped);
        all.filter(|known| !known.kind.is_some_and(SpecKind::is_never_reused))
    }

    /// A learned group as the rule takes it.
    pub(super) fn learned_group(&self, known: Known) -> GroupSpec {
        let kind = known.kind.unwrap_or(SpecKind::Unknown);
        let unsent = self.config.unsent.iter().find(|(of, _)| *of == kind);
        let unsent = unsent.map(|(_, tokens)| *tokens);
        let window = known.window.or(unsent).filter(|_| kind.is_window());
        // A window kind whose window nobody said is as unknown as its kind.
        let is_windowless = kind.is_window() && window.is_none();
        GroupSpec {
            kind: if is_windowless {
                SpecKind::Unknown
            } else {
                kind
            },
            block_size: known.block_size.max(1),
            window,
            chunk: unsent.filter(|_| kind == SpecKind::ChunkedLocalAttention),
            eagle: false,
            prefix_cacheable: true,
            variant: 0,
        }
    }
}

fn merge(
    known: Known,
    news: GroupNews,
    configured: bool,
) -> std::result::Result<Known, Contradiction> {
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
    Ok(Known {
        kind,
        window,
        block_size: known.block_size.max(news.block_size),
        grain: gcd(known.grain, news.block_size),
    })
}
