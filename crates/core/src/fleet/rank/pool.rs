//! What is known of the content of a block pool. `unknown` says how it is counted.

use serde::{Deserialize, Serialize};

/// What is known of the content of one rank's pool.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct PoolKnowledge {
    /// The most entries that may be held and are not counted.
    pub(in crate::fleet) unknown: u64,
    /// Whether history was lost since the feed last knew all of it, or the last clear.
    pub(in crate::fleet) is_lost: bool,
    /// Whether some stores were not counted although they were told, and may be of any kind.
    pub(in crate::fleet) is_uncounted: bool,
}
