//! One rank in a snapshot: everything that its answers depend on, now and after further events.
//!
//! Left out is what follows from the rest or from the pod's registration, and what a restart ends
//! anyway: promises, and when a request last matched a block, so restored blocks count as never matched.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::Rank;
use super::counts::RankCounts;
use super::pool::PoolKnowledge;
use super::rank_state::RankState;
use super::unidentified::Unidentified;
use crate::fleet::effort::{Effort, MOST_EFFORT_KEPT};
use crate::fleet::limbo::{Limbo, restored, shorten_paths};
use crate::fleet::pod::adapters::Adapters;
use crate::fleet::pod::catalog::Catalog;
use crate::fleet::pod::engine_chain::SavedChain;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::Nodes;
use crate::fleet::presence::planes::Column;
use crate::fleet::presence::slots::{PlacesRead, SavedSlots, SlotBefore, SlotId, Slots};
use crate::fleet::silent::{PageBefore, SavedSilent, Silent};
use crate::fleet::snapshot::bytes::Reader;
use crate::secret::Secret;

/// What a snapshot has of one rank besides the records of its table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::fleet) struct SavedRank {
    pub(in crate::fleet) dp_rank: u32,
    slots: SavedSlots,
    limbo: Limbo,
    effort: Effort,
    catalog: Catalog,
    silent: Option<SavedSilent>,
    chain: SavedChain,
    adapters: Adapters,
    feeds: SmallVec<[u32; 1]>,
    feeds_with_history: SmallVec<[u32; 1]>,
    state: RankState,
    pool: PoolKnowledge,
    saw_media: bool,
    unidentified: Unidentified,
    is_format_confirmed: bool,
    counts: RankCounts,
}

/// The records of a pod's ranks, one rank after the other: of each its hashes, then its pages.
#[derive(Debug, Default)]
pub(in crate::fleet) struct Records {
    bytes: Vec<u8>,
    rank: RankRecords,
}

/// How far the records of one rank are written.
#[derive(Debug, Default)]
struct RankRecords {
    /// Where they begin.
    start: usize,
    /// How many there are.
    written: usize,
    /// How many hashes were undecided at the first of them.
    num_undecided: usize,
    slot: SlotBefore,
    page: PageBefore,
}

impl Records {
    /// Writes so many more records of a rank. Returns whether these were its last.
    fn write(&mut self, rank: &Rank, nodes: &Nodes, mut most: usize) -> bool {
        let num_undecided = rank.limbo.num_hashes();
        let is_first = self.rank.written == 0;
        if is_first || self.rank.num_undecided != num_undecided {
            // A question that was asked in between has placed some of them. In one piece, no other can.
            most = if is_first { most } else { usize::MAX };
            self.bytes.truncate(self.rank.start);
            self.rank = RankRecords {
                start: self.bytes.len(),
                num_undecided,
                ..RankRecords::default()
            };
        }
        let num_slots = rank.slots.num_records();
        let num_pages = rank.silent.as_ref().map_or(0, |silent| silent.num_pages());
        let end = (num_slots + num_pages).min(self.rank.written.saturating_add(most));
        for at in self.rank.written..end {
            self.write_one(rank, nodes, at, num_slots);
        }
        self.rank.written = end;
        end == num_slots + num_pages
    }

    fn write_one(&mut self, rank: &Rank, nodes: &Nodes, at: usize, num_slots: usize) {
        let (out, before) = (&mut self.bytes, &mut self.rank);
        let id = |at: usize| u32::try_from(at).expect("fewer than 2^32 records");
        match (at.checked_sub(num_slots), &rank.silent) {
            (Some(page), Some(silent)) => {
                silent.save_page(id(page), &rank.slots, nodes, &mut before.page, out);
            }
            _ => (rank.slots).save_slot(SlotId(id(at)), nodes, &mut before.slot, out),
        }
    }

    /// All of them.
    pub(in crate::fleet) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A rank that was read and has no column yet.
#[derive(Debug)]
pub(in crate::fleet) struct DetachedRank {
    rank: Rank,
    places: PlacesRead,
}

impl SavedRank {
    /// Writes about so many records of a rank's table. Returns what else there is when it has them all.
    pub(in crate::fleet) fn of(
        rank: &mut Rank,
        shared: &mut SharedPresence<'_>,
        records: &mut Records,
        most: usize,
    ) -> Option<Self> {
        // The next batch would begin with this.
        let forgotten = rank.forget_doomed(most, shared);
        (forgotten < most).then_some(())?;
        records.write(rank, shared.nodes, most).then_some(())?;
        shorten_paths(&rank.limbo);
        let silent = (rank.silent.as_ref()).map(|silent| silent.saved(&mut records.bytes));
        records.rank = RankRecords {
            start: records.bytes.len(),
            ..RankRecords::default()
        };
        let Rank {
            dp_rank,
            column: _,
            slots,
            limbo,
            doomed: _,
            effort,
            limbo_limit: _,
            catalog,
            silent: _,
            chain,
            loras: _,
            adapters,
            feeds,
            feeds_with_history,
            state,
            pool,
            counts_copies: _,
            saw_media,
            unidentified,
            is_format_confirmed,
            counts,
        } = rank;
        Some(Self {
            dp_rank: *dp_rank,
            slots: slots.saved(),
            limbo: limbo.clone(),
            effort: effort.clone(),
            catalog: catalog.clone(),
            silent,
            chain: chain.saved(),
            adapters: adapters.clone(),
            feeds: feeds.clone(),
            feeds_with_history: feeds_with_history.clone(),
            state: state.clone(),
            pool: *pool,
            saw_media: *saw_media,
            unidentified: *unidentified,
            is_format_confirmed: *is_format_confirmed,
            counts: counts.clone(),
        })
    }

    /// The rank, given one of which nothing is known; `None` if that cannot be.
    pub(in crate::fleet) fn restored(
        self,
        fresh: Rank,
        secret: &Secret,
        reader: &mut Reader<'_>,
    ) -> Option<DetachedRank> {
        let (mut slots, places) = Slots::restored(self.slots, secret.spread(), reader)?;
        let (field, narrows) = (secret.field(), fresh.limbo.narrows);
        let catalog = fresh.catalog.restored(self.catalog)?;
        let silent = match self.silent {
            None => None,
            Some(saved) => {
                let topology = catalog.topology()?;
                let silent = Silent::new(topology, catalog.config.silent)?;
                Some(Box::new(silent.restored(saved, &slots, &places, reader)?))
            }
        };
        let limbo = restored(self.limbo, field, narrows, &mut slots)?;
        let rank = Rank {
            dp_rank: self.dp_rank,
            column: fresh.column,
            slots,
            limbo,
            doomed: Vec::new(),
            effort: self.effort.at_most(MOST_EFFORT_KEPT)?,
            limbo_limit: fresh.limbo_limit,
            catalog,
            silent,
            chain: fresh.chain.restored(self.chain)?,
            loras: fresh.loras,
            adapters: self.adapters,
            feeds: self.feeds,
            feeds_with_history: self.feeds_with_history,
            state: self.state,
            pool: self.pool,
            counts_copies: fresh.counts_copies,
            saw_media: self.saw_media,
            unidentified: self.unidentified,
            is_format_confirmed: self.is_format_confirmed,
            counts: self.counts,
        };
        rank.shows_marks(&Nodes::new(secret))
            .then_some(DetachedRank { rank, places })
    }
}

impl DetachedRank {
    /// Gives the rank a column, and its table boundaries and bits, in a model.
    pub(in crate::fleet) fn attach(self, column: Column, shared: &mut SharedPresence<'_>) -> Rank {
        let Self { rank, places } = self;
        let mut rank = Rank { column, ..rank };
        places.attach(&mut rank.slots, column, shared);
        rank
    }
}
