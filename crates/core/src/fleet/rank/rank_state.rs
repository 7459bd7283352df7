//! How far what is known of a rank can be relied on, and why not further.

use std::borrow::Cow;

use crate::fleet::pod::catalog::{Catalog, Contradiction};
use crate::fleet::state::State;
use crate::fleet::tier::{Tier, TierSet};
use crate::wire::Untold;
use serde::{Deserialize, Serialize};

/// Why a rank is not exact while one of its batches is being applied.
const MIDWAY: &str = "a long batch is being taken in";

/// What feeds, refused events and contradictions say about the state of a rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::fleet) struct RankState {
    /// The state that the feeds report.
    pub feed_state: State,
    /// The reason for that state, in words.
    pub feed_reason: String,
    /// The first contradiction with the configuration since the last restart.
    pub contradicted: Option<Cow<'static, str>>,
    /// What the rank's state says about events that were refused since the last clear: their copies
    /// may be there, or may be gone.
    pub missed: Option<Cow<'static, str>>,
    /// Whether one of them may have told that copies are gone.
    pub missed_removal: bool,
    /// The tiers of which something was lost, or forgotten to free memory: no copy there can be
    /// excluded. A clear makes the GPU tier, and no other, completely known again.
    pub forgot: TierSet,
    /// Whether a batch is only partly applied. The engine may never have held exactly what is shown
    /// now.
    pub is_midway: bool,
}

impl RankState {
    /// The state that users see. A contradiction or a refused event degrades an exact rank, and a
    /// rank with half a batch applied counts as rebuilding. A rank with lost history is exact again
    /// once nothing unknown is left in its pool.
    pub(super) fn state(&self, catalog: &Catalog, knows_pool: bool) -> State {
        let feed_state = if knows_pool {
            State::Exact
        } else {
            self.feed_state
        };
        match feed_state {
            State::Exact if self.contradiction(catalog).is_some() || self.missed.is_some() => {
                State::Degraded
            }
            State::Exact if self.is_midway => State::Rebuilding,
            known @ (State::Exact | State::Rebuilding | State::Degraded | State::Stale) => known,
        }
    }

    /// Why the state is not exact, in words; empty if it is exact.
    pub(super) fn reason(&self, catalog: &Catalog, knows_pool: bool) -> String {
        let feed =
            Some(self.feed_reason.as_str()).filter(|reason| !reason.is_empty() && !knows_pool);
        let midway = self.is_midway.then_some(MIDWAY);
        let own = self
            .contradiction(catalog)
            .into_iter()
            .chain(self.missed.as_deref());
        let reasons = feed.into_iter().chain(own).chain(midway);
        reasons.collect::<Vec<_>>().join("; ")
    }

    /// Whether what the rank is known to hold is certainly there, and everything that its engine
    /// asks for is known. During a replay, or without a connection, removals may be missing. A
    /// history with a hole may have hidden a whole group, unless the groups are configured. A
    /// contradiction of the configuration or of a place means that the rule is applied to the wrong
    /// facts. And in the middle of a batch, some of what is shown may still be removed, as it may
    /// have been by an event that was refused.
    pub(super) fn can_promise(&self, catalog: &Catalog) -> bool {
        self.contradiction(catalog).is_none()
            && !self.missed_removal
            && !self.is_midway
            && match self.feed_state {
                State::Exact => true,
                State::Degraded => catalog.is_configured(),
                State::Rebuilding | State::Stale => false,
            }
    }

    /// Takes note of a refused event, until the next clear.
    pub(super) fn miss(&mut self, untold: Untold) {
        self.missed
            .get_or_insert(Cow::Borrowed("an event was refused"));
        self.missed_removal |= untold != Untold::Stored;
        if untold != Untold::Removed {
            self.forgot = Tier::ALL.into_iter().collect();
        }
    }

    /// Forgets the refused events, because everything that they may have been about is over.
    pub(super) fn forget_missed(&mut self) {
        self.missed = None;
        self.missed_removal = false;
    }

    /// What contradicts the configuration or a place, if anything does.
    pub(super) fn contradiction(&self, catalog: &Catalog) -> Option<&str> {
        let of_sizes = catalog.sizes.are_contradicted();
        (self.contradicted.as_deref())
            .or_else(|| of_sizes.then_some(Contradiction::BlockSize.reason()))
    }
}
