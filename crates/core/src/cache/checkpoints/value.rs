//! What a checkpoint is worth: the compute that would be lost with it, per block that it holds.
//!
//! ```text
//! value = likelihood * cost(resume point before it -> it) / blocks freed * 2^(-age / half-life)
//! ```
//! Age is counted in pools: blocks handed out since the last use, over the blocks of the pool. Every
//! value halves in the same time, so that the order of two checkpoints never changes while nothing
//! happens to them: [`Key`] is the logarithm at time 0, and stays.

use crate::cache::config::ByValue;

/// Why a checkpoint was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cache) enum Origin {
    /// The end of a request that began something new.
    Start,
    /// The end of a request that went on where another one had ended.
    Turn,
    /// Requests branched off here.
    Junction,
    /// A multiple of the interval.
    Interval,
}

/// How many went on from a checkpoint, as far as the likelihood tells them apart.
const MAX_CONTINUATIONS: usize = 2;

/// How likely a checkpoint is resumed (again) that nobody, one, or more went on from: learned from
/// all of its origin, beginning with these guesses. Who was passed by one is mostly history.
const GUESS: [f64; MAX_CONTINUATIONS + 1] = [0.5, 0.0625, 0.5];

/// Checkpoints that a guess counts for.
const GUESS_WEIGHT: f64 = 8.0;

const NUM_ORIGINS: usize = 4;

/// How often checkpoints of each origin were resumed, by how many had gone on from them.
#[derive(Debug, Clone)]
pub(super) struct Likelihood {
    seen: [[f64; MAX_CONTINUATIONS + 1]; NUM_ORIGINS],
    resumed: [[f64; MAX_CONTINUATIONS + 1]; NUM_ORIGINS],
}

fn state(continuations: usize) -> usize {
    continuations.min(MAX_CONTINUATIONS)
}

impl Likelihood {
    pub(super) fn new() -> Self {
        let zero = [[0.0; MAX_CONTINUATIONS + 1]; NUM_ORIGINS];
        Self {
            seen: zero,
            resumed: zero,
        }
    }

    /// A checkpoint is new, or one more went on from it.
    pub(super) fn seen(&mut self, origin: Origin, continuations: usize) {
        self.seen[origin as usize][state(continuations)] += 1.0;
    }

    /// It was resumed, for the first time since it was last seen.
    pub(super) fn resumed(&mut self, origin: Origin, continuations: usize) {
        self.resumed[origin as usize][state(continuations)] += 1.0;
    }

    fn of(&self, origin: Origin, continuations: usize) -> f64 {
        let (origin, state) = (origin as usize, state(continuations));
        let guess = GUESS_WEIGHT * GUESS[state];
        (self.resumed[origin][state] + guess) / (self.seen[origin][state] + GUESS_WEIGHT)
    }
}

/// A value's logarithm at time 0, in an order that integers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

impl Key {
    fn new(value: f64) -> Self {
        let bits = value.to_bits();
        let sign = 1 << 63;
        Self(if bits & sign == 0 { bits | sign } else { !bits })
    }
}

/// What the value of one checkpoint is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    pub origin: Origin,
    pub continuations: usize,
    /// Tokens: where a request would resume without it, and where with it.
    pub floor: u32,
    pub end: u32,
    /// Blocks that are free without it.
    pub num_blocks: usize,
    /// In pools.
    pub used_at: f64,
}

impl Weight {
    pub(super) fn key(&self, policy: &ByValue, likelihood: &Likelihood) -> Key {
        let lost = policy.cost.between(self.floor, self.end);
        let chance = likelihood.of(self.origin, self.continuations);
        #[expect(
            clippy::cast_precision_loss,
            reason = "a pool has fewer than 2^32 blocks"
        )]
        let per_block = chance * lost / self.num_blocks.max(1) as f64;
        Key::new(per_block.log2() + self.used_at / policy.half_life)
    }
}
