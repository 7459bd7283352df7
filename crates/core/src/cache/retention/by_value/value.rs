//! What a checkpoint is worth: the compute that would be lost with it, per block that it holds.
//!
//! ```text
//! worth = likelihood * cost(resume point before it -> it) / blocks freed
//! value = worth - (level now - level at its last use)
//! ```
//! The level is the highest value that was ever let go. It rises as blocks are needed, and all
//! values sink by the same amount. A checkpoint that is worth twice as much is therefore kept twice
//! as long, whatever the pool's size and the traffic. The order of two checkpoints does not change
//! while nothing happens to them: [`Priority`] is worth + level at the last use (Cao and Irani,
//! "Cost-Aware WWW Proxy Caching Algorithms", 1997).

use std::cmp::Ordering;

use crate::cache::config::PrefillCost;
use crate::cache::value_cursor::Ending;

/// Why a checkpoint was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A prompt or a request ended.
    End,
    /// Requests branched off.
    Junction,
    /// A multiple of the interval.
    Interval,
    /// A length at which many requests branched off from others.
    Overlap,
}

/// An estimated probability: the rate observed lately, which begins with a guess.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    guess: f64,
    seen: f64,
    resumed: f64,
}

/// The guess counts as much as this many observed checkpoints. The number is itself a guess: small
/// enough that traffic soon decides, and large enough that a single request does not.
const GUESS_WEIGHT: f64 = 8.0;

/// The weight of an observation falls to 1/e while this many others are made. Without it a rate of
/// what never happens would sink for ever, and of equal checkpoints the older would be worth more.
const MEMORY: f64 = 256.0;

impl Rate {
    pub(super) const fn guess(guess: f64) -> Self {
        Self {
            guess,
            seen: 0.0,
            resumed: 0.0,
        }
    }

    /// Notes an observation, whose weight falls to 1/e while `memory` others are made.
    pub(super) fn observe(&mut self, memory: f64) {
        let keeps = 1.0 - 1.0 / memory;
        self.seen = self.seen * keeps + 1.0;
        self.resumed *= keeps;
    }

    pub(super) fn hit(&mut self) {
        self.resumed += 1.0;
    }

    pub(super) fn value(&self) -> f64 {
        (self.resumed + GUESS_WEIGHT * self.guess) / (self.seen + GUESS_WEIGHT)
    }
}

/// The likelihoods that the end of a request is resumed, by ending, before anything was observed.
pub(super) const GUESSES: [f64; 2] = [0.25, 0.5];

/// How likely it is that a checkpoint is resumed, learned from all earlier checkpoints.
#[derive(Debug, Clone)]
pub(super) struct Likelihood {
    /// The rates by ending.
    ends: [Rate; 2],
    /// The rates by origin, and by whether one request or several continued from the checkpoint. A
    /// checkpoint that a single request passed is usually history: that request's next turn resumes
    /// further on.
    passed: [[Rate; 2]; 4],
}

/// What tells how likely a checkpoint is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Past {
    /// A request ended there, and no kept path continues.
    Ended(Ending),
    /// One request continued from there.
    Passed(Origin),
    /// Several requests continued from there, even if nothing of them is kept any more.
    Shared(Origin),
}

impl Likelihood {
    /// The likelihoods before anything was observed. They are guesses, which were not measured.
    /// They only have to rank a second turn above a first one, and a branch above a passed
    /// checkpoint; after some tens of requests, the observations outweigh them (see
    /// `GUESS_WEIGHT`).
    pub(super) fn new() -> Self {
        Self {
            ends: GUESSES.map(Rate::guess),
            passed: [[Rate::guess(0.03125), Rate::guess(0.5)]; 4],
        }
    }

    /// Notes that another resume may come: a request has ended at a checkpoint with this past, or
    /// has continued from it.
    pub(super) fn note_candidate(&mut self, past: Past) {
        self.rate(past).observe(MEMORY);
    }

    /// Notes that the resume has come.
    pub(super) fn note_resumed(&mut self, past: Past) {
        self.rate(past).hit();
    }

    fn rate(&mut self, past: Past) -> &mut Rate {
        match past {
            Past::Ended(ending) => &mut self.ends[ending as usize],
            Past::Passed(origin) => &mut self.passed[origin as usize][0],
            Past::Shared(origin) => &mut self.passed[origin as usize][1],
        }
    }

    pub(super) fn of(&self, past: Past) -> f64 {
        let rate = match past {
            Past::Ended(ending) => self.ends[ending as usize],
            Past::Passed(origin) => self.passed[origin as usize][0],
            Past::Shared(origin) => self.passed[origin as usize][1],
        };
        rate.value()
    }
}

/// Orders checkpoints whose last use was at different levels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Priority {
    pub value: f64,
    /// Of equal values, the least recently used is let go first.
    pub used_at: u64,
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = self.value.total_cmp(&other.value);
        by_value.then(self.used_at.cmp(&other.used_at))
    }
}

/// What the worth of one checkpoint is computed from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    /// How likely the checkpoint is resumed.
    pub likelihood: f64,
    /// The tokens at which a request would resume without the checkpoint, and with it.
    pub floor: u32,
    pub end: u32,
    /// The number of blocks that would be free without the checkpoint.
    pub num_blocks: u32,
}

impl Weight {
    pub(super) fn worth(&self, cost: &PrefillCost) -> f64 {
        let lost = cost.between(self.floor, self.end);
        self.likelihood * lost / f64::from(self.num_blocks.max(1))
    }
}
