//! What a rank counts for people to read.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// How many listed hashes each means has placed, since the rank began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The store carried the tokens.
    pub tokens: u64,
    /// The hash was known, or became known later.
    pub join: u64,
    /// A request's own engine chain contained the hash.
    pub query: u64,
}

/// What is counted of one rank since it began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct RankCounts {
    /// How many published batches were applied.
    pub messages: u64,
    /// How many hashes each means has placed.
    pub placed: Placed,
    /// The refusals and notes, by reason.
    pub refused: BTreeMap<Cow<'static, str>, u64>,
    /// The refusals that the feed counted, under the feed's own names.
    pub refused_outside: BTreeMap<String, u64>,
}

impl RankCounts {
    /// Counts a refusal.
    pub(in crate::fleet) fn refuse(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            *self.refused.entry(Cow::Borrowed(reason)).or_insert(0) += count;
        }
    }
}
