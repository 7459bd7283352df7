//! An index that many threads use, and the order in which they wait.
//!
//! Invariant: a thread that changes the index has the turn until its change is complete, so no change
//! sees half of another one. A thread that asks a question needs only the index, which a long
//! change releases between its slices to the thread that has waited longest.

use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use kvbraid_core::Error;
use kvbraid_core::fleet::{
    Applied, Asked, Index, RankInfo, SLICE, Saving, ScoreRequest, SeenBefore, Unread, Unsealed,
};
use parking_lot::{Mutex, MutexGuard};

/// A longer payload is decoded without holding the index, because that takes a millisecond or more.
const LONG_PAYLOAD_BYTES: usize = 256 << 10;

/// The number of ranks that are looked at while the index is held. A rank with many
/// undecided blocks takes milliseconds.
const RANKS_AT_ONCE: usize = 8;

/// An index and its two locks.
pub(crate) struct SharedIndex {
    /// The turn to change the index, which is held for the whole change. It is taken before
    /// `index`.
    turn: Mutex<()>,
    index: Mutex<Index>,
}

impl SharedIndex {
    /// Makes an index shareable.
    pub(crate) fn new(index: Index) -> Self {
        Self {
            turn: Mutex::new(()),
            index: Mutex::new(index),
        }
    }

    /// Locks the index for a question.
    pub(crate) fn ask(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    /// Locks the index for a question, if no other thread has it now.
    pub(crate) fn try_ask(&self) -> Option<MutexGuard<'_, Index>> {
        self.index.try_lock()
    }

    /// What was ever shown of a request. What was shown since the last such question is settled first,
    /// one portion at a time.
    pub(crate) fn seen(&self, request: &ScoreRequest<'_>) -> Result<SeenBefore, Error> {
        self.settled().seen(request)
    }

    /// Answers a request; if `with_seen`, what was ever shown of it, too.
    pub(crate) fn score(
        &self,
        request: &ScoreRequest<'_>,
        with_seen: bool,
    ) -> Result<Asked, Error> {
        let mut index = if with_seen {
            self.settled()
        } else {
            self.ask()
        };
        index.ask(request, with_seen)
    }

    fn settled(&self) -> MutexGuard<'_, Index> {
        let mut index = self.ask();
        let mut before = usize::MAX;
        loop {
            let left = index.settle_seen(SLICE);
            // Whoever has the index in the meantime may show more than was settled.
            if left == 0 || left >= before {
                return index;
            }
            before = left;
            MutexGuard::bump(&mut index);
        }
    }

    /// What is known of every rank. The index is released after every few ranks.
    pub(crate) fn pods(&self) -> Vec<RankInfo> {
        let mut pods: Vec<RankInfo> = Vec::new();
        loop {
            let last = pods.last().map(|info| (info.pod.as_str(), info.dp_rank));
            let next = self.ask().pods_after(last, RANKS_AT_ONCE);
            if next.is_empty() {
                return pods;
            }
            pods.extend(next);
        }
    }

    /// Makes a change in one piece. The tidying up that follows is divided into portions.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let _turn = self.turn.lock();
        let mut index = self.index.lock();
        let changed = change(&mut index);
        keep_limits(&mut index);
        changed
    }

    /// A pod as bytes, one portion at a time, but for its seal: nobody waits for that.
    pub(crate) fn save(&self, name: &str, note: &str) -> Result<Unsealed, Error> {
        let _turn = self.turn.lock();
        let mut index = self.index.lock();
        let mut saving = Saving::new(&index, name, note)?;
        while !saving.advance(&mut index, SLICE) {
            MutexGuard::bump(&mut index);
        }
        saving.finish(&index)
    }

    /// Replaces what is known of a pod by what was saved. Questions are answered while it is read.
    pub(crate) fn load(&self, name: &str, saved: &[u8]) -> Result<String, Error> {
        let _turn = self.turn.lock();
        let unread = Unread::new(&self.index.lock(), name)?;
        let unplaced = unread.read(saved)?;
        let mut index = self.index.lock();
        let note = unplaced.place(&mut index);
        keep_limits(&mut index);
        Ok(note)
    }

    /// Resets the ranks of a feed, one portion at a time.
    pub(crate) fn reset(&self, name: &str, dp_rank: u32) -> Result<(), Error> {
        let _turn = self.turn.lock();
        let mut index = self.index.lock();
        while !index.begin_reset(name, dp_rank, SLICE)? {
            MutexGuard::bump(&mut index);
        }
        index.reset(name, dp_rank)?;
        keep_limits(&mut index);
        Ok(())
    }

    /// Notes a request that a pod was sent, one portion at a time.
    pub(crate) fn routed(
        &self,
        name: &str,
        dp_rank: u32,
        request: &ScoreRequest<'_>,
        produced: &[u32],
    ) -> Result<(), Error> {
        let _turn = self.turn.lock();
        let mut index = self.index.lock();
        while !index.begin_routed(name, dp_rank, request.model, SLICE)? {
            MutexGuard::bump(&mut index);
        }
        index.note_routed(name, dp_rank, request, produced)?;
        while !index.end_routed(name, dp_rank, SLICE)? {
            MutexGuard::bump(&mut index);
        }
        keep_limits(&mut index);
        Ok(())
    }

    /// Applies batches until the time is over, but at least the first one.
    pub(crate) fn take_in_many(
        &self,
        name: &str,
        dp_rank: u32,
        payloads: &[impl AsRef<[u8]>],
        budget: Duration,
    ) -> Result<Vec<Applied>, Error> {
        let begin = Instant::now();
        let mut done = Vec::with_capacity(payloads.len());
        for payload in payloads {
            // The index is released between two batches, so a score waits for one batch and not for
            // all.
            done.push(self.take_in(name, dp_rank, payload.as_ref())?);
            if begin.elapsed() >= budget {
                break;
            }
        }
        Ok(done)
    }

    /// Applies a batch. If that panics, the ranks that the feed writes to know nothing from then
    /// on, every other rank keeps what it knew, and the panic is passed on to the caller.
    pub(crate) fn take_in(
        &self,
        name: &str,
        dp_rank: u32,
        payload: &[u8],
    ) -> Result<Applied, Error> {
        let _turn = self.turn.lock();
        let take_in = || self.take_in_slices(name, dp_rank, payload);
        panic::catch_unwind(AssertUnwindSafe(take_in)).unwrap_or_else(|panicked| {
            // The pod must be registered, because the panic came from its own data.
            let _ = self.index.lock().discard(name, dp_rank);
            panic::resume_unwind(panicked)
        })
    }

    /// Applies a batch slice by slice. The caller has the turn.
    fn take_in_slices(&self, name: &str, dp_rank: u32, payload: &[u8]) -> Result<Applied, Error> {
        let mut index = self.index.lock();
        let mut intake = index.take_intake();
        if payload.len() > LONG_PAYLOAD_BYTES {
            MutexGuard::unlocked(&mut index, || intake.read(payload));
        } else {
            intake.read(payload);
        }
        let mut is_in = index.advance(name, dp_rank, &mut intake, SLICE);
        while let Ok(false) = is_in {
            MutexGuard::bump(&mut index);
            is_in = index.advance(name, dp_rank, &mut intake, SLICE);
        }
        let applied = intake.applied();
        index.give_back(intake);
        keep_limits(&mut index);
        is_in.map(|_| applied)
    }
}

/// Tidies up, one portion at a time.
fn keep_limits(index: &mut MutexGuard<'_, Index>) {
    while !index.keep_limits() {
        MutexGuard::bump(index);
    }
}
