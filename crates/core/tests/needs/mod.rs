//! Lives of a cache whose callers ask anything of it, in range and out of it.
//!
//! A life is made of small choices: see `choices`.
#![allow(clippy::unwrap_used, reason = "a life ends where something fails")]

use std::slice::from_ref;

use crate::choices::Choices;

use kvbraid_core::adaptive::AdaptiveCache;
use kvbraid_core::cache::{ByValue, CacheConfig, Need, NewRequest, PrefillCost, Retention};
use kvbraid_core::secret::Secret;
use kvbraid_core::spec::{GroupSpec, SpecKind, Topology};

const BLOCK: u32 = 4;
const KINDS: [SpecKind; 6] = [
    SpecKind::FullAttention,
    SpecKind::SlidingWindow,
    SpecKind::ChunkedLocalAttention,
    SpecKind::Mamba,
    SpecKind::CrossAttention,
    SpecKind::EncoderOnlyAttention,
];

/// A number of tokens as callers give it: mostly small, sometimes whole blocks, sometimes absurd.
fn tokens(choices: &mut impl Choices) -> u32 {
    match below(choices, 40) {
        0..20 => 0,
        20..32 => below(choices, 8),
        32..36 => below(choices, 40),
        36..38 => below(choices, 12) * BLOCK,
        38 => below(choices, 400),
        _ => u32::MAX - below(choices, 3) * (u32::MAX / 3),
    }
}

fn below(choices: &mut impl Choices, end: usize) -> u32 {
    u32::try_from(choices.below(end)).unwrap()
}

/// A cache, and requests of callers.
pub(crate) struct Life {
    cache: AdaptiveCache,
    requests: Vec<u64>,
    num_groups: u32,
    free: usize,
}

impl Life {
    pub(crate) fn new(choices: &mut impl Choices) -> Self {
        let num_groups = 1 + below(choices, 3);
        let groups = (0..num_groups).map(|_| group(choices)).collect();
        let cache = AdaptiveCache::new(config(groups, choices), &Secret::new([7; 32])).unwrap();
        let free = cache.num_free_blocks();
        Self {
            cache,
            requests: vec![],
            num_groups,
            free,
        }
    }

    pub(crate) fn step(&mut self, choices: &mut impl Choices) {
        if self.requests.is_empty() || choices.once_in(6) {
            self.add(choices);
        }
        let at = choices.below(self.requests.len());
        let id = self.requests[at];
        match choices.below(10) {
            0..5 => self.allocate(id, choices),
            5 => _ = self.cache.commit(id, tokens(choices)),
            6 => _ = self.cache.free_skipped(id, tokens(choices)),
            7 => self.run_step(),
            8 => _ = self.cache.preempt(&[id], false),
            _ => {
                self.run_step(); // Nobody relies on what a step that has not run was to write.
                self.cache.release(&[id], false).unwrap();
                self.requests.swap_remove(at);
            }
        }
        self.cache.check_integrity(&[]);
    }

    /// The device has the step, so the ends of its copies are free.
    fn run_step(&mut self) {
        _ = self.cache.take_work(false);
        self.cache.start_step();
    }

    fn add(&mut self, choices: &mut impl Choices) {
        let length = 1 + below(choices, 50);
        let family = below(choices, 2);
        let id = self.cache.add(NewRequest {
            num_prompt_tokens: length,
            tokens: (0..length).map(|token| 1_000 * family + token).collect(),
            ..NewRequest::default()
        });
        self.requests.push(id.unwrap());
    }

    fn allocate(&mut self, id: u64, choices: &mut impl Choices) {
        if choices.once_in(2) {
            self.run_step();
        }
        let hit = match choices.below(3) {
            0 => tokens(choices),
            _ => self.cache.find(id).map_or(0, |found| found.num_tokens),
        };
        let groups = 0..u16::try_from(self.num_groups).unwrap() + 1;
        let need = Need {
            request: id,
            num_new_tokens: tokens(choices),
            num_hit_tokens: hit,
            junction: choices.once_in(4).then(|| tokens(choices)),
            num_external_tokens: tokens(choices),
            num_lookahead_tokens: tokens(choices),
            num_in_flight_tokens: tokens(choices),
            num_encoder_tokens: tokens(choices),
            num_computed_tokens: choices.once_in(6).then(|| tokens(choices)),
            delay_commit: choices.once_in(4),
            loading_groups: groups.filter(|_| choices.once_in(5)).collect(),
            full_sequence_must_fit: choices.once_in(4),
            is_waiting: choices.once_in(4),
        };
        let reserved = tokens(choices) as usize;
        let before = self.cache.num_free_blocks();
        if self.cache.allocate(from_ref(&need), reserved).is_err() {
            assert_eq!(self.cache.num_free_blocks(), before, "{need:?}");
        }
        _ = self.cache.blocks_needed(&need, choices.once_in(2));
    }

    pub(crate) fn end(mut self) {
        self.cache.release(&self.requests, false).unwrap();
        self.run_step();
        self.cache.check_integrity(&[]);
        assert_eq!(self.cache.num_free_blocks(), self.free);
    }
}

fn group(choices: &mut impl Choices) -> GroupSpec {
    let kind = KINDS[choices.below(6)];
    let block_size = BLOCK * (1 + below(choices, 2));
    GroupSpec {
        window: kind.is_window().then_some(5 + below(choices, 8)),
        chunk: (kind == SpecKind::ChunkedLocalAttention).then_some(8 + 4 * below(choices, 2)),
        ..GroupSpec::new(kind, block_size)
    }
}

fn config(groups: Vec<GroupSpec>, choices: &mut impl Choices) -> CacheConfig {
    let by_value = ByValue {
        interval: 8,
        cost: PrefillCost {
            per_token: 1.0,
            per_pair: 0.0,
        },
        policy: None,
    };
    let topology = Topology {
        alignment: 2 * BLOCK,
        hash_block_size: BLOCK,
        ..Topology::new(groups)
    };
    let num_blocks = 4 + below(choices, 60);
    CacheConfig {
        caching: !choices.once_in(8),
        events: true,
        retention: [Retention::Dense, Retention::ByValue(by_value)][choices.below(2)],
        max_model_len: [u32::MAX, 64][choices.below(2)],
        watermark_blocks: below(choices, 3),
        follows_vllm: choices.once_in(4),
        ..CacheConfig::new(topology, num_blocks)
    }
}
