//! The seeded random fuzz of what callers ask of a cache, in range and out of it.
//!
//! Property: whatever the numbers of a call are, the cache never panics; a call that it refuses
//! changes nothing that matters; its blocks, hashes and requests agree after every step, and all
//! blocks are free once all requests are gone. `KVBRAID_FUZZ_STEPS` makes it long, and
//! `KVBRAID_FUZZ_SEED` begins with another life; a failure names the seed of the life that failed.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod choices;

use std::slice::from_ref;

use choices::{Choices, Numbers, play_lives};

use kvbraid_core::cache::{
    ByValue, Cache, CacheConfig, GroupOptions, HashFunction, Need, NewRequest, PrefillCost,
    Retention,
};
use kvbraid_core::hash::{HashAlgo, none_hash};
use kvbraid_core::secret::Secret;
use kvbraid_core::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

const STEPS_PER_LIFE: u64 = 60;
const STEPS: u64 = 20_000;
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
fn tokens(numbers: &mut Numbers) -> u32 {
    match below(numbers, 40) {
        0..20 => 0,
        20..32 => below(numbers, 8),
        32..36 => below(numbers, 40),
        36..38 => below(numbers, 12) * BLOCK,
        38 => below(numbers, 400),
        _ => u32::MAX - below(numbers, 3) * (u32::MAX / 3),
    }
}

fn below(numbers: &mut Numbers, end: usize) -> u32 {
    u32::try_from(numbers.below(end)).unwrap()
}

struct Life {
    cache: Cache,
    requests: Vec<u64>,
    num_groups: u32,
    free: usize,
}

impl Life {
    fn new(numbers: &mut Numbers) -> Self {
        let num_groups = 1 + below(numbers, 3);
        let groups = (0..num_groups).map(|_| group(numbers)).collect();
        let cache = Cache::new(config(groups, numbers), &Secret::new([7; 32])).unwrap();
        let free = cache.num_free_blocks();
        Self {
            cache,
            requests: vec![],
            num_groups,
            free,
        }
    }

    fn step(&mut self, numbers: &mut Numbers) {
        if self.requests.is_empty() || numbers.once_in(6) {
            self.add(numbers);
        }
        let at = numbers.below(self.requests.len());
        let id = self.requests[at];
        match numbers.below(10) {
            0..5 => self.allocate(id, numbers),
            5 => _ = self.cache.commit(id, tokens(numbers)),
            6 => _ = self.cache.free_skipped(id, tokens(numbers)),
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

    fn add(&mut self, numbers: &mut Numbers) {
        let length = 1 + below(numbers, 50);
        let family = below(numbers, 2);
        let id = self.cache.add(NewRequest {
            num_prompt_tokens: length,
            tokens: (0..length).map(|token| 1_000 * family + token).collect(),
            ..NewRequest::default()
        });
        self.requests.push(id.unwrap());
    }

    fn allocate(&mut self, id: u64, numbers: &mut Numbers) {
        if numbers.once_in(2) {
            self.run_step();
        }
        let hit = match numbers.below(3) {
            0 => tokens(numbers),
            _ => self.cache.find(id).map_or(0, |found| found.num_tokens),
        };
        let groups = 0..u16::try_from(self.num_groups).unwrap() + 1;
        let need = Need {
            request: id,
            num_new_tokens: tokens(numbers),
            num_hit_tokens: hit,
            junction: numbers.once_in(4).then(|| tokens(numbers)),
            num_external_tokens: tokens(numbers),
            num_lookahead_tokens: tokens(numbers),
            num_in_flight_tokens: tokens(numbers),
            num_encoder_tokens: tokens(numbers),
            num_computed_tokens: numbers.once_in(6).then(|| tokens(numbers)),
            delay_commit: numbers.once_in(4),
            loading_groups: groups.filter(|_| numbers.once_in(5)).collect(),
            full_sequence_must_fit: numbers.once_in(4),
            is_waiting: numbers.once_in(4),
        };
        let reserved = tokens(numbers) as usize;
        let before = self.cache.num_free_blocks();
        if self.cache.allocate(from_ref(&need), reserved).is_err() {
            assert_eq!(self.cache.num_free_blocks(), before, "{need:?}");
        }
        _ = self.cache.blocks_needed(&need, numbers.once_in(2));
    }

    fn end(mut self) {
        self.cache.release(&self.requests, false).unwrap();
        self.run_step();
        self.cache.check_integrity(&[]);
        assert_eq!(self.cache.num_free_blocks(), self.free);
    }
}

fn group(numbers: &mut Numbers) -> GroupSpec {
    let kind = KINDS[numbers.below(6)];
    GroupSpec {
        kind,
        block_size: BLOCK * (1 + below(numbers, 2)),
        window: kind.is_window().then_some(5 + below(numbers, 8)),
        chunk: (kind == SpecKind::ChunkedLocalAttention).then_some(8 + 4 * below(numbers, 2)),
        eagle: false,
        prefix_cacheable: true,
        variant: 0,
    }
}

fn config(groups: Vec<GroupSpec>, numbers: &mut Numbers) -> CacheConfig {
    let by_value = ByValue {
        interval: 8,
        cost: PrefillCost {
            per_token: 1.0,
            per_pair: 0.0,
        },
        lean: None,
    };
    CacheConfig {
        options: vec![GroupOptions::default(); groups.len()],
        topology: Topology {
            groups,
            alignment: 2 * BLOCK,
            hash_block_size: BLOCK,
            partial_hits: false,
            replay_tokens: 0,
            hash_lookahead: 0,
            dialect: EngineDialect::PURE,
        },
        num_blocks: 4 + below(numbers, 60),
        caching: !numbers.once_in(8),
        events: true,
        retention: [Retention::Dense, Retention::ByValue(by_value)][numbers.below(2)],
        max_model_len: [u32::MAX, 64][numbers.below(2)],
        max_in_flight_tokens: None,
        watermark_blocks: below(numbers, 3),
        num_reprefillable_tokens: 0,
        partial_junctions: false,
        hash: none_hash(HashAlgo::Sha256, None).map(|none_hash| HashFunction {
            algo: HashAlgo::Sha256,
            none_hash,
        }),
        follows_vllm: numbers.once_in(4),
    }
}

#[test]
fn whatever_a_caller_asks_the_cache_answers_or_refuses_and_loses_no_block() {
    play_lives(STEPS, STEPS_PER_LIFE, |numbers, step| {
        let mut life = Life::new(numbers);
        while *step < STEPS_PER_LIFE {
            life.step(numbers);
            *step += 1;
        }
        life.end();
    });
}
