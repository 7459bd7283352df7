//! A miniature of the cache that leans one way all the time: what would this have saved?
//!
//! A shadow is a cache like the real one, without tokens and events. It plays whole lives of
//! requests, one after the other, from the hashes alone. Its blocks may be larger than the real
//! ones: a shadow of few large blocks costs less and forgets alike.

use super::life::Life;
use super::tape::Pace;
use crate::blocks::count;
use crate::cache::config::{ByValue, CacheConfig, GroupOptions, Lean, Retention};
use crate::cache::retention::Checkpoints;
use crate::cache::{Cache, Match, Need, NewRequest};
use crate::secret::Secret;
use crate::spec::{SpecKind, Topology};

/// How much smaller a shadow is than its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    /// Real blocks in a row that are one block of the shadow.
    pub blocks: u32,
    /// One prefix in so many is played.
    pub sample: u32,
}

/// The most blocks of a shadow, unless the sample is the smallest that there is.
const MOST_BLOCKS: u32 = 8_192;

/// At least one prefix in so many is played: a large pool must not learn only from a few of the
/// requests that it took to fill it.
const SMALLEST_SAMPLE: u32 = 8;

/// The most tokens of a shadow's smallest block, unless the real one is larger.
const MOST_TOKENS: u32 = 128;

impl Scale {
    /// A small cache is played as it is. A larger one has shadows of larger blocks, and if these are
    /// still too many, of fewer prefixes.
    pub(super) fn of(config: &CacheConfig) -> Self {
        let cached = config.topology.groups.iter().filter(|g| g.prefix_cacheable);
        let smallest = cached.map(|group| group.block_size).min().unwrap_or(1);
        let mut scale = Self {
            blocks: 1,
            sample: 1,
        };
        if scale.num_blocks(config) > MOST_BLOCKS {
            while smallest * scale.blocks * 2 <= MOST_TOKENS {
                scale.blocks *= 2;
            }
        }
        while scale.num_blocks(config) > MOST_BLOCKS && scale.sample < SMALLEST_SAMPLE {
            scale.sample *= 2;
        }
        scale
    }

    fn num_blocks(self, config: &CacheConfig) -> u32 {
        config.num_blocks / self.blocks / self.sample
    }

    /// How fast shadows of this scale play; `None` if the cache is so small that they keep up.
    pub(super) fn pace(self, config: &CacheConfig, num_shadows: usize) -> Option<Pace> {
        if config.num_blocks <= MOST_BLOCKS {
            return None;
        }
        let Topology {
            groups, alignment, ..
        } = &config.topology;
        let cached = groups.iter().filter(|group| group.prefix_cacheable);
        let blocks: u32 = cached.map(|group| alignment / group.block_size).sum();
        let num_hashes = alignment / config.topology.hash_block_size;
        let fill = self.num_blocks(config) / blocks.max(1) * num_hashes;
        Some(Pace {
            fill: fill as usize,
            num_shadows,
        })
    }
}

#[derive(Debug, Clone)]
pub(super) struct Shadow {
    pub lean: Lean,
    pub interval: u32,
    cache: Cache,
}

impl Shadow {
    /// `None` if no such cache can be.
    pub(super) fn new(
        config: &CacheConfig,
        policy: ByValue,
        scale: Scale,
        secret: &Secret,
    ) -> Option<Self> {
        let mut topology = config.topology.clone();
        for group in &mut topology.groups {
            group.block_size *= scale.blocks;
        }
        topology.alignment *= scale.blocks;
        topology.hash_block_size *= scale.blocks;
        topology.partial_hits = false;
        let lean = policy.lean?;
        let alignment = config.topology.alignment;
        let interval = policy.interval.next_multiple_of(topology.alignment);
        let ring = |options: &GroupOptions| GroupOptions {
            is_ring: options.is_ring,
            ..GroupOptions::default()
        };
        let config = CacheConfig {
            options: config.options.iter().map(ring).collect(),
            num_blocks: scale.num_blocks(config) + 1,
            caching: true,
            events: false,
            retention: Retention::ByValue(ByValue { interval, ..policy }),
            max_model_len: u32::MAX,
            max_in_flight_tokens: None,
            watermark_blocks: 0,
            num_reprefillable_tokens: 0,
            partial_junctions: false,
            hash: None,
            follows_vllm: config.follows_vllm,
            topology,
        };
        let cache = Cache::new(config, secret).ok()?;
        Some(Self {
            lean,
            interval: policy.interval.next_multiple_of(alignment),
            cache,
        })
    }

    /// Plays the life of a request, and returns the tokens that it reused.
    pub(super) fn play(&mut self, life: &Life) -> u32 {
        let (prompt, output) = life.hashes.split_at(life.num_prompt_hashes(self.unit()));
        let new = NewRequest {
            tokens: vec![0; life.num_prompt_tokens as usize],
            num_prompt_tokens: life.num_prompt_tokens,
            hashes: Some(prompt.to_vec()),
            hint: life.hint,
            ..NewRequest::default()
        };
        let Ok(id) = self.cache.add(new) else {
            return 0;
        };
        let found = self.cache.find(id).unwrap_or_default();
        let is_whole = self.compute(id, life, found);
        let num_left = (life.num_tokens - life.num_prompt_tokens) as usize;
        if is_whole && num_left > 0 {
            let more = self
                .cache
                .extend(id, &vec![0; num_left], Some(output), false);
            debug_assert!(more.is_ok(), "the hashes fit the tokens");
            self.step(Need {
                request: id,
                num_new_tokens: count(num_left),
                ..Need::default()
            });
        }
        let released = self.cache.release(&[id], false);
        debug_assert!(released.is_ok(), "the request is known");
        if is_whole { found.num_tokens } else { 0 }
    }

    /// Computes a prompt. Returns false if the cache has no room for it.
    fn compute(&mut self, id: u64, life: &Life, found: Match) -> bool {
        let kinds = self.cache.core.groups.iter().map(|group| group.spec.kind);
        let has_states = kinds.into_iter().any(|kind| kind == SpecKind::Mamba);
        let mut need = Need {
            request: id,
            num_hit_tokens: found.num_tokens,
            junction: Some(found.junction),
            ..Need::default()
        };
        let mut done = found.num_tokens;
        for end in life.stops(found, has_states.then_some(self.alignment())) {
            need.num_new_tokens = end - done;
            if !self.step(need) {
                return false;
            }
            done = end;
            need = Need {
                request: id,
                ..Need::default()
            };
        }
        true
    }

    fn step(&mut self, need: Need) -> bool {
        let done = self.cache.allocate(&[need], 0);
        self.cache.take_work(false);
        self.cache.start_step();
        done.is_ok_and(|done| done.num_fit == 1)
    }

    /// The number of tokens of a hash.
    fn unit(&self) -> u32 {
        self.cache.core.config.topology.hash_block_size
    }

    fn alignment(&self) -> u32 {
        self.cache.core.config.topology.alignment
    }

    pub(super) fn checkpoints(&self) -> Option<&Checkpoints> {
        self.cache.core.checkpoints.as_ref()
    }

    pub(super) fn bytes(&self) -> usize {
        self.cache.memory_bytes()
    }

    pub(super) fn check_integrity(&self) {
        self.cache.check_integrity(&[]);
    }
}
