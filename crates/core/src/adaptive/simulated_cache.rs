//! A miniature of the cache whose policy never changes: what would this have saved?
//!
//! A simulated cache is a cache like the real one, without tokens and events. It replays whole
//! requests, one after the other, from the hashes alone. Its blocks may be larger than the real
//! ones: few large blocks cost less and are forgotten alike.

use super::recorded_request::RecordedRequest;
use super::replay_schedule::Pace;
use crate::blocks::count;
use crate::cache::{
    ByValue, Cache, CacheConfig, Checkpoints, EvictionPolicy, GroupOptions, Match, Need,
    NewRequest, Retention,
};
use crate::secret::Secret;
use crate::spec::{SpecKind, Topology};

/// How much smaller a simulated cache is than the real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    /// Real blocks in a row that are one block of the simulated cache.
    pub blocks: u32,
    /// One prefix in this many is replayed.
    pub sample: u32,
}

/// The most blocks of a simulated cache, unless the sample is the smallest that there is.
const MOST_BLOCKS: u32 = 8_192;

/// At least one prefix in this many is replayed: a large pool must not learn only from a few of the
/// requests that it took to fill it.
const SMALLEST_SAMPLE: u32 = 8;

/// The most tokens of a simulated cache's smallest block, unless the real one is larger.
const MOST_TOKENS: u32 = 128;

impl Scale {
    /// A small cache is simulated as it is. A larger one is simulated with larger blocks, and if these
    /// are still too many, with fewer prefixes.
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

    fn of_topology(self, real: &Topology) -> Topology {
        let mut topology = real.clone();
        for group in &mut topology.groups {
            group.block_size *= self.blocks;
        }
        topology.alignment *= self.blocks;
        topology.hash_block_size *= self.blocks;
        topology.partial_hits = false;
        topology
    }

    /// How fast caches of this scale replay; `None` if the cache is so small that they keep up.
    pub(super) fn pace(self, config: &CacheConfig, num_caches: usize) -> Option<Pace> {
        if config.num_blocks <= MOST_BLOCKS {
            return None;
        }
        Some(Pace {
            fill: hashes_that_fill(config, self.num_blocks(config)),
            num_caches,
        })
    }
}

/// The hashes of requests that fill this number of blocks, if nothing is reused.
pub(super) fn hashes_that_fill(config: &CacheConfig, num_blocks: u32) -> usize {
    let Topology {
        groups, alignment, ..
    } = &config.topology;
    let cached = groups.iter().filter(|group| group.prefix_cacheable);
    let blocks: u32 = cached.map(|group| alignment / group.block_size).sum();
    let num_hashes = alignment / config.topology.hash_block_size;
    (num_blocks / blocks.max(1) * num_hashes) as usize
}

#[derive(Debug, Clone)]
pub(super) struct SimulatedCache {
    pub policy: EvictionPolicy,
    pub interval: u32,
    cache: Cache,
    /// The number of tokens of a hash.
    unit: u32,
    /// Where states are kept, if there are any.
    state_unit: Option<u32>,
}

impl SimulatedCache {
    /// `None` if no such cache can be.
    pub(super) fn new(
        config: &CacheConfig,
        by_value: ByValue,
        scale: Scale,
        secret: &Secret,
    ) -> Option<Self> {
        let topology = scale.of_topology(&config.topology);
        let mut groups = topology.groups.iter();
        let has_states = groups.any(|group| group.kind == SpecKind::Mamba);
        let state_unit = has_states.then_some(topology.alignment);
        let unit = topology.hash_block_size;
        let policy = by_value.policy?;
        let alignment = config.topology.alignment;
        let interval = by_value.interval.next_multiple_of(topology.alignment);
        let ring = |options: &GroupOptions| GroupOptions {
            is_ring: options.is_ring,
            ..GroupOptions::default()
        };
        let config = CacheConfig {
            options: config.options.iter().map(ring).collect(),
            num_blocks: scale.num_blocks(config) + 1,
            caching: true,
            events: false,
            findable: false,
            medium: String::new(),
            retention: Retention::ByValue(ByValue {
                interval,
                ..by_value
            }),
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
            policy,
            interval: by_value.interval.next_multiple_of(alignment),
            cache,
            unit,
            state_unit,
        })
    }

    /// Replays a request, and returns the tokens that it reused.
    pub(super) fn replay(&mut self, recorded: &RecordedRequest) -> u32 {
        let num_prompt_hashes = recorded.num_prompt_hashes(self.unit);
        let (prompt, output) = recorded.hashes.split_at(num_prompt_hashes);
        let new = NewRequest {
            tokens: vec![0; recorded.num_prompt_tokens as usize],
            num_prompt_tokens: recorded.num_prompt_tokens,
            hashes: Some(prompt.to_vec()),
            hint: recorded.hint,
            ..NewRequest::default()
        };
        let Ok(id) = self.cache.add(new) else {
            return 0;
        };
        let found = self.cache.find(id).unwrap_or_default();
        let is_whole = self.compute(id, recorded, found);
        let num_left = (recorded.num_tokens - recorded.num_prompt_tokens) as usize;
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
    fn compute(&mut self, id: u64, recorded: &RecordedRequest, found: Match) -> bool {
        let mut need = Need {
            request: id,
            num_hit_tokens: found.num_tokens,
            junction: Some(found.junction),
            ..Need::default()
        };
        let mut done = found.num_tokens;
        for end in recorded.stops(found, self.state_unit) {
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

    pub(super) fn checkpoints(&self) -> Option<&Checkpoints> {
        self.cache.retention()
    }

    pub(super) fn bytes(&self) -> usize {
        self.cache.memory_bytes()
    }

    pub(super) fn check_integrity(&self) {
        self.cache.check_integrity(&[]);
    }
}
