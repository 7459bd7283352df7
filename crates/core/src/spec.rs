//! What one pod's cache consists of: groups, their kinds, and how its engine departs from the rule.
//!
//! Everything here is plain data. `Topology::validate` is the only place that refuses a topology.

use crate::divisors::gcd;
use crate::error::{Error, Result};
use crate::names::{named, names};
use serde::{Deserialize, Serialize};

/// The attention kind of a group. Its name on the wire is in `SpecKind::NAMES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpecKind {
    /// A token attends to every earlier token.
    FullAttention,
    /// Multi-head latent attention, which is cached like full attention.
    MlaAttention,
    /// Full attention with sink tokens, which is cached like full attention.
    SinkFullAttention,
    /// A token attends to the last `window` tokens only.
    SlidingWindow,
    /// A sliding window over latent attention.
    SlidingWindowMla,
    /// A token attends to tokens of the same chunk only.
    ChunkedLocalAttention,
    /// One state per checkpoint: any linear-attention or state-space model.
    Mamba,
    /// The blocks are never reused as a prefix.
    EncoderOnlyAttention,
    /// The blocks are never reused as a prefix.
    CrossAttention,
    /// The producer did not say, or named a kind that this version does not know.
    Unknown,
}

names! { SpecKind:
    FullAttention = "full_attention",
    MlaAttention = "mla_attention",
    SinkFullAttention = "sink_full_attention",
    SlidingWindow = "sliding_window",
    SlidingWindowMla = "sliding_window_mla",
    ChunkedLocalAttention = "chunked_local_attention",
    Mamba = "mamba",
    EncoderOnlyAttention = "encoder_only_attention",
    CrossAttention = "cross_attention",
    Unknown = "unknown",
}

impl SpecKind {
    /// Whether every block of the prefix is needed: full, MLA and sink attention.
    #[must_use]
    pub fn is_full(self) -> bool {
        matches!(
            self,
            Self::FullAttention | Self::MlaAttention | Self::SinkFullAttention
        )
    }

    /// Whether the kind is a sliding window.
    #[must_use]
    pub fn is_window(self) -> bool {
        matches!(self, Self::SlidingWindow | Self::SlidingWindowMla)
    }

    /// Whether the kind never restricts a prefix, because no engine reuses its blocks as a prefix.
    #[must_use]
    pub fn is_never_reused(self) -> bool {
        matches!(self, Self::EncoderOnlyAttention | Self::CrossAttention)
    }
}

/// One group: layers that share a kind and a block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupSpec {
    /// The attention kind.
    pub kind: SpecKind,
    /// Tokens per block, already multiplied by context parallelism.
    pub block_size: u32,
    /// The window in tokens; set only for window kinds.
    pub window: Option<u32>,
    /// The chunk in tokens; only for chunked local attention, and `None` if it is not configured.
    pub chunk: Option<u32>,
    /// Whether a draft head reads hidden states right before the resume point.
    pub eagle: bool,
    /// False for groups that the engine marks as not prefix-cacheable; they never restrict a
    /// prefix.
    pub prefix_cacheable: bool,
    /// A number that differs between groups which differ only in heads, number format or
    /// replication.
    pub variant: u32,
}

impl GroupSpec {
    /// A group that prefixes are looked up in, without a window, a chunk or a draft head.
    #[must_use]
    pub const fn new(kind: SpecKind, block_size: u32) -> Self {
        Self {
            kind,
            block_size,
            window: None,
            chunk: None,
            eagle: false,
            prefix_cacheable: true,
            variant: 0,
        }
    }

    /// Refuses a group that no engine can have.
    ///
    /// # Errors
    /// `InvalidValue` that names the rule and the value.
    pub fn validate(&self) -> Result<()> {
        let problem = if self.block_size == 0 {
            "block_size 0; it must be at least 1 token".to_owned()
        } else if self.kind.is_window() && self.window.is_none_or(|w| w == 0) {
            let kind = self.kind.name();
            format!("a {kind} group needs a window of at least 1 token")
        } else if self.chunk == Some(0) {
            "chunk 0; give tokens, or leave it out".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::InvalidValue(problem))
    }

    /// Whether engines look both groups up together: they differ at most in their draft heads.
    #[must_use]
    pub fn is_looked_up_with(&self, other: &Self) -> bool {
        let eagle = other.eagle;
        Self { eagle, ..*self } == *other
    }
}

/// How a real engine differs from the rule: a set of flags, each of which `docs/resume-rule.md`
/// describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct EngineDialect(u8);

impl EngineDialect {
    /// A window of one token still needs one cached block at its right edge.
    pub const WINDOW_OF_ONE_NEEDS_A_BLOCK: Self = Self(1 << 0);
    /// The chunk start is computed from the candidate length instead of the returned one.
    pub const CHUNK_START_OF_THE_CANDIDATE: Self = Self(1 << 1);
    /// With exactly one group, the extra EAGLE unit must end at or before `num_tokens - 1`.
    pub const EAGLE_SINGLE_GROUP_WITHIN_PROMPT: Self = Self(1 << 2);
    /// With EAGLE, unequal block sizes and a prefix shorter than the window, the length is aligned
    /// before and after the drop.
    pub const EAGLE_UNEQUAL_BLOCKS_REALIGN: Self = Self(1 << 3);
    /// With EAGLE and three or more specs, a drop that shrinks the length does not verify the other
    /// specs again.
    pub const EAGLE_THREE_SPECS_UNVERIFIED: Self = Self(1 << 4);
    /// If one of several groups with the same spec uses EAGLE, all of them count as EAGLE groups,
    /// because they are looked up together.
    pub const EAGLE_SHARED_BY_EQUAL_SPECS: Self = Self(1 << 5);
    /// Interior boundaries are probed one by one below the candidate, and together for groups with
    /// the same spec. An entry after the candidate, or an entry that only one group has, extends
    /// nothing.
    pub const PARTIAL_HITS_ARE_PROBED: Self = Self(1 << 6);
    /// A hash that covers tokens after its block can only be found if those tokens, too, come before
    /// the last one: `SGLang` looks up the pairs of the first `num_tokens - 1` tokens.
    pub const LOOKAHEAD_BEFORE_THE_LAST_TOKEN: Self = Self(1 << 7);

    /// The rule itself, without any departure.
    pub const PURE: Self = Self(0);
    /// The dialect of vLLM 0.32 and 0.33: all flags but the last.
    pub const VLLM: Self = Self((1 << 7) - 1);
    /// The dialect of `SGLang` 0.5.23.
    pub const SGLANG: Self = Self::LOOKAHEAD_BEFORE_THE_LAST_TOKEN;

    /// The names of dialects and of single flags; several can be combined with
    /// [`EngineDialect::with`].
    pub const NAMES: [(&'static str, EngineDialect); 11] = [
        ("pure", Self::PURE),
        ("vllm", Self::VLLM),
        ("sglang", Self::SGLANG),
        (
            "window_of_one_needs_a_block",
            Self::WINDOW_OF_ONE_NEEDS_A_BLOCK,
        ),
        (
            "chunk_start_of_the_candidate",
            Self::CHUNK_START_OF_THE_CANDIDATE,
        ),
        (
            "eagle_single_group_within_prompt",
            Self::EAGLE_SINGLE_GROUP_WITHIN_PROMPT,
        ),
        (
            "eagle_unequal_blocks_realign",
            Self::EAGLE_UNEQUAL_BLOCKS_REALIGN,
        ),
        (
            "eagle_three_specs_unverified",
            Self::EAGLE_THREE_SPECS_UNVERIFIED,
        ),
        (
            "eagle_shared_by_equal_specs",
            Self::EAGLE_SHARED_BY_EQUAL_SPECS,
        ),
        ("partial_hits_are_probed", Self::PARTIAL_HITS_ARE_PROBED),
        (
            "lookahead_before_the_last_token",
            Self::LOOKAHEAD_BEFORE_THE_LAST_TOKEN,
        ),
    ];

    /// The dialect or flag with this name, or `None` when the name is not known.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        named(&Self::NAMES, name.as_bytes())
    }

    /// Whether this dialect has all flags of the other.
    #[must_use]
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The flags of both dialects.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags of this dialect without those of the other.
    #[must_use]
    pub fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

/// Everything the resume rule needs to know of one pod's cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Topology {
    /// The groups in the engine's own order; the index is the wire's `group_idx`.
    pub groups: Vec<GroupSpec>,
    /// The number of tokens that every hit is a multiple of.
    pub alignment: u32,
    /// Tokens per hash of the engine's chain; divides the block size of every cacheable group.
    pub hash_block_size: u32,
    /// Whether hits may end at interior boundaries of blocks (multiples of `hash_block_size`).
    pub partial_hits: bool,
    /// With bounded replay, the number of tokens of a hit that the engine computes again; 0 without
    /// it.
    pub replay_tokens: u32,
    /// The number of tokens after its block that a hash also covers; 0 if there are none.
    pub hash_lookahead: u32,
    /// The engine's departures from the rule.
    pub dialect: EngineDialect,
}

impl Topology {
    /// These groups under the pure rule, with what holds if nothing else is configured.
    #[must_use]
    pub fn new(groups: Vec<GroupSpec>) -> Self {
        Self {
            alignment: Self::default_alignment(&groups),
            hash_block_size: Self::default_hash_block_size(&groups),
            groups,
            partial_hits: false,
            replay_tokens: 0,
            hash_lookahead: 0,
            dialect: EngineDialect::PURE,
        }
    }

    /// The alignment of hits if none is configured: the smallest at which blocks of all groups end.
    #[must_use]
    pub fn default_alignment(groups: &[GroupSpec]) -> u32 {
        let sizes = groups.iter().map(|group| u64::from(group.block_size));
        let common = sizes.fold(1, |all, size| {
            (all / gcd(all, size).max(1)).saturating_mul(size)
        });
        u32::try_from(common).unwrap_or(u32::MAX)
    }

    /// The tokens per hash if none are configured: the largest number that divides all block sizes
    /// of the groups that are looked up.
    #[must_use]
    pub fn default_hash_block_size(groups: &[GroupSpec]) -> u32 {
        let cacheable = groups.iter().filter(|group| group.prefix_cacheable);
        let sizes = cacheable.map(|group| u64::from(group.block_size));
        u32::try_from(sizes.fold(0, gcd)).map_or(u32::MAX, |common| common.max(1))
    }

    /// Refuses a topology that no engine can have.
    ///
    /// # Errors
    /// `InvalidValue` that names the group, the rule and the value.
    pub fn validate(&self) -> Result<()> {
        let bad = |text: String| Err(Error::InvalidValue(text));
        if self.hash_block_size == 0 || self.alignment == 0 {
            return bad(format!(
                "hash_block_size {} and alignment {} must be at least 1 token",
                self.hash_block_size, self.alignment
            ));
        }
        for (index, group) in self.groups.iter().enumerate() {
            if let Err(Error::InvalidValue(problem)) = group.validate() {
                return bad(format!("group {index}: {problem}"));
            }
            // A group that no prefix is looked up in need not follow the hash chain.
            let is_chained = group.block_size % self.hash_block_size == 0;
            if group.prefix_cacheable && !is_chained {
                return bad(format!(
                    "group {index}: block_size {} is not a multiple of hash_block_size {}",
                    group.block_size, self.hash_block_size
                ));
            }
        }
        Ok(())
    }
}
