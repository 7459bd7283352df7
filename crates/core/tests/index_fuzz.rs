//! The seeded random fuzz of the index: many lives, each a sequence of everything that happens to one.
//!
//! Property: whatever engines publish and feeds tell, in whatever order, the index never panics, its
//! structures agree after every step, and its answers keep what answers promise (`life`).
//! `fuzz/` has the coverage-guided twin. `KVBRAID_FUZZ_STEPS` makes it long, `KVBRAID_FUZZ_SEED`
//! begins with another life; a failure names the seed of the life that failed.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod encoder;
mod life;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use life::{Choices, Life, Numbers};

/// Steps of one life: long enough to fill a small domain, short enough to read a failure.
const STEPS_PER_LIFE: u64 = 100;
const STEPS: u64 = 20_000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// Numbers that differ from seed to seed from the first one on.
fn numbers(seed: u64) -> Numbers {
    let mut numbers = Numbers((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    numbers.below(2);
    numbers
}

#[test]
fn whatever_happens_to_an_index_its_structures_agree_and_its_answers_hold() {
    let lives = number("KVBRAID_FUZZ_STEPS", STEPS).div_ceil(STEPS_PER_LIFE);
    let first = number("KVBRAID_FUZZ_SEED", 0);
    for seed in first..first + lives {
        let mut step = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut numbers = numbers(seed);
            let mut life = Life::new(&mut numbers);
            while step < STEPS_PER_LIFE {
                life.step(&mut numbers);
                step += 1;
            }
        }));
        if let Err(panic) = outcome {
            std::eprintln!("the life with KVBRAID_FUZZ_SEED={seed} failed at step {step}");
            resume_unwind(panic);
        }
    }
}
