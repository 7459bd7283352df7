//! What a rank counts for people to read.

/// How many listed hashes each means has placed, since the rank began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Placed {
    /// The store carried the tokens.
    pub tokens: u64,
    /// The hash was known, or became known later.
    pub join: u64,
    /// A request's own engine chain contained the hash.
    pub query: u64,
}
