//! What an engine publishes about its cache: counts since they were last taken.

use super::request::{Life, Request};
use super::step::io::Need;

/// Requests that began to run, and how many tokens they reused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Starts {
    /// The number of these requests.
    pub num_requests: u64,
    /// The number of tokens that they had when they began.
    pub num_tokens: u64,
    /// The number of these tokens that they reused.
    pub num_hit_tokens: u64,
}

/// Counts since the last take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Look-ups, including repeated look-ups of waiting requests.
    pub num_matches: u64,
    /// Requests that ran for the first time.
    pub started: Starts,
    /// Requests that ran again after a preemption.
    pub resumed: Starts,
    /// Tokens of starting requests that were computed elsewhere.
    pub num_external_tokens: u64,
    /// Starting requests that branch off from others after their hit.
    pub num_junctions: u64,
    /// Running requests that gave their blocks back.
    pub num_preemptions: u64,
    /// Recoveries that were applied.
    pub num_recoveries: u64,
    /// Computed tokens that rewinds took back.
    pub num_rewound_tokens: u64,
    /// References that the caller took of single blocks with `hold_blocks`.
    pub num_held_blocks: u64,
    /// Blocks that were handed out.
    pub num_allocated_blocks: u64,
    /// Handed-out blocks that a hash could find until then.
    pub num_evicted_blocks: u64,
    /// Blocks that were findable and were forgotten, because their step never ran.
    pub num_dropped_blocks: u64,
}

impl Statistics {
    /// Counts a request that is allocated for, if it begins to run with this allocation.
    pub(super) fn count_start(&mut self, request: &mut Request, need: &Need) {
        let starts = match std::mem::replace(&mut request.life, Life::Runs) {
            Life::Waits => &mut self.started,
            Life::Preempted => &mut self.resumed,
            Life::Runs => return,
        };
        starts.num_requests += 1;
        starts.num_tokens += u64::from(request.num_tokens());
        starts.num_hit_tokens += u64::from(need.num_hit_tokens);
        self.num_external_tokens += u64::from(need.num_external_tokens);
        self.num_junctions += u64::from(need.junction.is_some_and(|at| at > 0));
    }

    /// Counts a request that gives its blocks back, if it was running.
    pub(super) fn count_preemption(&mut self, request: &mut Request) {
        if request.life == Life::Runs {
            request.life = Life::Preempted;
            self.num_preemptions += 1;
        }
    }
}
