//! How completely the history of a rank is known.

use crate::names::names;

/// How completely the history of a rank is known. In every state except `Exact`, an answer is a
/// bound.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The history is complete since sequence number 0, a clear or a restart.
    #[default]
    Exact,
    /// A replay is under way.
    Rebuilding,
    /// Some history is missing, or the configuration was contradicted.
    Degraded,
    /// There is no connection to the pod.
    Stale,
}

names! { State:
    Exact = "exact",
    Rebuilding = "rebuilding",
    Degraded = "degraded",
    Stale = "stale",
}

impl State {
    /// How little can be said in a state. The worst state of several feeds is the state of their
    /// rank.
    pub(super) fn severity(self) -> u8 {
        match self {
            Self::Exact => 0,
            Self::Degraded => 1,
            Self::Rebuilding => 2,
            Self::Stale => 3,
        }
    }
}
