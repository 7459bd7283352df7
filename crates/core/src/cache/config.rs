//! How a cache is set up: its groups, pool and retention. A configuration that no cache can have is
//! refused here.

use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgo, none_hash};
use crate::names::names;
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// What allocation needs to know of a group beyond what the resume rule needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupOptions {
    /// For state groups: the number of blocks kept for draft tokens after the running state.
    pub num_speculative_blocks: u32,
    /// For window groups: the number of tokens before the window that are kept although no token
    /// attends to them.
    pub extra_retained_tokens: u32,
    /// Whether new blocks are listed for zeroing.
    pub needs_zeroing: bool,
    /// Whether each request has one block, which is overwritten in turn and never cached.
    pub is_ring: bool,
    /// For state groups: the backend can save one state inside a step, at a multiple of this many
    /// tokens after the step's start.
    pub checkpoint_alignment: Option<u32>,
}

impl GroupOptions {
    /// The combinations that make no sense for a group: for each, whether the group has it and what
    /// to do about it.
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

/// The compute that a model's prefill costs, in any unit. Reusing tokens saves this compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefillCost {
    /// The cost of each token by itself.
    pub per_token: f64,
    /// The cost of each pair of a token and an earlier token, for full attention.
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

/// What is evicted first under retention by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// What no checkpoint needs, then the checkpoint that is worth least.
    Value,
    /// What was used least recently, whether a checkpoint needs it or not.
    Dense,
    /// What no checkpoint needs, then the checkpoint that was used least recently.
    Interval,
}

names! { EvictionPolicy:
    Value = "value",
    Dense = "dense",
    Interval = "interval",
}

impl EvictionPolicy {
    /// The policy of a name.
    ///
    /// # Errors
    /// `InvalidValue` for any other name.
    pub fn named(name: &str) -> Result<Self> {
        Self::from_name(name).ok_or_else(|| {
            Error::InvalidValue(format!("policy {name}; it is value, dense or interval"))
        })
    }
}

/// Eviction by the value of what is lost, instead of by age alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByValue {
    /// The number of tokens between regular checkpoints, which are kept in addition to those at
    /// prompt ends, request ends and branches. With 0 there are no regular checkpoints.
    pub interval: u32,
    /// The compute that a reused token saves.
    pub cost: PrefillCost,
    /// What goes first; `None` lets the traffic decide, in a cache that adapts.
    pub policy: Option<EvictionPolicy>,
}

/// Which window blocks and states stay findable, and which blocks are evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Retention {
    /// Every block and state that some boundary can be resumed with is kept.
    #[default]
    Dense,
    /// Only those at multiples of this many tokens, at prompt ends and at junctions are kept. With
    /// 0, only those at prompt ends and junctions.
    Interval(u32),
    /// Everything that some boundary can be resumed with is kept; checkpoints of the least value
    /// are evicted first.
    ByValue(ByValue),
}

/// The engine's hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashFunction {
    /// The hash algorithm.
    pub algo: HashAlgo,
    /// The digest that serves as the parent of every first block.
    pub none_hash: Digest,
}

/// The configuration of a cache.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each an engine's own"
)]
pub struct CacheConfig {
    /// The groups, the alignment and the dialect.
    pub topology: Topology,
    /// The options of the groups, one for each group.
    pub options: Vec<GroupOptions>,
    /// The number of blocks of the pool, including the null block.
    pub num_blocks: u32,
    /// Whether prefixes are reused.
    pub caching: bool,
    /// Whether events are recorded.
    pub events: bool,
    /// Whether blocks that become findable are noted.
    pub findable: bool,
    /// The engines' word for the memory that has the blocks, which events name.
    pub medium: String,
    /// What is kept, and what is evicted first.
    pub retention: Retention,
    /// The largest number of tokens of a request.
    pub max_model_len: u32,
    /// The largest number of tokens in flight. It bounds the blocks that window and chunk groups
    /// reserve.
    pub max_in_flight_tokens: Option<u32>,
    /// The number of blocks that must stay free when a waiting request is admitted.
    pub watermark_blocks: u32,
    /// The number of last tokens of a request that may be computed again, so they are not cached
    /// yet.
    pub num_reprefillable_tokens: u32,
    /// Whether a state is also kept at a junction inside a block, if a step ends there.
    pub partial_junctions: bool,
    /// The hash function; `None` if requests bring their hashes.
    pub hash: Option<HashFunction>,
    /// Whether the cache replaces vLLM's own, whose scheduler relies on three things: even a request
    /// that does not fit gives back the blocks that it no longer reads; what was registered stays
    /// findable if its step never runs; and any number of computed tokens may be taken back.
    pub follows_vllm: bool,
}

const MAX_GROUPS: usize = 64;

impl CacheConfig {
    /// A pool for these groups that keeps everything and records no events, hashes with SHA-256 and
    /// has no other limit.
    #[must_use]
    pub fn new(topology: Topology, num_blocks: u32) -> Self {
        let algo = HashAlgo::Sha256;
        Self {
            options: vec![GroupOptions::default(); topology.groups.len()],
            topology,
            num_blocks,
            caching: true,
            events: false,
            findable: false,
            medium: "GPU".to_owned(),
            retention: Retention::Dense,
            max_model_len: u32::MAX,
            max_in_flight_tokens: None,
            watermark_blocks: 0,
            num_reprefillable_tokens: 0,
            partial_junctions: false,
            hash: none_hash(algo, None).map(|none_hash| HashFunction { algo, none_hash }),
            follows_vllm: false,
        }
    }

    /// Whether the engine's own search can report more than is held.
    pub(super) fn hits_may_lack_blocks(&self) -> bool {
        let dialect = self.topology.dialect;
        dialect.has(EngineDialect::CHUNK_START_OF_THE_CANDIDATE)
            || dialect.has(EngineDialect::EAGLE_THREE_SPECS_UNVERIFIED)
    }

    /// The number of tokens that every hit is a multiple of.
    pub(super) fn hit_alignment(&self) -> u32 {
        if self.topology.partial_hits {
            self.topology.hash_block_size
        } else {
            self.topology.alignment
        }
    }

    /// Whether a hit may end inside a block, so that requests go on in copies of blocks.
    pub(super) fn hits_end_inside_blocks(&self) -> bool {
        let ends = [self.hit_alignment(), self.topology.replay_tokens];
        let is_whole = |block| ends.iter().all(|end| end.is_multiple_of(block));
        let mut groups = self.topology.groups.iter();
        groups.any(|group| !is_whole(group.block_size))
    }

    /// Refuses a configuration that cannot work.
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
        if !tokens.is_multiple_of(self.topology.alignment) {
            return Err(Error::InvalidValue(format!(
                "retention interval {tokens}; take 0, or a multiple of the alignment {}",
                self.topology.alignment
            )));
        }
        Ok(())
    }

    fn check_value(&self, policy: &ByValue) -> Result<()> {
        let ByValue { interval, cost, .. } = *policy;
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
