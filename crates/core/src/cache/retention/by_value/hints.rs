//! Caller hints (`will_return`), and how often they turned out right.
//!
//! ```text
//! likelihood of an end = how often such ends were resumed * lift of what was said of it
//! lift of what was said = share of such ends that came back / share of all ends that came back
//! ```
//! A hint is calibrated, not believed. It begins as the probability that it names, but if what is
//! said tells nothing of what comes back, every lift becomes 1, as if nothing were said. Ends that
//! are no longer kept count too: else an end that was let go because of a wrong hint could never
//! prove it wrong. They are remembered as fingerprints in a table of fixed size, where a new one
//! replaces the old one.

use super::value::{Past, Rate};
use super::{Checkpoints, Node};
use crate::cache::hint::{HINTS, Hint};
use crate::cache::request::Request;
use crate::cache::value_cursor::Ending;
use crate::hash::Digest;

/// The weight of an observation falls to 1/e while this many others are made. What callers know
/// changes less often than what requests do, and small differences between hints should be no noise.
const MEMORY: f64 = 2048.0;

/// The number of endings times the number of hints.
const KINDS: usize = 12;

/// An ending and a hint as one number.
fn kind(ending: Ending, hint: Hint) -> u8 {
    2 * hint as u8 + ending as u8
}

/// A fingerprint of a prefix, and in its lowest bits the kind of the end there; 0 is none.
type EndFingerprint = u32;
const KIND: EndFingerprint = 15;

/// How often ends came back, by what was said of them.
#[derive(Debug, Clone)]
pub(super) struct Returns {
    /// The rates by ending and hint, and by ending alone.
    kinds: [Rate; KINDS],
    all: [Rate; 2],
    /// The ends from which nobody went on yet; empty until a hint is given.
    ends: Vec<EndFingerprint>,
    num_slots: usize,
}

impl Returns {
    /// `guesses` are the likelihoods that ends without hints begin with.
    pub(super) fn new(num_blocks: usize, guesses: [f64; 2]) -> Self {
        let mut kinds = [Rate::guess(0.0); KINDS];
        for ending in [Ending::Start, Ending::Turn] {
            kinds[usize::from(kind(ending, Hint::Unknown))] = Rate::guess(guesses[ending as usize]);
            for hint in HINTS {
                kinds[usize::from(kind(ending, hint))] = Rate::guess(hint.probability());
            }
        }
        Self {
            kinds,
            all: guesses.map(Rate::guess),
            ends: Vec::new(),
            num_slots: num_blocks.next_power_of_two(),
        }
    }

    fn is_used(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Notes that a request has ended at a prefix.
    fn note_end(&mut self, prefix: &Digest, ending: Ending, hint: Hint) {
        if !self.is_used() {
            if hint == Hint::Unknown {
                return;
            }
            self.ends = vec![0; self.num_slots];
        }
        let kind = kind(ending, hint);
        self.kinds[usize::from(kind)].observe(MEMORY);
        self.all[ending as usize].observe(MEMORY);
        let (slot, print) = self.place(prefix);
        self.ends[slot] = print | EndFingerprint::from(kind);
    }

    /// Notes that a request starts that has these prefixes, the longest first.
    fn note_start<'a>(&mut self, mut prefixes: impl Iterator<Item = &'a Digest>) {
        if !self.is_used() {
            return;
        }
        let end = prefixes.find_map(|prefix| {
            let (slot, print) = self.place(prefix);
            (self.ends[slot] & !KIND == print).then_some(slot)
        });
        if let Some(slot) = end {
            let kind = (std::mem::take(&mut self.ends[slot]) & KIND) as usize;
            self.kinds[kind].hit();
            self.all[kind % self.all.len()].hit();
        }
    }

    fn place(&self, prefix: &Digest) -> (usize, EndFingerprint) {
        let half = |from: usize| {
            let bytes = prefix.as_bytes()[from..from + 4].try_into();
            u32::from_le_bytes(bytes.expect("four bytes"))
        };
        let slot = half(0) as usize & (self.num_slots - 1);
        (slot, (half(4) | (KIND + 1)) & !KIND)
    }

    /// How much likelier an end comes back than others because of what was said of it; 1 until
    /// something is said of any.
    fn lift(&self, ending: Ending, hint: Hint) -> f64 {
        self.kinds[usize::from(kind(ending, hint))].value() / self.all[ending as usize].value()
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        self.ends.capacity() * size_of::<EndFingerprint>()
    }

    /// Panics unless all that is remembered is an end.
    pub(super) fn check_integrity(&self) {
        assert!(!self.is_used() || self.ends.len() == self.num_slots);
        let kinds = self.ends.iter().map(|end| (end & KIND) as usize);
        assert!(kinds.max().unwrap_or(0) < KINDS, "the end of no kind");
    }
}

impl Checkpoints {
    /// Notes that a request starts: if it goes on from an end, that end came back.
    pub(in crate::cache) fn note_return(&mut self, request: &Request) {
        let prefixes = self.boundaries.prefixes(request, request.num_prompt_tokens);
        self.returns.note_start(prefixes.rev());
    }

    /// Notes that a request is done: somebody may go on from its end, with the likelihood that its
    /// hint tells.
    pub(in crate::cache) fn learn_from_finished(&mut self, request: &Request) {
        let end = self.boundaries.settled(request.num_known_computed());
        if let Some(prefix) = request.hash_at(end, self.boundaries.hash_block) {
            self.returns
                .note_end(prefix, request.by_value.ending, request.by_value.hint);
        }
    }

    /// How likely a node is resumed.
    pub(super) fn likelihood_of(&self, node: &Node) -> f64 {
        let past = node.past();
        let learned = self.likelihood.of(past);
        match past {
            Past::Ended(ending) => learned * self.returns.lift(ending, node.hint),
            Past::Passed(_) | Past::Shared(_) => learned,
        }
    }
}
