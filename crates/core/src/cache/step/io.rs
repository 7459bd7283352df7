//! The inputs and outputs of a step. They are plain values without any logic.

use crate::blocks::{Author, BlockId, Extra};
use crate::cache::hint::Hint;
use crate::hash::Digest;

/// A new request, as it is added.
#[derive(Debug, Clone, Default)]
pub struct NewRequest {
    /// The request's tokens so far.
    pub tokens: Vec<u32>,
    /// How many of the tokens are the prompt.
    pub num_prompt_tokens: u32,
    /// What separates the request's cache.
    pub extra: Extra,
    /// The hashes that the engine computed; `None` if the cache computes them.
    pub hashes: Option<Vec<Digest>>,
    /// Whether some later request will go on from where this one ends. Only retention by value
    /// looks at it.
    pub hint: Hint,
}

/// How much a request can reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Match {
    /// The longest prefix after which every group can resume, in tokens.
    pub num_tokens: u32,
    /// The boundary where the groups that are looked up first could resume, if it is further; else
    /// 0.
    pub junction: u32,
}

/// A position that a load fills, and where its block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// The group.
    pub group: u16,
    /// The position in the request's table.
    pub position: u32,
    /// 0 for the pool, and then the number of the tier, from 1 on.
    pub source: u32,
    /// The block of the pool, or the slot of the tier.
    pub block: BlockId,
}

/// How much a request can reuse of the pool and of the tiers below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TierMatch {
    /// The hit to adopt before the load. Without a load, it is what the pool has.
    pub adopted: Match,
    /// What the pool alone has, in tokens.
    pub num_pool_tokens: u32,
    /// What the request has when the load has ended, in tokens.
    pub num_tokens: u32,
    /// What the load fills, by group and position.
    pub fills: Vec<Fill>,
}

/// What one request asks of one step; all counts are tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Need {
    /// The request.
    pub request: u64,
    /// The tokens that the step computes.
    pub num_new_tokens: u32,
    /// The tokens that a request reuses when it starts.
    pub num_hit_tokens: u32,
    /// The boundary where other requests branch off. The request remembers it, and keeps a state
    /// there.
    pub junction: Option<u32>,
    /// The tokens after the hit that were computed elsewhere.
    pub num_external_tokens: u32,
    /// The draft tokens that need slots too.
    pub num_lookahead_tokens: u32,
    /// The tokens that are scheduled but not processed yet. The blocks that they read stay.
    pub num_in_flight_tokens: u32,
    /// The tokens of the encoder, for cross attention.
    pub num_encoder_tokens: u32,
    /// The tokens that were computed before this step, without the hit; `None` for as many as are
    /// tracked.
    pub num_computed_tokens: Option<u32>,
    /// Whether nothing is registered yet, because a load is under way.
    pub delay_commit: bool,
    /// The groups whose blocks for the external tokens are filled by a load after this step. They
    /// are not listed for zeroing, which could overwrite what was loaded.
    pub loading_groups: Vec<u16>,
    /// Whether to allocate only if the whole request would fit.
    pub full_sequence_must_fit: bool,
    /// Whether the watermark applies, because the request is waiting to be admitted.
    pub is_waiting: bool,
}

/// Why a request got nothing, and so what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoFit {
    /// Too few blocks are free.
    Memory,
    /// Enough blocks are free, but some of them are kept for requests that run already.
    Watermark,
    /// Enough blocks are free, but the caller reserves some of them.
    Reserved,
    /// The step would fit, but not the whole request.
    FullSequence,
    /// The hit is being written in this step.
    Unwritten,
    /// An earlier request of the call has evicted the hit.
    HitEvicted,
}

impl NoFit {
    /// The name that the binding passes on.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Watermark => "watermark",
            Self::Reserved => "reserved",
            Self::FullSequence => "full_sequence",
            Self::Unwritten => "unwritten",
            Self::HitEvicted => "hit_evicted",
        }
    }
}

/// The blocks that a step handed out. Those of request `i` and group `g` come after those of
/// request `i` and group `g - 1`, and `counts[i * num_groups + g]` is their number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The number of requests that fit, in the given order.
    pub num_fit: usize,
    /// The new blocks, as a flat list; null blocks stand where a state group skips positions.
    pub blocks: Vec<BlockId>,
    /// The number of blocks per request and group.
    pub counts: Vec<u32>,
    /// Why the first request that did not fit got nothing; `None` if all fit.
    pub reason: Option<NoFit>,
}

/// A copy to be made before a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub source: BlockId,
    /// The block to write.
    pub destination: BlockId,
}

impl BlockCopy {
    pub(super) fn ends(self) -> [BlockId; 2] {
        [self.source, self.destination]
    }
}

/// A state that other requests can resume from, and that a connector may store. The table does not
/// tell which block has the state, because states move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptState {
    /// The request whose tokens it covers.
    pub request: u64,
    /// The state's group.
    pub group: u16,
    /// The block that has the state, or will have it once the copies of the step are made.
    pub block: BlockId,
    /// The number of tokens that the state covers.
    pub num_tokens: u32,
}

/// The work that a step requires of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// The blocks to copy, in this order.
    pub copies: Vec<BlockCopy>,
    /// The new blocks of the groups that need zeroing.
    pub blocks_to_zero: Vec<BlockId>,
    /// The states that became findable in this step, except those of requests that have ended.
    pub kept_states: Vec<KeptState>,
}

/// How far a request has come, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The number of computed tokens.
    pub num_computed_tokens: u32,
    /// The number of tokens of the prompt.
    pub num_prompt_tokens: u32,
    /// The number of all tokens.
    pub num_tokens: u32,
    /// The boundary where other requests are known to branch off; 0 if there is none.
    pub junction: u32,
}

/// How far a request's table in one group has been processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableProgress {
    /// The number of leading blocks that need no registering; `None` until the first blocks were
    /// registered or adopted.
    pub num_registered: Option<u32>,
    /// The position of the state that the step before wrote.
    pub last_state: Option<u32>,
}

/// What the cache knows about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// The number of references to the block.
    pub num_references: u32,
    /// The group and hash of the block's first key, the number of tokens that it covers, and who
    /// registered it.
    pub key: Option<(u16, Digest, u32, Author)>,
}
