//! The seeded random fuzz of what callers ask of a cache, in range and out of it.
//!
//! Property: whatever the numbers of a call are, the cache never panics; a call that it refuses
//! changes nothing that matters; its blocks, hashes and requests agree after every step, and all
//! blocks are free once all requests are gone. `KVBRAID_FUZZ_STEPS` makes it long, and
//! `KVBRAID_FUZZ_SEED` begins with another life; a failure names the seed of the life that failed.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice::from_ref;

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

/// Numbers of a seed, by xorshift.
struct Numbers(u64);

impl Numbers {
    fn of(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 20) % u64::from(end)).unwrap()
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.below(one_in) == 0
    }

    /// A number of tokens as callers give it: mostly small, sometimes whole blocks, sometimes absurd.
    fn tokens(&mut self) -> u32 {
        match self.below(40) {
            0..20 => 0,
            20..32 => self.below(8),
            32..36 => self.below(40),
            36..38 => self.below(12) * BLOCK,
            38 => self.below(400),
            _ => u32::MAX - self.below(3) * (u32::MAX / 3),
        }
    }
}

struct Life {
    cache: Cache,
    requests: Vec<u64>,
    num_groups: u32,
    free: usize,
}

impl Life {
    fn new(numbers: &mut Numbers) -> Self {
        let num_groups = 1 + numbers.below(3);
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
        if self.requests.is_empty() || numbers.chance(6) {
            self.add(numbers);
        }
        let at = numbers.below(u32::try_from(self.requests.len()).unwrap()) as usize;
        let id = self.requests[at];
        match numbers.below(10) {
            0..5 => self.allocate(id, numbers),
            5 => _ = self.cache.commit(id, numbers.tokens()),
            6 => _ = self.cache.free_skipped(id, numbers.tokens()),
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
        let length = 1 + numbers.below(50);
        let family = numbers.below(2);
        let id = self.cache.add(NewRequest {
            num_prompt_tokens: length,
            tokens: (0..length).map(|token| 1_000 * family + token).collect(),
            ..NewRequest::default()
        });
        self.requests.push(id.unwrap());
    }

    fn allocate(&mut self, id: u64, numbers: &mut Numbers) {
        if numbers.chance(2) {
            self.run_step();
        }
        let hit = match numbers.below(3) {
            0 => numbers.tokens(),
            _ => self.cache.find(id).map_or(0, |found| found.num_tokens),
        };
        let groups = 0..u16::try_from(self.num_groups).unwrap() + 1;
        let need = Need {
            request: id,
            num_new_tokens: numbers.tokens(),
            num_hit_tokens: hit,
            junction: numbers.chance(4).then(|| numbers.tokens()),
            num_external_tokens: numbers.tokens(),
            num_lookahead_tokens: numbers.tokens(),
            num_in_flight_tokens: numbers.tokens(),
            num_encoder_tokens: numbers.tokens(),
            num_computed_tokens: numbers.chance(6).then(|| numbers.tokens()),
            delay_commit: numbers.chance(4),
            loading_groups: groups.filter(|_| numbers.chance(5)).collect(),
            full_sequence_must_fit: numbers.chance(4),
            is_waiting: numbers.chance(4),
        };
        let reserved = numbers.tokens() as usize;
        let before = self.cache.num_free_blocks();
        if self.cache.allocate(from_ref(&need), reserved).is_err() {
            assert_eq!(self.cache.num_free_blocks(), before, "{need:?}");
        }
        _ = self.cache.blocks_needed(&need, numbers.chance(2));
    }

    fn end(mut self) {
        self.cache.release(&self.requests, false).unwrap();
        self.run_step();
        self.cache.check_integrity(&[]);
        assert_eq!(self.cache.num_free_blocks(), self.free);
    }
}

fn group(numbers: &mut Numbers) -> GroupSpec {
    let kind = KINDS[numbers.below(6) as usize];
    GroupSpec {
        kind,
        block_size: BLOCK * (1 + numbers.below(2)),
        window: kind.is_window().then_some(5 + numbers.below(8)),
        chunk: (kind == SpecKind::ChunkedLocalAttention).then_some(8 + 4 * numbers.below(2)),
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
        num_blocks: 4 + numbers.below(60),
        caching: !numbers.chance(8),
        events: true,
        retention: [Retention::Dense, Retention::ByValue(by_value)][numbers.below(2) as usize],
        max_model_len: [u32::MAX, 64][numbers.below(2) as usize],
        max_in_flight_tokens: None,
        watermark_blocks: numbers.below(3),
        num_reprefillable_tokens: 0,
        partial_junctions: false,
        hash: none_hash(HashAlgo::Sha256, None).map(|none_hash| HashFunction {
            algo: HashAlgo::Sha256,
            none_hash,
        }),
        follows_vllm: numbers.chance(4),
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn whatever_a_caller_asks_the_cache_answers_or_refuses_and_loses_no_block() {
    let lives = number("KVBRAID_FUZZ_STEPS", STEPS).div_ceil(STEPS_PER_LIFE);
    let first = number("KVBRAID_FUZZ_SEED", 0);
    for seed in first..first + lives {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut numbers = Numbers::of(seed);
            let mut life = Life::new(&mut numbers);
            for _ in 0..STEPS_PER_LIFE {
                life.step(&mut numbers);
            }
            life.end();
        }));
        if let Err(panic) = outcome {
            std::eprintln!("the life with KVBRAID_FUZZ_SEED={seed} failed");
            resume_unwind(panic);
        }
    }
}
