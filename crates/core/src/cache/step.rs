//! What goes into a step and what comes out: plain values, which hold no rule.

use crate::blocks::{BlockId, Extra};
use crate::hash::Digest;

/// A request as it is added.
#[derive(Debug, Clone, Default)]
pub struct NewRequest {
    /// Its tokens so far.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub num_prompt_tokens: u32,
    /// What separates its cache.
    pub extra: Extra,
    /// Hashes that the engine computed; `None`: they are computed here.
    pub hashes: Option<Vec<Digest>>,
}

/// How much a request can reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Match {
    /// The longest prefix after which every group can resume, in tokens.
    pub num_tokens: u32,
    /// Where the groups that are asked first could resume, if that is further; else 0.
    pub junction: u32,
}

/// What one request asks of one step; all counts are tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// The request.
    pub request: u64,
    /// The step computes so many.
    pub num_new_tokens: u32,
    /// A request that starts now reuses so many.
    pub num_hit_tokens: u32,
    /// Where others branch off: remembered with the request, which keeps a state there.
    pub junction: Option<u32>,
    /// So many after the hit were computed elsewhere.
    pub num_external_tokens: u32,
    /// Draft tokens that need slots too.
    pub num_lookahead_tokens: u32,
    /// Tokens that are scheduled but not processed yet: what they read stays.
    pub num_in_flight_tokens: u32,
    /// Tokens of the encoder, for cross attention.
    pub num_encoder_tokens: u32,
    /// So many were computed before this step, the hit excluded; `None`: as many as are tracked.
    pub num_computed_tokens: Option<u32>,
    /// Nothing is registered yet, because a load is under way.
    pub delay_commit: bool,
    /// Allocate only if all of the request would fit.
    pub full_sequence_must_fit: bool,
    /// The watermark applies.
    pub is_waiting: bool,
}

/// Blocks that a step handed out: those of request `i` and group `g` come after those of request
/// `i` and group `g - 1`; `counts[i * num_groups + g]` says how many they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Requests that fit, in the order asked.
    pub num_fit: usize,
    /// New blocks, flat; null blocks where a state group skips positions.
    pub blocks: Vec<BlockId>,
    /// How many per request and group.
    pub counts: Vec<u32>,
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

/// A state that others can resume from, which a connector may store. Which block it is in cannot be
/// told from the table, because states move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptState {
    /// The request whose tokens it covers.
    pub request: u64,
    /// Its group.
    pub group: u16,
    /// Where it is, or will be once the copies of the step are made.
    pub block: BlockId,
    /// How many tokens it covers.
    pub num_tokens: u32,
}

/// The work of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Blocks to copy, in this order.
    pub copies: Vec<BlockCopy>,
    /// New blocks of groups that need zeroing.
    pub blocks_to_zero: Vec<BlockId>,
    /// States that became findable in this step; those of requests that ended are not among them.
    pub kept_states: Vec<KeptState>,
}

/// Where a request stands; tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// How many are computed.
    pub num_computed_tokens: u32,
    /// How many are the prompt.
    pub num_prompt_tokens: u32,
    /// How many there are.
    pub num_tokens: u32,
    /// Where others are known to branch off; 0 = nowhere.
    pub junction: u32,
}

/// How far a request's table in one group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Leading blocks that need no registering; `None` until the first ones do not.
    pub num_registered: Option<u32>,
    /// Position of the state that the step before wrote.
    pub last_state: Option<u32>,
}

/// What is known of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// How many hold it.
    pub num_references: u32,
    /// The group and hash that it is found by first, and how many tokens that covers.
    pub key: Option<(u16, Digest, u32)>,
}

/// The lengths of one allocation, in tokens.
///
/// ```text
/// 0                     local              total             main            slots
/// |-- computed, or hit -->|-- loaded -------->|-- this step --->|-- drafts ---->|
/// ```
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    /// Computed here before, or reused now.
    pub local: u32,
    /// `local`, and what was computed elsewhere.
    pub total: u32,
    /// `total`, and what this step computes.
    pub main: u32,
    /// All that needs slots.
    pub slots: u32,
}
