//! What is known of one pod's groups: configured, or learned from its events.
//!
//! Configuration wins; what events say is checked against it. Without configuration the largest
//! block size seen of a group is its block size, and its first kind and window are its own; a
//! window or chunk that no event carries is what the operator said of its kind.

use super::limbo::Tails;
use crate::error::{Error, Result};
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};
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
pub struct GroupNews {
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
pub enum Contradiction {
    /// Another kind than configured or learned.
    Kind,
    /// Another window.
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
    pub const fn reason(self) -> &'static str {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    kind: Option<SpecKind>,
    window: Option<u32>,
    block_size: u32,
    /// What all sizes seen are multiples of: entries within a block stand at hashes too.
    grain: u32,
}

/// The index of the group that ungrouped events of an unconfigured pod belong to.
pub const UNGROUPED: u16 = u16::MAX;
/// Of an alignment of more blocks, what a retention keeps tells too little for what it costs.
const MOST_BLOCKS_PER_ALIGNMENT: u32 = 64;

/// No block has more tokens: it is the longest request that the HTTP service answers as long as
/// nobody configures more, and engines have blocks of at most a few thousand.
pub const MAX_BLOCK_TOKENS: u32 = 1 << 20;

/// What the rule is evaluated with for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// Groups, alignment and dialect; group `i` of it has its presence under `groups[i]`.
    pub topology: Topology,
    /// Wire group index of each group of the topology.
    pub groups: Vec<u16>,
    /// Nothing can be promised: lower bounds are 0.
    pub lower_is_zero: bool,
    /// Nothing can be excluded: upper bounds are the whole aligned prompt.
    pub upper_is_everything: bool,
    /// Some kind or chunk is unknown, so that the rule differs between lower and upper.
    pub has_unknown: bool,
    /// Group 0, where it is there and nobody has said of what kind it is.
    pub undeclared: Option<u16>,
}

/// The groups of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    config: PodConfig,
    learned: Vec<Option<Known>>,
    ungrouped: Option<Known>,
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

/// Least common multiple; one that no token count reaches becomes the largest multiple of the
/// greatest common divisor, which is as far from any hit.
fn lcm(values: impl Iterator<Item = u32> + Clone) -> u32 {
    let mut all = values.clone();
    let exact = all.try_fold(1u32, |a, b| (a / gcd(a, b)).checked_mul(b));
    exact.unwrap_or_else(|| {
        let step = values.fold(0, gcd).max(1);
        u32::MAX / step * step
    })
}

/// Greatest common divisor; `gcd(0, b) = b`.
#[must_use]
pub const fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Catalog {
    /// Starts from what the operator configured.
    ///
    /// # Errors
    /// Whatever `Topology::validate` refuses; more groups or larger blocks than any engine has; a
    /// window or chunk of no tokens.
    pub fn new(config: PodConfig) -> Result<Self> {
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

    /// The operator's configuration.
    #[must_use]
    pub fn config(&self) -> &PodConfig {
        &self.config
    }

    fn configured_groups(&self) -> Option<&[GroupSpec]> {
        let groups = self.config.topology.as_ref().map(|t| t.groups.as_slice())?;
        (!groups.is_empty()).then_some(groups)
    }

    /// Whether the operator said which groups there are.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.configured_groups().is_some()
    }

    /// Which group an event speaks of. Events without an index belong to the only group there is,
    /// or to the only full-attention group (SGLang publishes that component alone).
    #[must_use]
    pub fn resolve(&self, group: Option<u32>) -> u16 {
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
    pub fn block_size(&self, group: u16) -> u32 {
        self.known(group).map_or(0, |k| k.block_size)
    }

    /// Tokens after a block that its hash also covers.
    #[must_use]
    pub fn lookahead(&self) -> u32 {
        self.lookahead
    }

    /// Takes in what a store says; mutates what is learned. True when the view changed.
    ///
    /// # Errors
    /// The first contradiction; what is known stays as it was.
    pub fn learn(&mut self, news: GroupNews) -> std::result::Result<bool, Contradiction> {
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
    pub fn configured_hash_block(&self) -> Option<u32> {
        let topology = self.config.topology.as_ref()?;
        (!topology.groups.is_empty()).then_some(topology.hash_block_size)
    }

    /// What every boundary seen is a multiple of, in tokens: the configured hash block, or the
    /// greatest common divisor of all sizes seen, of which the engine's hash block is a divisor;
    /// 0 while nothing is known.
    #[must_use]
    pub fn grain(&self) -> u32 {
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

    /// What the rule is evaluated with; `None` while no group is known, which means that the pod
    /// holds nothing.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        let mut view = match self.configured_groups() {
            Some(groups) => self.configured_view(groups),
            None => self.learned_view()?,
        };
        view.topology.hash_lookahead = self.lookahead;
        view.lower_is_zero |= self.config.full_reports;
        let groups = &view.topology.groups;
        view.has_unknown = groups.iter().any(|g| {
            g.prefix_cacheable
                && (g.kind == SpecKind::Unknown
                    || (g.kind == SpecKind::ChunkedLocalAttention && g.chunk.is_none()))
        });
        Some(view)
    }

    fn configured_view(&self, groups: &[GroupSpec]) -> View {
        let mut topology = self
            .config
            .topology
            .clone()
            .unwrap_or_else(|| bare_topology(groups.to_vec()));
        let mut indices: Vec<u16> = (0u16..).take(groups.len()).collect();
        let mut lower_is_zero = false;
        let is_undeclared = groups.first().is_some_and(|g| g.kind == SpecKind::Unknown);
        if self.config.only_full_is_published {
            let keep: Vec<bool> = groups.iter().map(|g| g.kind.is_full()).collect();
            lower_is_zero = keep.contains(&false);
            topology.groups = retain_by(&topology.groups, &keep);
            indices = retain_by(&indices, &keep);
        }
        View {
            topology,
            groups: indices,
            lower_is_zero,
            upper_is_everything: false,
            has_unknown: false,
            undeclared: is_undeclared.then_some(0),
        }
    }

    fn learned_view(&self) -> Option<View> {
        let mut groups = Vec::new();
        let mut indices = Vec::new();
        for (index, known) in (0u16..).zip(&self.learned) {
            if let Some(known) = known {
                groups.push(self.learned_group(*known));
                indices.push(index);
            }
        }
        // A gap means groups of which nothing is known yet: they may hold or lack anything.
        let has_gap = groups.len() < self.learned.len();
        let mut upper_is_everything = false;
        let mut lower_is_zero = has_gap;
        if let Some(known) = self.ungrouped {
            let kind = known.kind.filter(|k| *k != SpecKind::Unknown);
            lower_is_zero |= kind.is_none() || !groups.is_empty();
            upper_is_everything =
                (kind.is_none() && !self.config.only_full_is_published) || !groups.is_empty();
            let assumed = Known {
                kind: kind.or(Some(SpecKind::FullAttention)),
                ..known
            };
            groups.push(self.learned_group(assumed));
            indices.push(UNGROUPED);
        }
        if groups.is_empty() {
            return None;
        }
        let is_undeclared = matches!(self.learned.first(), Some(Some(Known { kind: None, .. })));
        let template = self.config.topology.as_ref();
        let mut topology = bare_topology(groups);
        topology.hash_block_size = self.grain().max(1);
        if let Some(template) = template {
            topology.partial_hits = template.partial_hits;
            if template.partial_hits && template.hash_block_size > 1 {
                // Hits may end where nothing was stored yet. 1 stands for a size not given.
                topology.hash_block_size = gcd(topology.hash_block_size, template.hash_block_size);
            }
            topology.replay_tokens = template.replay_tokens;
            topology.dialect = template.dialect;
        }
        Some(View {
            topology,
            groups: indices,
            lower_is_zero,
            upper_is_everything,
            has_unknown: false,
            undeclared: is_undeclared.then_some(0),
        })
    }

    fn learned_group(&self, known: Known) -> GroupSpec {
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

fn retain_by<T: Clone>(items: &[T], keep: &[bool]) -> Vec<T> {
    items
        .iter()
        .zip(keep)
        .filter(|(_, k)| **k)
        .map(|(item, _)| item.clone())
        .collect()
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

fn bare_topology(groups: Vec<GroupSpec>) -> Topology {
    let cacheable = || {
        groups
            .iter()
            .filter(|g| g.prefix_cacheable && !g.kind.is_never_reused())
    };
    let alignment = lcm(cacheable().map(|g| g.block_size));
    let hash_block_size = cacheable().map(|g| g.block_size).fold(0, gcd).max(1);
    Topology {
        alignment,
        hash_block_size,
        groups,
        partial_hits: false,
        replay_tokens: 0,
        hash_lookahead: 0,
        dialect: EngineDialect::VLLM,
    }
}
