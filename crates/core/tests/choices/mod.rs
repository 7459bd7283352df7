//! Small choices of which a life is made: the same for random numbers and for a fuzzer's bytes.
#![allow(dead_code, reason = "each binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a life ends where something fails")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Where choices come from.
pub(crate) trait Choices {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize;

    /// Whether there is nothing left to choose by.
    fn is_at_end(&self) -> bool;

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// One of a table.
    fn one_of<T: Clone>(&mut self, table: &[T]) -> T
    where
        Self: Sized,
    {
        table[self.below(table.len())].clone()
    }
}

/// xorshift64: the same numbers everywhere.
pub(crate) struct Numbers(pub u64);

impl Choices for Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % limit as u64).unwrap_or(0)
    }

    fn is_at_end(&self) -> bool {
        false
    }
}

/// The bytes of a fuzzer, one a choice.
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, limit: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(first) % limit
    }

    fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Plays lives by seed, with this many steps in all, or as many as `KVBRAID_FUZZ_STEPS` says, from
/// `KVBRAID_FUZZ_SEED` on. `play` makes a life of its numbers and counts its steps. A life that fails
/// is named.
pub(crate) fn play_lives(
    steps: u64,
    steps_per_life: u64,
    mut play: impl FnMut(&mut Numbers, &mut u64),
) {
    let lives = number("KVBRAID_FUZZ_STEPS", steps).div_ceil(steps_per_life);
    let first = number("KVBRAID_FUZZ_SEED", 0);
    for seed in first..first + lives {
        let mut step = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| play(&mut numbers(seed), &mut step)));
        if let Err(panic) = outcome {
            std::eprintln!("the life with KVBRAID_FUZZ_SEED={seed} failed at step {step}");
            resume_unwind(panic);
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// Numbers that differ from seed to seed from the first one on.
pub(crate) fn numbers(seed: u64) -> Numbers {
    let mut numbers = Numbers((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    numbers.below(2);
    numbers
}
