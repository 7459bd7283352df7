//! An index that many threads use: who waits for whom.
//!
//! Law: whoever changes the index has the turn to the end of the change, so that no change sees half
//! of another; whoever asks needs the index alone, which a long change lets go between its slices,
//! to whoever waits first.

use std::panic::{self, AssertUnwindSafe};
use std::time::{Duration, Instant};

use kvbraid_core::Error;
use kvbraid_core::fleet::{Applied, Index, RankInfo, SLICE};
use parking_lot::{Mutex, MutexGuard};

/// A longer payload is decoded without the index: that takes a millisecond or more.
const LONG_PAYLOAD_BYTES: usize = 256 << 10;

/// Ranks that are looked at in one hold: each takes milliseconds where much of it is undecided.
const RANKS_AT_ONCE: usize = 8;

/// An index and its two locks.
pub(crate) struct SharedIndex {
    /// Whose turn it is to change the index, for as long as a change takes. Taken before `index`.
    turn: Mutex<()>,
    index: Mutex<Index>,
}

impl SharedIndex {
    /// Shares an index.
    pub(crate) fn new(index: Index) -> Self {
        Self {
            turn: Mutex::new(()),
            index: Mutex::new(index),
        }
    }

    /// The index, for a question.
    pub(crate) fn ask(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    /// The index, for a question, if nobody has it now.
    pub(crate) fn try_ask(&self) -> Option<MutexGuard<'_, Index>> {
        self.index.try_lock()
    }

    /// What is known of every rank, a few ranks at a time.
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

    /// Makes a change that is not divided. What it leaves to be tidied up is.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        let _turn = self.turn.lock();
        let mut index = self.index.lock();
        let changed = change(&mut index);
        keep_limits(&mut index);
        changed
    }

    /// Resets the ranks of a feed, a portion at a time.
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

    /// Takes batches in until the time is over: at least the first.
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
            // The index is let go in between: a score waits for one batch, not for all.
            done.push(self.take_in(name, dp_rank, payload.as_ref())?);
            if begin.elapsed() >= budget {
                break;
            }
        }
        Ok(done)
    }

    /// Takes a batch in. Should that panic, the ranks that the feed writes to know nothing from then on,
    /// and every other rank what it knew; whoever called is told by the panic.
    pub(crate) fn take_in(
        &self,
        name: &str,
        dp_rank: u32,
        payload: &[u8],
    ) -> Result<Applied, Error> {
        let _turn = self.turn.lock();
        let take_in = || self.take_in_slices(name, dp_rank, payload);
        panic::catch_unwind(AssertUnwindSafe(take_in)).unwrap_or_else(|panicked| {
            // The pod is registered: something of it panicked.
            let _ = self.index.lock().discard(name, dp_rank);
            panic::resume_unwind(panicked)
        })
    }

    /// Takes a batch in, slice by slice. The caller has the turn.
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

/// Tidies up, a portion at a time.
fn keep_limits(index: &mut MutexGuard<'_, Index>) {
    while !index.keep_limits() {
        MutexGuard::bump(index);
    }
}
