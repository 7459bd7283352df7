//! What is known of the content of a block pool. `unknown` says how it is counted.

/// What is known of the content of one rank's pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pool {
    /// The most entries that may be held and are not counted.
    pub(super) unknown: u64,
    /// Whether history was lost since the feed last knew all of it, or the last clear.
    pub(super) is_lost: bool,
    /// Whether some stores were not counted although they were told, and may be of any kind.
    pub(super) is_uncounted: bool,
}
