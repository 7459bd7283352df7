//! Why something was not read: a closed table of reasons with stable names.

use crate::names::names;

/// Why an event, a batch or a detail of it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The bytes end, or are no MessagePack, inside the batch: the rest of it is lost.
    MalformedBatch,
    /// The payload, or a list or text of an event, exceeds its limit.
    TooLarge,
    /// An event with a tag that this version does not know.
    UnknownEvent,
    /// A required field is missing or repeated, or a field has the wrong type or range.
    MalformedEvent,
    /// A block hash or parent that is neither a 64-bit integer nor a non-empty byte string.
    BadHash,
    /// A token id that is neither an integer from 0 to 18446744073709551615 nor a text, or a token list
    /// that mixes ids and pairs.
    BadTokens,
    /// Extra keys that are not one list per listed block, or hold an unknown kind of key.
    BadExtraKeys,
    /// Lookahead tokens that are not one list per listed block.
    BadLookahead,
    /// A group index below zero.
    NegativeGroup,
    /// A group index that no engine has: what is held in that group is not known.
    LargeGroup,
    /// A text that is not UTF-8.
    BadText,
    /// A spec kind that this version does not know; the event is delivered with kind `unknown`.
    UnknownKind,
    /// The name of a component that this version does not know.
    UnknownComponent,
    /// A timestamp that is no number; the batch is delivered without one.
    BadTimestamp,
    /// A data-parallel rank that is no integer from 0 to 4095; the batch is delivered without one.
    BadRank,
    /// Bytes after the end of the batch; the batch is delivered.
    TrailingBytes,
}

names! { RefusalReason:
    MalformedBatch = "malformed_batch",
    TooLarge = "too_large",
    UnknownEvent = "unknown_event",
    MalformedEvent = "malformed_event",
    BadHash = "bad_hash",
    BadTokens = "bad_tokens",
    BadExtraKeys = "bad_extra_keys",
    BadLookahead = "bad_lookahead",
    NegativeGroup = "negative_group",
    LargeGroup = "large_group",
    BadText = "bad_text",
    UnknownKind = "unknown_kind",
    UnknownComponent = "unknown_component",
    BadTimestamp = "bad_timestamp",
    BadRank = "bad_rank",
    TrailingBytes = "trailing_bytes",
}

impl RefusalReason {
    /// Whether only a detail was set aside: what it belongs to is delivered all the same.
    #[must_use]
    pub fn is_note(self) -> bool {
        matches!(
            self,
            Self::UnknownKind | Self::BadTimestamp | Self::BadRank | Self::TrailingBytes
        )
    }
}

/// One thing that was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRefusal {
    /// Why.
    pub reason: RefusalReason,
    /// Position in the batch's list of events as published; `None` outside the events.
    pub event_index: Option<u32>,
}
