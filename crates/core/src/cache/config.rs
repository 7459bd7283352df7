//! How a cache is set up: groups, pool, retention; and what no cache can be is refused here.

use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgo};
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// What allocation needs to know of a group and the resume rule does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupOptions {
    /// State groups: blocks kept for draft tokens after the running state.
    pub num_speculative_blocks: u32,
    /// Window groups: tokens before the window that are kept although nothing attends to them.
    pub extra_retained_tokens: u32,
    /// New blocks are listed for zeroing.
    pub needs_zeroing: bool,
    /// One block per request, overwritten in turn; never cached.
    pub is_ring: bool,
    /// State groups: the backend can save one state inside a step, at multiples of so many tokens
    /// after its start.
    pub checkpoint_alignment: Option<u32>,
}

impl GroupOptions {
    /// What makes no sense for a group: each with whether it is so, and what to do about it.
    fn problems(&self, group: &GroupSpec) -> [(bool, &'static str); 5] {
        [
            (
                self.is_ring && group.prefix_cacheable,
                "a ring is overwritten, so it cannot be cached; set prefix_cacheable to false",
            ),
            (
                self.num_speculative_blocks > 0 && group.kind != SpecKind::Mamba,
                "num_speculative_blocks is for state groups; leave it 0",
            ),
            (
                self.checkpoint_alignment.is_some() && group.kind != SpecKind::Mamba,
                "checkpoint_alignment is for state groups; leave it out",
            ),
            (
                self.checkpoint_alignment == Some(0),
                "checkpoint_alignment is 0; give at least one token, or leave it out",
            ),
            (
                self.extra_retained_tokens > 0 && !group.kind.is_window(),
                "extra_retained_tokens is for window groups; leave it 0",
            ),
        ]
    }
}

/// Prefill compute of a model, in any unit: what reusing tokens saves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillCost {
    /// The cost of each token.
    pub per_token: f64,
    /// The cost of each token with each one before it: full attention.
    pub per_pair: f64,
}

impl PrefillCost {
    /// The cost of the tokens from `start` to `end`.
    #[must_use]
    pub fn between(&self, start: u32, end: u32) -> f64 {
        let (start, end) = (f64::from(start), f64::from(end));
        self.per_token * (end - start) + self.per_pair * (end * end - start * start) / 2.0
    }
}

/// Eviction by what is lost, instead of by age alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByValue {
    /// Checkpoints at multiples of so many tokens, beside prompt ends, request ends and branches; 0:
    /// the latter alone.
    pub interval: u32,
    /// What a reused token saves.
    pub cost: PrefillCost,
}

/// Which window blocks and states are kept findable, and which blocks are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Retention {
    /// All that can serve a boundary.
    #[default]
    Dense,
    /// Those at multiples of so many tokens, prompt ends and junctions; 0: the latter two alone.
    Interval(u32),
    /// All that can serve a boundary; checkpoints of the least value are evicted first.
    ByValue(ByValue),
}

/// The engine's hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashFunction {
    /// The algorithm.
    pub algo: HashAlgo,
    /// Parent of every first block.
    pub none_hash: Digest,
}

/// A cache, before it exists.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each an engine's own"
)]
pub struct CacheConfig {
    /// Groups, alignment and dialect.
    pub topology: Topology,
    /// One per group.
    pub options: Vec<GroupOptions>,
    /// Blocks of the pool, the null block included.
    pub num_blocks: u32,
    /// Prefixes are reused.
    pub caching: bool,
    /// Events are recorded.
    pub events: bool,
    /// What is kept, and what is evicted first.
    pub retention: Retention,
    /// Tokens of a request at most.
    pub max_model_len: u32,
    /// Tokens that may be in flight at once; bounds what window and chunk groups reserve.
    pub max_in_flight_tokens: Option<u32>,
    /// Blocks to leave free when a waiting request is admitted.
    pub watermark_blocks: u32,
    /// Last tokens of a request that may be computed again, so that they are not cached.
    pub num_reprefillable_tokens: u32,
    /// A state is kept at a junction inside a block, too, where a step ends there.
    pub partial_junctions: bool,
    /// `None`: requests bring their hashes.
    pub hash: Option<HashFunction>,
    /// A request that does not fit still gives back the blocks that it reads no more, as vLLM does.
    pub frees_skipped_when_full: bool,
}

const MAX_GROUPS: usize = 64;

impl CacheConfig {
    /// Whether the engine's own search can say that more is held than is.
    pub(super) fn hits_may_lack_blocks(&self) -> bool {
        let dialect = self.topology.dialect;
        dialect.has(EngineDialect::CHUNK_START_OF_THE_CANDIDATE)
            || dialect.has(EngineDialect::EAGLE_THREE_SPECS_UNVERIFIED)
    }

    /// A hit is a multiple of so many tokens.
    pub(super) fn hit_alignment(&self) -> u32 {
        if self.topology.partial_hits {
            self.topology.hash_block_size
        } else {
            self.topology.alignment
        }
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// `InvalidValue` that names the group, the rule and the remedy.
    pub fn validate(&self) -> Result<()> {
        self.topology.validate()?;
        let bad = |text: String| Err(Error::InvalidValue(text));
        if self.num_blocks < 2 {
            return bad(format!(
                "num_blocks is {}; block 0 is the null block, so a pool has at least 2",
                self.num_blocks
            ));
        }
        if self.topology.groups.len() > MAX_GROUPS {
            return bad(format!(
                "{} groups; a cache has at most {MAX_GROUPS}",
                self.topology.groups.len()
            ));
        }
        self.check_alignment()?;
        self.check_junctions()?;
        self.check_retention()?;
        (0..self.topology.groups.len()).try_for_each(|group| self.check_group(group))
    }

    fn check_alignment(&self) -> Result<()> {
        let alignment = self.topology.alignment;
        for (index, group) in self.topology.groups.iter().enumerate() {
            if group.prefix_cacheable && !alignment.is_multiple_of(group.block_size) {
                return Err(Error::InvalidValue(format!(
                    "group {index}: block_size {} does not divide the alignment {alignment}; a hit \
                     ends where a block of every group ends: take their least common multiple",
                    group.block_size
                )));
            }
        }
        Ok(())
    }

    fn check_junctions(&self) -> Result<()> {
        if !self.partial_junctions
            || (self.topology.partial_hits && self.num_reprefillable_tokens == 0)
        {
            return Ok(());
        }
        Err(Error::InvalidValue(format!(
            "partial_junctions with partial_hits {} and {} re-prefillable tokens; states inside a \
             block need the former, and none of the latter: leave partial_junctions out",
            self.topology.partial_hits, self.num_reprefillable_tokens
        )))
    }

    fn check_retention(&self) -> Result<()> {
        let tokens = match self.retention {
            Retention::Dense => return Ok(()),
            Retention::Interval(tokens) => tokens,
            Retention::ByValue(policy) => return self.check_value(&policy),
        };
        let is_sparse = |kind: SpecKind| kind.is_window() || kind == SpecKind::Mamba;
        let has_sparse = self.topology.groups.iter().any(|g| is_sparse(g.kind));
        if tokens > 0 && (!has_sparse || !tokens.is_multiple_of(self.topology.alignment)) {
            return Err(Error::InvalidValue(format!(
                "retention interval {tokens}: it must be 0 without window and state groups, else a \
                 multiple of the alignment {}",
                self.topology.alignment
            )));
        }
        Ok(())
    }

    fn check_value(&self, policy: &ByValue) -> Result<()> {
        let ByValue { interval, cost } = *policy;
        let is_cost = |cost: f64| cost.is_finite() && cost >= 0.0;
        let is_free = cost.per_token + cost.per_pair <= 0.0;
        let problem = if !interval.is_multiple_of(self.topology.alignment) {
            format!(
                "checkpoints every {interval} tokens; take 0, or a multiple of the alignment {}",
                self.topology.alignment
            )
        } else if !is_cost(cost.per_token) || !is_cost(cost.per_pair) || is_free {
            format!(
                "a prefill cost of {} a token and {} a pair; neither is below 0, nor both 0",
                cost.per_token, cost.per_pair
            )
        } else {
            return Ok(());
        };
        Err(Error::InvalidValue(format!(
            "retention by value: {problem}"
        )))
    }

    fn check_group(&self, index: usize) -> Result<()> {
        let (group, options) = (&self.topology.groups[index], &self.options[index]);
        let name = group.kind.name();
        let topology = &self.topology;
        let is_chunked = group.kind == SpecKind::ChunkedLocalAttention;
        let problems = [
            (
                group.kind == SpecKind::Unknown,
                "its kind is unknown; name one",
            ),
            (
                is_chunked && group.chunk.is_none(),
                "its chunk is missing; give it in tokens",
            ),
            (
                is_chunked && group.eagle,
                "a draft head cannot share it: no engine rewinds a chunk; leave eagle out",
            ),
            (
                topology.replay_tokens > 0 && (is_chunked || group.kind == SpecKind::Mamba),
                "nothing is kept where bounded replay begins; set replay_tokens to 0",
            ),
            (
                group.eagle && topology.alignment <= self.num_reprefillable_tokens,
                "the unit that a draft head drops must cover num_reprefillable_tokens; enlarge the \
                 alignment",
            ),
        ];
        let of_options = options.problems(group);
        let mut problems = problems.iter().chain(&of_options);
        let Some((_, problem)) = problems.find(|(is_there, _)| *is_there) else {
            return Ok(());
        };
        Err(Error::InvalidValue(format!(
            "group {index} ({name}): {problem}"
        )))
    }
}
