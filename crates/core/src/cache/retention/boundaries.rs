//! Where later requests are expected to resume.

use smallvec::SmallVec;

use crate::cache::config::CacheConfig;
use crate::cache::group::Group;
use crate::cache::request::Request;
use crate::hash::Digest;

/// What decides at which boundaries of a request later requests are expected to resume.
#[derive(Debug, Clone, Copy)]
pub(in crate::cache) struct Boundaries {
    /// Blocks of all groups end at multiples of this many tokens.
    alignment: u32,
    /// Every hit is a multiple of this many tokens.
    pub hit_alignment: u32,
    pub hash_block: u32,
    /// The number of last tokens that are registered later than they are computed.
    late: u32,
    /// The number of tokens of a hit that are replayed before the request continues.
    pub replay_tokens: u32,
    /// Whether a draft head drops one unit of every hit.
    pub has_eagle: bool,
}

impl Boundaries {
    pub(in crate::cache) fn new(config: &CacheConfig, groups: &[Group]) -> Self {
        let topology = &config.topology;
        Self {
            alignment: topology.alignment,
            hit_alignment: config.hit_alignment(),
            hash_block: topology.hash_block_size,
            late: topology.hash_lookahead.max(config.num_reprefillable_tokens),
            replay_tokens: topology.replay_tokens,
            has_eagle: groups.iter().any(|group| group.eagle),
        }
    }

    /// The positions in tokens at which a later request is expected to resume: a request with the
    /// same prompt, one with a longer prompt, and one that branches off where others did.
    pub(in crate::cache) fn expected(&self, request: &Request) -> SmallVec<[u32; 3]> {
        let prompt = request.num_prompt_tokens;
        let mut boundaries = SmallVec::new();
        if self.has_eagle {
            let unit = self.alignment;
            let dropped = |tokens: u32| (tokens / unit * unit).saturating_sub(unit);
            boundaries.extend([dropped(prompt.saturating_sub(1)), dropped(prompt)]);
        } else {
            boundaries.push(prompt.saturating_sub(1));
        }
        if request.junction > 0 {
            boundaries.push(request.junction);
        }
        boundaries
    }

    /// The hashes at the boundaries of a request's first tokens at which a hit can end, as far as
    /// they are known, the shortest prefix first.
    pub(in crate::cache) fn prefixes(
        self,
        request: &Request,
        num_tokens: u32,
    ) -> impl DoubleEndedIterator<Item = &Digest> {
        let every = self.hit_alignment / self.hash_block;
        request.hashes_every(every, num_tokens / self.hit_alignment)
    }

    /// The last boundary at which a hit can end once this many tokens are registered.
    pub(in crate::cache) fn settled(&self, num_tokens: u32) -> u32 {
        let unit = self.hit_alignment;
        let dropped = if self.has_eagle { unit } else { 0 };
        (num_tokens.saturating_sub(self.late) / unit * unit).saturating_sub(dropped)
    }

    /// The last boundary, in whole units, at which a resend of this many tokens can resume. A
    /// resend computes at least one token, and a draft head drops a unit.
    pub(in crate::cache) fn last_state(&self, num_tokens: u32, unit: u32) -> u32 {
        if self.has_eagle {
            (num_tokens / unit * unit).saturating_sub(unit)
        } else {
            num_tokens.saturating_sub(1) / unit * unit
        }
    }
}
