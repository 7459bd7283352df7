//! The differences between the kinds of groups: what running requests still read, and what is worth
//! keeping.

use std::ops::Range;

use super::config::{CacheConfig, GroupOptions};
use crate::rule::{first_read, needed};
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// How a group uses its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Every block stays until the request ends.
    Full,
    /// Tokens before the window are no longer read.
    Window { tokens: u32, retained: u32 },
    /// Tokens of earlier chunks are no longer read.
    Chunk { tokens: u32 },
    /// Only the last state is read; `speculative` blocks are reserved for draft tokens.
    State { speculative: u32 },
    /// The blocks are for the encoder's tokens, and are allocated once.
    Cross,
    /// There is one block, which is overwritten in turn.
    Ring,
    /// The group keeps nothing.
    Nothing,
}

impl Kind {
    /// Whether the blocks of a request stand for its tokens, one after the other.
    pub(super) fn follows_tokens(self) -> bool {
        !matches!(self, Self::Cross | Self::Ring | Self::Nothing)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub index: u16,
    pub kind: Kind,
    /// The group in the form in which this cache looks it up: what it needs at a boundary.
    pub spec: GroupSpec,
    /// Tokens per block.
    pub block: u32,
    /// Whether blocks are registered and looked up.
    pub cacheable: bool,
    /// Whether one unit after a boundary is needed, by this group or by one that is looked up with
    /// it.
    pub eagle: bool,
    pub needs_zeroing: bool,
    /// If present, states are saved inside steps, at multiples of this many tokens after the step's
    /// start.
    pub checkpoint_alignment: Option<u32>,
    /// The largest number of blocks that a request reserves.
    pub admission_cap: Option<u32>,
}

/// The blocks at the end of a boundary's prefix that a hit there reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    pub blocks: u32,
    /// How many of the blocks lie after the boundary.
    pub beyond: u32,
}

fn kind_of(spec: &GroupSpec, options: &GroupOptions) -> Kind {
    if options.is_ring {
        return Kind::Ring;
    }
    match spec.kind {
        SpecKind::FullAttention
        | SpecKind::MlaAttention
        | SpecKind::SinkFullAttention
        | SpecKind::Unknown => Kind::Full,
        SpecKind::SlidingWindow | SpecKind::SlidingWindowMla => Kind::Window {
            tokens: spec.window.unwrap_or(1),
            retained: options.extra_retained_tokens,
        },
        SpecKind::ChunkedLocalAttention => Kind::Chunk {
            tokens: spec.chunk.unwrap_or(u32::MAX),
        },
        SpecKind::Mamba => Kind::State {
            speculative: options.num_speculative_blocks,
        },
        SpecKind::CrossAttention => Kind::Cross,
        SpecKind::EncoderOnlyAttention => Kind::Nothing,
    }
}

/// Whether this group needs an EAGLE unit, itself or because it is looked up together with a group
/// that does.
fn is_eagle(topology: &Topology, spec: &GroupSpec) -> bool {
    let same = |other: &&GroupSpec| other.is_looked_up_with(spec);
    spec.eagle
        || (topology
            .dialect
            .has(EngineDialect::EAGLE_SHARED_BY_EQUAL_SPECS)
            && topology.groups.iter().filter(same).any(|other| other.eagle))
}

impl Group {
    pub(super) fn all(config: &CacheConfig) -> Vec<Self> {
        let specs = (0u16..).zip(&config.topology.groups);
        let groups = specs.zip(&config.options).map(|((index, spec), options)| {
            let kind = kind_of(spec, options);
            let is_replayed = config.topology.replay_tokens > 0 && spec.kind.is_window();
            let cacheable =
                config.caching && spec.prefix_cacheable && kind.follows_tokens() && !is_replayed;
            let eagle = is_eagle(&config.topology, spec);
            Self {
                index,
                kind,
                spec: GroupSpec {
                    eagle,
                    prefix_cacheable: cacheable,
                    ..*spec
                },
                block: spec.block_size,
                cacheable,
                eagle,
                needs_zeroing: options.needs_zeroing,
                checkpoint_alignment: options.checkpoint_alignment,
                admission_cap: admission_cap(kind, spec.block_size, config),
            }
        });
        groups.collect()
    }

    /// The number of leading tokens that no token computed after `tokens` reads.
    pub(super) fn skipped(&self, tokens: u32) -> u32 {
        match self.kind {
            Kind::Cross | Kind::Ring | Kind::Nothing => 0,
            Kind::Window { retained, .. } => {
                first_read(&self.spec, tokens).saturating_sub(retained)
            }
            Kind::Full | Kind::Chunk { .. } | Kind::State { .. } => first_read(&self.spec, tokens),
        }
    }

    /// The blocks that must be held for a resume at `tokens`, except the whole blocks of a full
    /// group.
    pub(super) fn tail_at(&self, tokens: u32) -> Range<u32> {
        let blocks = needed(&self.spec, tokens);
        if self.kind == Kind::Full {
            // No other block continues from a block that the boundary is inside of.
            tokens / self.block..blocks.end
        } else {
            blocks
        }
    }

    /// The next number of computed tokens, after `computed`, at which a decoding step takes,
    /// registers or gives back a block of this group. `late` is by how many tokens registration
    /// lags, because tokens may be computed again or because their hash covers tokens after the
    /// block.
    pub(super) fn next_event(&self, computed: u32, late: [u32; 2]) -> u32 {
        let next = |period: u32, phase: u32| {
            let phase = phase % period;
            let steps = (computed + 1 + period - phase).div_ceil(period);
            steps * period + phase - period
        };
        let taken = next(self.block, 1);
        let registered = late.map(|tokens| next(self.block, tokens));
        let registered = next(self.block, 0).min(registered[0]).min(registered[1]);
        let freed = match self.kind {
            Kind::Window { tokens, retained } => next(self.block, tokens + retained),
            Kind::Chunk { tokens } => next(tokens, 1),
            Kind::State { .. } => next(self.block, 2),
            Kind::Full | Kind::Cross | Kind::Ring | Kind::Nothing => u32::MAX,
        };
        taken.min(registered).min(freed)
    }

    /// The largest number of blocks that a request of this many tokens holds.
    pub(super) fn reservation(&self, tokens: u32) -> u32 {
        match self.kind {
            Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => tokens
                .div_ceil(self.block)
                .min(self.admission_cap.unwrap_or(u32::MAX)),
            // One block is for the state that is read, and one for the state that is written.
            Kind::State { speculative } => tokens.div_ceil(self.block).min(2) + speculative,
            Kind::Ring => 1,
            Kind::Cross | Kind::Nothing => 0,
        }
    }

    /// The blocks at the end of a boundary's prefix that a hit there reads; `None` if it reads all
    /// blocks.
    pub(super) fn tail(&self) -> Option<Tail> {
        let far = match self.kind {
            Kind::Window { tokens, .. } => tokens.div_ceil(self.block),
            Kind::State { .. } => 1,
            Kind::Full | Kind::Chunk { .. } | Kind::Cross | Kind::Ring | Kind::Nothing => {
                return None;
            }
        };
        // The needs are the same at every boundary that has a whole window before it, such as this
        // one.
        let blocks = needed(&self.spec, far.saturating_mul(self.block));
        Some(Tail {
            blocks: blocks.end - blocks.start,
            beyond: blocks.end - far,
        })
    }
}

fn admission_cap(kind: Kind, block: u32, config: &CacheConfig) -> Option<u32> {
    let in_flight = config.max_in_flight_tokens?;
    let most = |tokens: u32| {
        tokens
            .saturating_add(in_flight)
            .min(config.max_model_len)
            .div_ceil(block)
    };
    match kind {
        Kind::Window { tokens, retained } => Some(most(tokens - 1 + retained) + 1),
        Kind::Chunk { tokens } => Some(most(tokens)),
        Kind::Full | Kind::State { .. } | Kind::Cross | Kind::Ring | Kind::Nothing => None,
    }
}
