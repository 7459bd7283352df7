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

/// Overlaps that are remembered. They are the traffic that the learned lengths stand for.
const RECENT: usize = 256;
/// A length is expected again if so many of the remembered overlaps had it.
const LEAST: u32 = 8;
/// The most lengths that are expected.
const MOST: usize = 4;
/// Boundaries of one prompt that are looked at.
const MOST_BOUNDARIES: usize = 4096;
/// Fingerprints per block of the pool.
const PER_BLOCK: usize = 4;
/// Checkpoints that were made since the counts were last halved.
const MADE: u32 = 256;
/// One in so many of them has to be resumed for steps to end where they could be made.
const WORTH_A_STEP: u32 = 16;
/// While they are not worth a step, every so many requests try again.
const TRIES: u64 = 64;

/// A fingerprint of a prefix, and in its lowest bit whether a prompt ended there; 0 is none.
type Fingerprint = u32;
const IS_END: Fingerprint = 1;

/// The lengths at which requests are expected to branch off.
#[derive(Debug, Clone)]
pub(in crate::cache) struct Overlaps {
    seen: Vec<Fingerprint>,
    /// The lengths of recent overlaps in tokens, the oldest first; 0 if there was none.
    recent: VecDeque<u32>,
    counts: BTreeMap<u32, u32>,
    /// The lengths that are expected, the shortest first.
    expected: SmallVec<[u32; MOST]>,
    /// Checkpoints that were made there, and of those, which were resumed.
    num_made: u32,
    num_resumed: u32,
}

impl Overlaps {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            seen: vec![0; (PER_BLOCK * num_blocks).next_power_of_two()],
            recent: VecDeque::with_capacity(RECENT),
            counts: BTreeMap::new(),
            expected: SmallVec::new(),
            num_made: 0,
            num_resumed: 0,
        }
    }

    /// Notes a prompt by the hashes at its boundaries, every `unit` tokens.
    pub(super) fn note<'a>(&mut self, hashes: impl Iterator<Item = &'a Digest>, unit: u32) {
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
        self.count(length);
    }

    fn place(&self, hash: &Digest) -> (usize, Fingerprint) {
        let half = |from: usize| {
            let bytes = hash.as_bytes()[from..from + 4].try_into();
            u32::from_le_bytes(bytes.expect("four bytes"))
        };
        let slot = half(0) as usize & (self.seen.len() - 1);
        (slot, (half(4) | 2) & !IS_END)
    }

    fn count(&mut self, length: u32) {
        if self.recent.len() == RECENT
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
        self.recent.push_back(length);
        if length > 0 {
            *self.counts.entry(length).or_default() += 1;
        }
        let often = self.counts.iter().filter(|&(_, &count)| count >= LEAST);
        let mut most: SmallVec<[(u32, u32); 8]> = often.map(|(&at, &count)| (count, at)).collect();
        most.sort_by_key(|&(count, at)| (std::cmp::Reverse(count), at));
        self.expected = most.into_iter().take(MOST).map(|(_, at)| at).collect();
        self.expected.sort_unstable();
    }

    /// The lengths at which later requests are expected to branch off, in tokens, the shortest
    /// first.
    pub(super) fn expected(&self) -> &[u32] {
        &self.expected
    }

    /// The lengths at which a request's steps should end, because checkpoints there are resumed
    /// often enough. If they are not, a request now and then tries the most common one.
    pub(super) fn stops(&self, request: u64) -> &[u32] {
        let is_known = self.num_made >= WORTH_A_STEP;
        let is_worth = self.num_resumed * WORTH_A_STEP >= self.num_made;
        if !is_known || is_worth {
            return &self.expected;
        }
        let each = self.expected.chunks(1);
        let most_common = each.max_by_key(|one| self.counts[&one[0]]);
        let tried = most_common.filter(|_| request.is_multiple_of(TRIES));
        tried.unwrap_or_default()
    }

    /// Notes that a checkpoint was made at an expected length.
    pub(super) fn made(&mut self) {
        self.num_made += 1;
        if self.num_made >= MADE {
            self.num_made /= 2;
            self.num_resumed /= 2;
        }
    }

    /// Notes that such a checkpoint was resumed for the first time.
    pub(super) fn resumed(&mut self) {
        self.num_resumed += 1;
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let prints = self.seen.capacity() + self.recent.capacity() + 4 * self.counts.len();
        prints * size_of::<Fingerprint>()
    }

    /// Panics unless the counts are those of what is remembered.
    pub(super) fn check_integrity(&self) {
        assert!(self.recent.len() <= RECENT);
        let mut counts = BTreeMap::new();
        for &length in self.recent.iter().filter(|&&length| length > 0) {
            *counts.entry(length).or_default() += 1;
        }
        assert_eq!(self.counts, counts);
        assert!(self.expected.is_sorted());
        assert!(self.expected.iter().all(|at| self.counts[at] >= LEAST));
        assert!(self.num_made < MADE);
    }
}
