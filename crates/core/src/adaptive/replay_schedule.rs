//! When the simulated caches replay: at once, or later and little by little.
//!
//! ```text
//! requests    |------ recorded ------|------------ not recorded ------------|-- recorded ...
//! replayed    | what was recorded, a part of it whenever a request finishes | ...
//! counted     |  no  |                      yes                             |  no  |
//! ```
//! Simulated caches of a small pool replay every request when it finishes. Those of a larger one would
//! cost as much as the cache itself, so they replay windows of the traffic. A window is recorded
//! without a gap, because simulated caches have to see what comes back soon. It is replayed slowly:
//! each request that finishes pays for a part of it, in proportion to its own length. At the beginning
//! of a window the simulated caches hold what the window before has left, so what they save there is
//! not counted. Only the first window begins with empty simulated caches beside an empty cache: it
//! counts as a whole, its beginning is replayed at once, and the rest of it sooner than later ones.

use std::collections::VecDeque;

use super::recorded_request::RecordedRequest;
use crate::hash::Digest;

/// A recorded window is long enough to fill a simulated cache this many times, if nothing was reused.
const FILLS: usize = 16;

/// The beginning of a window would fill a simulated cache this many times.
const BEGINNING: usize = 4;

/// Simulated caches replay one hash for every `REPLAY_RATIO` hashes of finished requests.
const REPLAY_RATIO: usize = 16;

/// The same while they replay the first window: which policy a new cache needs is found out quickly.
const REPLAY_RATIO_AT_FIRST: usize = 1;

/// What decides how fast simulated caches replay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Hashes that fill a simulated cache.
    pub fill: usize,
    /// The simulated caches that replay.
    pub num_caches: usize,
}

/// Recorded requests that wait to be replayed.
#[derive(Debug, Clone)]
pub(super) struct ReplaySchedule {
    /// `None` if requests are replayed at once.
    pace: Option<Pace>,
    waiting: VecDeque<RecordedRequest>,
    /// The hashes of this window that were recorded, and replayed.
    num_recorded: usize,
    num_replayed: usize,
    is_recording: bool,
    is_first: bool,
    /// The hashes of finished requests, as far as they have not paid for a replay yet.
    paid: usize,
}

impl ReplaySchedule {
    pub(super) fn new(pace: Option<Pace>) -> Self {
        Self {
            pace,
            waiting: VecDeque::new(),
            num_recorded: 0,
            num_replayed: 0,
            is_recording: true,
            is_first: true,
            paid: 0,
        }
    }

    pub(super) fn is_recording(&self) -> bool {
        self.is_recording
    }

    /// Adds a request, while the schedule records.
    pub(super) fn record(&mut self, request: RecordedRequest) {
        if let Some(pace) = self.pace {
            self.num_recorded += request.hashes.len();
            self.is_recording = self.num_recorded < FILLS * pace.fill;
        }
        self.waiting.push_back(request);
    }

    /// Notes that a request with this many hashes has finished.
    pub(super) fn pay(&mut self, num_hashes: usize) {
        self.paid += num_hashes;
    }

    /// The next request to be replayed, if it is paid for, and whether it counts.
    pub(super) fn next(&mut self) -> Option<(RecordedRequest, bool)> {
        let Some(request) = self.waiting.front() else {
            self.paid = 0;
            return None;
        };
        let mut counts = true;
        if let Some(pace) = self.pace {
            let is_beginning = self.num_replayed < BEGINNING * pace.fill;
            if !(self.is_first && is_beginning) {
                let ratio = if self.is_first {
                    REPLAY_RATIO_AT_FIRST
                } else {
                    REPLAY_RATIO
                };
                let price = ratio * pace.num_caches * request.hashes.len();
                self.paid = self.paid.checked_sub(price)?;
            }
            self.num_replayed += request.hashes.len();
            counts = self.is_first || !is_beginning;
        }
        let request = self.waiting.pop_front();
        if self.waiting.is_empty() && !self.is_recording {
            (self.num_recorded, self.num_replayed) = (0, 0);
            (self.is_recording, self.is_first) = (true, false);
        }
        request.map(|request| (request, counts))
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let hashes: usize = self
            .waiting
            .iter()
            .map(|request| request.hashes.capacity())
            .sum();
        self.waiting.capacity() * size_of::<RecordedRequest>() + hashes * size_of::<Digest>()
    }

    /// Panics unless what was recorded is replayed or waits.
    pub(super) fn check_integrity(&self) {
        let waiting: usize = self
            .waiting
            .iter()
            .map(|request| request.hashes.len())
            .sum();
        match self.pace {
            Some(_) => assert_eq!(self.num_recorded, self.num_replayed + waiting, "schedule"),
            None => assert_eq!(
                waiting, 0,
                "requests that should have been replayed at once"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        fill: 100,
        num_caches: 5,
    };
    const LENGTH: usize = 10;

    /// Finishes equal requests, which are told apart by their numbers of tokens. Returns the
    /// number of each that was replayed, by which request that was, and whether it counted.
    fn replayed(schedule: &mut ReplaySchedule, num_requests: u32) -> Vec<(u32, u32, bool)> {
        let mut found = Vec::new();
        for number in 0..num_requests {
            if schedule.is_recording() {
                schedule.record(RecordedRequest::of_length(number, LENGTH));
            }
            schedule.pay(2 * LENGTH);
            while let Some((request, counts)) = schedule.next() {
                found.push((number, request.num_tokens, counts));
            }
            schedule.check_integrity();
        }
        found
    }

    #[test]
    fn a_small_cache_replays_each_request_when_it_finishes() {
        let all: Vec<_> = (0..1_000).map(|number| (number, number, true)).collect();
        assert_eq!(replayed(&mut ReplaySchedule::new(None), 1_000), all);
    }

    #[test]
    fn a_large_cache_replays_windows_without_gaps_and_counts_what_follows_their_beginnings() {
        let num_requests = 20_000;
        let found = replayed(&mut ReplaySchedule::new(Some(PACE)), num_requests);
        let (mut window, mut begins) = (0, 0);
        for (at, &(now, number, counts)) in (0u32..).zip(&found) {
            let within = at % 160;
            if within == 0 {
                (window, begins) = (at / 160, number);
            }
            assert_eq!(number, begins + within, "a gap in a window");
            assert_eq!(counts, window == 0 || within >= 40);
            assert!(at >= 40 || now == number, "the first is replayed at once");
        }
        assert!(window > 2);
    }

    #[test]
    fn simulated_caches_replay_no_more_than_requests_have_paid_for() {
        let num_requests = 20_000;
        let found = replayed(&mut ReplaySchedule::new(Some(PACE)), num_requests);
        let (mut last, mut price) = (0, 0);
        for (at, &(now, ..)) in found.iter().enumerate().skip(40) {
            let ratio = if at < 160 {
                REPLAY_RATIO_AT_FIRST
            } else {
                REPLAY_RATIO
            };
            price += ratio * PACE.num_caches * LENGTH;
            assert!(price <= 2 * LENGTH * (now as usize + 1));
            assert!(last != now, "two at once");
            last = now;
        }
        let most = 2 * LENGTH * num_requests as usize;
        assert!(price > most * 9 / 10, "nearly all that is paid for");
    }
}
