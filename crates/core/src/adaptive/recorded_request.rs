//! What a simulated cache needs to know of a request that has finished.

use smallvec::SmallVec;

use crate::cache::{FinishedRequest, Hint, Match};
use crate::hash::Digest;

/// The blocks of a simulated cache by which requests are hashed.
#[derive(Debug, Clone, Copy)]
pub(super) struct SimulatedBlock {
    pub tokens: u32,
    /// The number of the cache's own hashes in one.
    pub num_hashes: u32,
}

impl SimulatedBlock {
    /// The hashes of what a request has computed.
    pub(super) fn hashes(
        self,
        request: &FinishedRequest,
    ) -> impl ExactSizeIterator<Item = &Digest> {
        request.hashes_every(self.num_hashes, request.num_tokens() / self.tokens)
    }
}

#[derive(Debug, Clone)]
pub(super) struct RecordedRequest {
    /// The hashes of the blocks of a simulated cache.
    pub hashes: Vec<Digest>,
    pub num_prompt_tokens: u32,
    /// The tokens that were computed.
    pub num_tokens: u32,
    /// What was said of its end.
    pub hint: Hint,
    /// Where the steps ended that computed the prompt.
    step_ends: SmallVec<[u32; 4]>,
}

impl RecordedRequest {
    pub(super) fn of(request: &FinishedRequest, unit: SimulatedBlock) -> Self {
        let num_tokens = request.num_tokens();
        Self {
            hashes: unit.hashes(request).copied().collect(),
            num_prompt_tokens: request.num_prompt_tokens().min(num_tokens),
            num_tokens,
            hint: request.hint(),
            step_ends: SmallVec::from_slice(request.step_ends()),
        }
    }

    /// A request with this many hashes, for tests.
    #[cfg(test)]
    pub(super) fn of_length(num_tokens: u32, num_hashes: usize) -> Self {
        Self {
            hashes: vec![Digest::from_bytes(&[7; 32]).expect("32 bytes"); num_hashes],
            num_prompt_tokens: num_tokens,
            num_tokens,
            hint: Hint::default(),
            step_ends: SmallVec::new(),
        }
    }

    /// How many of the hashes are the prompt's.
    pub(super) fn num_prompt_hashes(&self, unit: u32) -> usize {
        ((self.num_prompt_tokens / unit) as usize).min(self.hashes.len())
    }

    /// Where the steps end that compute the prompt after a hit, in order. `unit` is where states are
    /// kept, if there are any: then steps end at a junction and where the same prompt would resume, as
    /// a cache plans them.
    pub(super) fn stops(&self, found: Match, unit: Option<u32>) -> SmallVec<[u32; 8]> {
        let mut stops: SmallVec<[u32; 8]> = self.step_ends.iter().copied().collect();
        stops.push(self.num_prompt_tokens);
        if let Some(unit) = unit {
            let last = self.num_prompt_tokens.saturating_sub(1) / unit * unit;
            stops.extend([found.junction / unit * unit, last]);
        }
        stops.retain(|end| found.num_tokens < *end && *end <= self.num_prompt_tokens);
        stops.sort_unstable();
        stops.dedup();
        stops
    }
}
