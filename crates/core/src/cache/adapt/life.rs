//! What a shadow needs to know of a request that has ended.

use smallvec::SmallVec;

use crate::cache::request::Request;
use crate::cache::{Hint, Match};
use crate::hash::Digest;

#[derive(Debug, Clone)]
pub(super) struct Life {
    /// The hashes of the blocks of a shadow.
    pub hashes: Vec<Digest>,
    pub num_prompt_tokens: u32,
    /// The tokens that were computed.
    pub num_tokens: u32,
    /// What was said of its end.
    pub hint: Hint,
    /// Where the steps ended that computed the prompt.
    step_ends: SmallVec<[u32; 4]>,
}

impl Life {
    /// `unit` is the number of tokens of a shadow's hash, and `every` that of the hashes in it.
    pub(super) fn of(request: &Request, unit: u32, every: u32) -> Option<Self> {
        let num_tokens = request.num_computed_tokens.min(request.num_tokens());
        let most = (num_tokens / unit) as usize;
        let hashes = request.hashes.iter().skip(every as usize - 1);
        let hashes = hashes.step_by(every as usize).take(most).copied();
        (num_tokens > 0).then(|| Self {
            hashes: hashes.collect(),
            num_prompt_tokens: request.num_prompt_tokens.min(num_tokens),
            num_tokens,
            hint: request.hint,
            step_ends: request.step_ends.clone(),
        })
    }

    /// How many of the hashes are the prompt's.
    pub(super) fn num_prompt_hashes(&self, unit: u32) -> usize {
        ((self.num_prompt_tokens / unit) as usize).min(self.hashes.len())
    }

    /// Where the steps end that compute the prompt after a hit, in order. `unit` is where states are kept, if there are any:
    /// then steps end at a junction and where the same prompt would resume, as a cache plans them.
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
