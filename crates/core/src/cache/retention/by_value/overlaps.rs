//! At which lengths requests branch off from what earlier ones had: learned from the traffic.
//!
//! ```text
//! system prompt of 1 500 tokens | question          the overlaps are 0, 1 488, 1 488, 0, 1 488 ...
//! ```
//! Fleets use prompts of a few fixed lengths: system prompts, tools, few-shot examples. Where one of
//! those ends, nobody announces. But the lengths at which requests part come back, for new prompts
//! too, so a checkpoint there lets the *second* request with a new prompt resume.
//!
//! What requests had is remembered beyond the pool, as fingerprints of the hashes at the boundaries
//! of their prompts, in a table of fixed size where a new one replaces the old one. A boundary that
//! was the end of a prompt does not count: who goes on from there continues, and branches off
//! nowhere.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::hash::Digest;

/// Prompts that are remembered. They are the traffic that the learned lengths stand for.
const RECENT: usize = 256;
/// A length is expected again if this many of the remembered prompts overlapped there.
const LEAST: u32 = 8;
/// The most lengths that are expected.
const MOST: usize = 4;
/// Boundaries of one prompt that are looked at.
const MOST_BOUNDARIES: usize = 4096;
/// Fingerprints per block of the pool.
const PER_BLOCK: usize = 4;
/// Checkpoints that were made since the counts were last halved.
const MADE: u32 = 256;
/// This many of them have to be made before what they saved is judged.
const KNOWN: u32 = 16;
/// Steps end where such checkpoints could be made if each saved at least 1/24 of the tokens of an
/// average prompt. The number was chosen by trial with `bench/retention`: extra steps in `short_long`
/// save less, and those in `short_only`, `shift` and `turning` more.
const WORTH_A_STEP: u64 = 24;
/// While they are not worth a step, one request in this many tries again.
const TRIES: u64 = 64;

/// A fingerprint of a prefix, and in its lowest bit whether a prompt ended there; 0 is none.
type Fingerprint = u32;
const IS_END: Fingerprint = 1;

/// The lengths at which requests are expected to branch off.
#[derive(Debug, Clone)]
pub(super) struct Overlaps {
    seen: Vec<Fingerprint>,
    /// The recent prompts, the oldest first, and their tokens.
    recent: VecDeque<Recent>,
    num_tokens: u64,
    /// How many of them overlapped at a length, by length.
    counts: BTreeMap<u32, u32>,
    /// The lengths that are expected, the shortest first.
    expected: SmallVec<[u32; MOST]>,
    /// Checkpoints that were made there, and the tokens that they saved when they were resumed.
    num_made: u32,
    num_saved: u64,
}

/// A prompt that is remembered: its tokens, and those of its overlap; 0 if there was none.
#[derive(Debug, Clone, Copy)]
struct Recent {
    num_tokens: u32,
    overlap: u32,
}

impl Overlaps {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            seen: vec![0; (PER_BLOCK * num_blocks).next_power_of_two()],
            recent: VecDeque::with_capacity(RECENT),
            num_tokens: 0,
            counts: BTreeMap::new(),
            expected: SmallVec::new(),
            num_made: 0,
            num_saved: 0,
        }
    }

    /// Notes a prompt of `num_tokens` tokens by the hashes at its boundaries, every `unit` tokens.
    pub(super) fn note<'a>(
        &mut self,
        num_tokens: u32,
        hashes: impl Iterator<Item = &'a Digest>,
        unit: u32,
    ) {
        let places: SmallVec<[(usize, Fingerprint); 64]> = hashes
            .take(MOST_BOUNDARIES)
            .map(|hash| self.place(hash))
            .collect();
        let is_seen = |&(slot, print): &(usize, Fingerprint)| self.seen[slot] & !IS_END == print;
        let overlap = places.iter().rposition(is_seen);
        let branched = overlap.filter(|&at| self.seen[places[at].0] & IS_END == 0);
        let length = branched.map_or(0, |at| (crate::blocks::count(at) + 1).saturating_mul(unit));
        for &(slot, print) in &places {
            if self.seen[slot] & !IS_END != print {
                self.seen[slot] = print;
            }
        }
        if let Some(&(slot, _)) = places.last() {
            self.seen[slot] |= IS_END;
        }
        self.remember(Recent {
            num_tokens,
            overlap: length,
        });
    }

    fn place(&self, hash: &Digest) -> (usize, Fingerprint) {
        let half = |from: usize| {
            let bytes = hash.as_bytes()[from..from + 4].try_into();
            u32::from_le_bytes(bytes.expect("four bytes"))
        };
        let slot = half(0) as usize & (self.seen.len() - 1);
        (slot, (half(4) | 2) & !IS_END)
    }

    fn remember(&mut self, prompt: Recent) {
        if self.recent.len() == RECENT
            && let Some(old) = self.recent.pop_front()
        {
            self.num_tokens -= u64::from(old.num_tokens);
            self.forget(old.overlap);
        }
        self.recent.push_back(prompt);
        self.num_tokens += u64::from(prompt.num_tokens);
        if prompt.overlap > 0 {
            *self.counts.entry(prompt.overlap).or_default() += 1;
        }
        let often = self.counts.iter().filter(|&(_, &count)| count >= LEAST);
        let mut most: SmallVec<[(u32, u32); 8]> = often.map(|(&at, &count)| (count, at)).collect();
        most.sort_by_key(|&(count, at)| (std::cmp::Reverse(count), at));
        self.expected = most.into_iter().take(MOST).map(|(_, at)| at).collect();
        self.expected.sort_unstable();
    }

    fn forget(&mut self, overlap: u32) {
        if let Some(count) = self.counts.get_mut(&overlap) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&overlap);
            }
        }
    }

    /// The lengths at which later requests are expected to branch off, in tokens, the shortest
    /// first.
    pub(super) fn expected(&self) -> &[u32] {
        &self.expected
    }

    /// The lengths at which a request's steps should end, because checkpoints there save enough. If
    /// they do not, a request now and then tries the most common one.
    pub(super) fn stops(&self, request: u64) -> &[u32] {
        if self.num_made < KNOWN || self.are_worth_a_step() {
            return &self.expected;
        }
        let each = self.expected.chunks(1);
        let most_common = each.max_by_key(|one| self.counts[&one[0]]);
        let tried = most_common.filter(|_| request.is_multiple_of(TRIES));
        tried.unwrap_or_default()
    }

    /// Whether a checkpoint saves enough on average: saved / made >= tokens / prompts / 24.
    fn are_worth_a_step(&self) -> bool {
        let prompts = self.recent.len() as u64;
        self.num_saved * WORTH_A_STEP * prompts >= u64::from(self.num_made) * self.num_tokens
    }

    /// Notes that a checkpoint was made at an expected length.
    pub(super) fn made(&mut self) {
        self.num_made += 1;
        if self.num_made >= MADE {
            self.num_made /= 2;
            self.num_saved /= 2;
        }
    }

    /// Notes that such a checkpoint was resumed for the first time, and how many tokens it saved.
    pub(super) fn resumed(&mut self, num_saved: u32) {
        self.num_saved += u64::from(num_saved);
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let prints = self.seen.capacity() + 4 * self.counts.len();
        prints * size_of::<Fingerprint>() + self.recent.capacity() * size_of::<Recent>()
    }

    /// Panics unless the counts are those of what is remembered.
    pub(super) fn check_integrity(&self) {
        assert!(self.recent.len() <= RECENT);
        let mut counts = BTreeMap::new();
        for prompt in self.recent.iter().filter(|prompt| prompt.overlap > 0) {
            *counts.entry(prompt.overlap).or_default() += 1;
        }
        assert_eq!(self.counts, counts);
        let tokens = self
            .recent
            .iter()
            .map(|prompt| u64::from(prompt.num_tokens));
        assert_eq!(self.num_tokens, tokens.sum::<u64>());
        assert!(self.expected.is_sorted());
        assert!(self.expected.iter().all(|at| self.counts[at] >= LEAST));
        assert!(self.num_made < MADE);
    }
}
