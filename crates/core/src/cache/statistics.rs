//! What an engine publishes of its cache: counts since they were last taken.

use super::request::{Life, Request};
use super::step::Need;

/// Requests that began to run, and how much they reused; tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Starts {
    /// How many there were.
    pub num_requests: u64,
    /// All tokens that they had then.
    pub num_tokens: u64,
    /// Those of them that they reused.
    pub num_hit_tokens: u64,
}

/// Counts since the last take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Look-ups, repeated ones of waiting requests included.
    pub num_matches: u64,
    /// Requests that ran for the first time.
    pub started: Starts,
    /// Requests that ran again after a preemption.
    pub resumed: Starts,
    /// Tokens that starting requests had computed elsewhere.
    pub num_external_tokens: u64,
    /// Starting requests that branch off others after their hit.
    pub num_junctions: u64,
    /// Running requests that gave their blocks back.
    pub num_preemptions: u64,
    /// Blocks that were handed out.
    pub num_allocated_blocks: u64,
    /// Those of them that could be found until then.
    pub num_evicted_blocks: u64,
}

impl Statistics {
    /// Counts a request that is allocated for, if that begins a run.
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

    /// Counts a request that gives its blocks back, if it runs.
    pub(super) fn count_preemption(&mut self, request: &mut Request) {
        if request.life == Life::Runs {
            request.life = Life::Preempted;
            self.num_preemptions += 1;
        }
    }
}
