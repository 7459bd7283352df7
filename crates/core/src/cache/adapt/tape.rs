//! When the shadows play: at once, or later and little by little.
//!
//! ```text
//! requests    |------ recorded ------|------------ not recorded ------------|-- recorded ...
//! shadows     | play what was recorded, a part of it whenever a request ends | play ...
//! counted     |  no  |                      yes                             |  no  |
//! ```
//! Shadows of a small pool play every request when it ends. Those of a larger one would cost as much
//! as the cache itself, so they play stretches of the traffic. A stretch is recorded without a gap,
//! because shadows have to see what comes back soon. It is played slowly: each request that ends pays
//! for a part of it, in proportion to its own length. At the beginning of a stretch the shadows hold
//! what the stretch before has left, so what they save there is not counted. Only the first stretch
//! begins with empty shadows beside an empty cache: it counts as a whole, its beginning is played at
//! once, and the rest of it sooner than later ones.

use std::collections::VecDeque;

use super::life::Life;
use crate::hash::Digest;

/// A stretch is so long that, if nothing was reused, its blocks would fill a shadow so often.
const FILLS: usize = 16;

/// The beginning of a stretch would fill a shadow so often.
const BEGINNING: usize = 4;

/// Of so many hashes of ended requests, shadows play one.
const ONE_IN: usize = 16;

/// The same while they play the first stretch: where a new cache leans is found out quickly.
const ONE_IN_AT_FIRST: usize = 1;

/// What decides how fast shadows play.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Hashes that fill a shadow.
    pub fill: usize,
    /// The shadows that play.
    pub num_shadows: usize,
}

/// Lives that wait to be played.
#[derive(Debug, Clone)]
pub(super) struct Tape {
    /// `None` if lives are played at once.
    pace: Option<Pace>,
    lives: VecDeque<Life>,
    /// The hashes of this stretch that were recorded, and played.
    num_recorded: usize,
    num_played: usize,
    is_recording: bool,
    is_first: bool,
    /// The hashes of requests that have ended, as far as they have not paid for a life yet.
    paid: usize,
}

impl Tape {
    pub(super) fn new(pace: Option<Pace>) -> Self {
        Self {
            pace,
            lives: VecDeque::new(),
            num_recorded: 0,
            num_played: 0,
            is_recording: true,
            is_first: true,
            paid: 0,
        }
    }

    pub(super) fn is_recording(&self) -> bool {
        self.is_recording
    }

    /// Adds a life, while the tape records.
    pub(super) fn record(&mut self, life: Life) {
        if let Some(pace) = self.pace {
            self.num_recorded += life.hashes.len();
            self.is_recording = self.num_recorded < FILLS * pace.fill;
        }
        self.lives.push_back(life);
    }

    /// Notes that a request with so many hashes has ended.
    pub(super) fn pay(&mut self, num_hashes: usize) {
        self.paid += num_hashes;
    }

    /// The next life to be played, if it is paid for, and whether it counts.
    pub(super) fn next(&mut self) -> Option<(Life, bool)> {
        let Some(life) = self.lives.front() else {
            self.paid = 0;
            return None;
        };
        let mut counts = true;
        if let Some(pace) = self.pace {
            let is_beginning = self.num_played < BEGINNING * pace.fill;
            if !(self.is_first && is_beginning) {
                let one_in = if self.is_first {
                    ONE_IN_AT_FIRST
                } else {
                    ONE_IN
                };
                let price = one_in * pace.num_shadows * life.hashes.len();
                self.paid = self.paid.checked_sub(price)?;
            }
            self.num_played += life.hashes.len();
            counts = self.is_first || !is_beginning;
        }
        let life = self.lives.pop_front();
        if self.lives.is_empty() && !self.is_recording {
            (self.num_recorded, self.num_played) = (0, 0);
            (self.is_recording, self.is_first) = (true, false);
        }
        life.map(|life| (life, counts))
    }

    /// The bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        let hashes: usize = self.lives.iter().map(|life| life.hashes.capacity()).sum();
        self.lives.capacity() * size_of::<Life>() + hashes * size_of::<Digest>()
    }

    /// Panics unless what was recorded is played or waits.
    pub(super) fn check_integrity(&self) {
        let waiting: usize = self.lives.iter().map(|life| life.hashes.len()).sum();
        match self.pace {
            Some(_) => assert_eq!(self.num_recorded, self.num_played + waiting, "tape"),
            None => assert_eq!(waiting, 0, "lives that should have been played at once"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        fill: 100,
        num_shadows: 5,
    };
    const LENGTH: usize = 10;

    /// Ends so many equal requests, which are told apart by their numbers of tokens. Returns the
    /// number of each that was played, by which request that was, and whether it counted.
    fn played(tape: &mut Tape, num_requests: u32) -> Vec<(u32, u32, bool)> {
        let mut found = Vec::new();
        for number in 0..num_requests {
            if tape.is_recording() {
                tape.record(Life::of_length(number, LENGTH));
            }
            tape.pay(2 * LENGTH);
            while let Some((life, counts)) = tape.next() {
                found.push((number, life.num_tokens, counts));
            }
            tape.check_integrity();
        }
        found
    }

    #[test]
    fn a_small_cache_plays_each_request_when_it_ends() {
        let all: Vec<_> = (0..1_000).map(|number| (number, number, true)).collect();
        assert_eq!(played(&mut Tape::new(None), 1_000), all);
    }

    #[test]
    fn a_large_cache_plays_stretches_without_gaps_and_counts_what_follows_their_beginnings() {
        let num_requests = 20_000;
        let found = played(&mut Tape::new(Some(PACE)), num_requests);
        let (mut stretch, mut begins) = (0, 0);
        for (at, &(now, number, counts)) in (0u32..).zip(&found) {
            let within = at % 160;
            if within == 0 {
                (stretch, begins) = (at / 160, number);
            }
            assert_eq!(number, begins + within, "a gap in a stretch");
            assert_eq!(counts, stretch == 0 || within >= 40);
            assert!(at >= 40 || now == number, "the first is played at once");
        }
        assert!(stretch > 2);
    }

    #[test]
    fn shadows_play_no_more_than_requests_have_paid_for() {
        let num_requests = 20_000;
        let found = played(&mut Tape::new(Some(PACE)), num_requests);
        let (mut last, mut price) = (0, 0);
        for (at, &(now, ..)) in found.iter().enumerate().skip(40) {
            let one_in = if at < 160 { ONE_IN_AT_FIRST } else { ONE_IN };
            price += one_in * PACE.num_shadows * LENGTH;
            assert!(price <= 2 * LENGTH * (now as usize + 1));
            assert!(last != now, "two at once");
            last = now;
        }
        let most = 2 * LENGTH * num_requests as usize;
        assert!(price > most * 9 / 10, "nearly all that is paid for");
    }
}
