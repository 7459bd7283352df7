//! Every error that the core can return. The binding maps each variant to one Python class.

use crate::ids::BlockId;

/// What went wrong, with the offending value, the state, and the remedy where one exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value outside what the operation accepts.
    #[error("{0}")]
    InvalidValue(String),
    /// A pod, model or group that was never registered.
    #[error("{0}")]
    Unknown(String),
    /// Bytes that are no snapshot of the pod that they were given for.
    #[error("{text}")]
    Snapshot {
        /// Why they are not.
        reason: crate::fleet::Unfit,
        /// The same in words, with the remedy.
        text: String,
    },
    /// A request that the cache does not have.
    #[error("request {0} is not known; it was released, or never added")]
    UnknownRequest(u64),
    /// The same request more than once in one call.
    #[error("request {0} is given twice in one call; give each request once")]
    GivenTwice(u64),
    /// A block beyond the pool's last one.
    #[error("block {block} does not exist; the pool has {num_blocks}")]
    UnknownBlock {
        /// The block that was given.
        block: BlockId,
        /// How many blocks there are, the null block included.
        num_blocks: usize,
    },
    /// A hit that could be resumed when it was found, and no longer can.
    #[error(
        "request {request}: group {group} does not hold block {position} of the hit of {num_tokens} \
         tokens; match again"
    )]
    NotHeld {
        /// The request that was to adopt the hit.
        request: u64,
        /// The first group that lacks a block.
        group: u16,
        /// The position of the first block that it lacks.
        position: u32,
        /// The length of the hit.
        num_tokens: u32,
    },
    /// A request that cannot go back in place: what a token at the boundary reads is gone.
    #[error(
        "request {request}: group {group} no longer holds what is read after going back to \
         {num_tokens} tokens ({what}); preempt the request, then match again"
    )]
    NoWayBack {
        /// The request.
        request: u64,
        /// The first group that is in the way.
        group: u16,
        /// The boundary that was asked for.
        num_tokens: u32,
        /// What is gone.
        what: String,
    },
}

/// The result of every fallible function of the core.
pub type Result<T> = std::result::Result<T, Error>;
