//! One data-parallel rank of one pod: its table of hashes, its groups, its state, its counters.
//!
//! In reading order:
//! - `saved`: all of it in a snapshot;
//! - `rank_state`: how far what is known can be relied on;
//! - `copies`: copies are added and removed, and their bits follow;
//! - `loss`: what a rank loses at once;
//! - `oldest`: which blocks are forgotten first;
//! - `unidentified`: blocks under names that no request has;
//! - `pool`: what is known of the content of the engine's pool;
//! - `unknown`: how many unknown blocks that pool may hold;
//! - `undecided`: what batches may spend on undecided hashes;
//! - `counts`: what is counted for people to read.

pub(in crate::fleet) mod copies;
pub(in crate::fleet) mod counts;
pub(in crate::fleet) mod loss;
pub(in crate::fleet) mod oldest;
pub(in crate::fleet) mod pool;
pub(in crate::fleet) mod rank_state;
pub(in crate::fleet) mod saved;
pub(in crate::fleet) mod undecided;
pub(in crate::fleet) mod unidentified;
pub(in crate::fleet) mod unknown;

use std::borrow::Cow;
use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::fleet::effort::{Effort, MOST_EFFORT_KEPT};
use crate::fleet::keys::prompt::Prompt;
use crate::fleet::keys::step::KeyStep;
use crate::fleet::limbo::{Limbo, LimboContext, PlacedBy};
use crate::fleet::pod::adapters::{Adapters, Load};
use crate::fleet::pod::catalog::{Catalog, UNGROUPED};
use crate::fleet::pod::engine_chain::EngineChain;
use crate::fleet::pod::view::View;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::Nodes;
use crate::fleet::presence::planes::{Column, Planes};
use crate::fleet::presence::slots::{ChannelId, ChannelKey, SlotId, Slots, Whereabouts};
use crate::fleet::silent::Silent;
use crate::fleet::state::State;
use crate::fleet::tier::TierSet;
use crate::prefix::PrefixKey;
use crate::secret::Secret;
use crate::wire::Untold;
use counts::RankCounts;
use pool::PoolKnowledge;
use rank_state::RankState;
use unidentified::Unidentified;

/// One data-parallel rank of one pod, and everything known about it.
#[derive(Debug)]
pub(in crate::fleet) struct Rank {
    /// The rank's number.
    #[expect(
        clippy::struct_field_names,
        reason = "the name that it has on the wire"
    )]
    pub dp_rank: u32,
    /// The rank's word and bit in the planes.
    pub column: Column,
    /// The hashes that the rank has named, and its copies.
    pub slots: Slots,
    /// The hashes whose place is not known yet.
    pub limbo: Limbo,
    /// The slots of undecided hashes that were forgotten. They stand nowhere, and are removed in
    /// portions.
    pub doomed: Vec<SlotId>,
    /// The effort that batches may still spend on limbo, beyond the work that their own size
    /// bounds.
    pub effort: Effort,
    /// The bytes that limbo may take.
    pub limbo_limit: usize,
    /// The rank's groups, configured or learned.
    pub catalog: Catalog,
    /// What is inferred of groups that no event tells of; most ranks have none.
    pub silent: Option<Box<Silent>>,
    /// The hash function of the rank's engine, as far as it is known.
    pub chain: EngineChain,
    /// The paths of LoRA adapters, by name. A path is part of the engine's hash.
    pub loras: BTreeMap<String, String>,
    /// The adapters of which a second load has shown.
    pub adapters: Adapters,
    /// The feeds that have sent payloads of this rank. What is true of these feeds is true of the
    /// rank.
    pub feeds: SmallVec<[u32; 1]>,
    /// The feeds whose history is part of what is known here: those that have published since they
    /// last began anew.
    pub feeds_with_history: SmallVec<[u32; 1]>,
    /// How far what is known can be relied on.
    pub state: RankState,
    /// What may be held on the GPU of which nothing is known.
    pub pool: PoolKnowledge,
    /// Whether presence is a count. Otherwise it is a flag, a shortcut that `replay --model set`
    /// shows.
    pub counts_copies: bool,
    /// Whether some store carried multimodal keys or embeddings. If so, the tokens of a sparse
    /// store do not determine its prefix, because the wire has no keys of blocks that are not
    /// listed.
    pub saw_media: bool,
    /// What the rank holds under names that no request has.
    pub unidentified: Unidentified,
    /// Whether a root store's hash was what the `dynamo` format makes of its tokens.
    pub is_format_confirmed: bool,
    /// What is counted for people to read.
    pub counts: RankCounts,
}

impl Rank {
    /// A rank about which nothing is known yet. Its history is complete until the feed says
    /// otherwise.
    #[must_use]
    pub(in crate::fleet) fn new(
        dp_rank: u32,
        column: Column,
        catalog: Catalog,
        chain: EngineChain,
        counts_copies: bool,
        secret: &Secret,
    ) -> Self {
        Self {
            dp_rank,
            column,
            slots: Slots::new(secret.spread()),
            limbo: Limbo::new(secret.field()),
            doomed: Vec::new(),
            effort: Effort::of(MOST_EFFORT_KEPT),
            limbo_limit: usize::MAX,
            silent: catalog.silent().map(Box::new),
            catalog,
            chain,
            loras: BTreeMap::new(),
            adapters: Adapters::default(),
            feeds: SmallVec::new(),
            feeds_with_history: SmallVec::new(),
            state: RankState::default(),
            pool: PoolKnowledge::default(),
            counts_copies,
            saw_media: false,
            unidentified: Unidentified::default(),
            is_format_confirmed: false,
            counts: RankCounts::default(),
        }
    }

    /// The state that users see.
    #[must_use]
    pub(in crate::fleet) fn state(&self) -> State {
        self.state.state(&self.catalog, self.knows_pool())
    }

    /// Why the state is not exact, in words; empty if it is exact.
    #[must_use]
    pub(in crate::fleet) fn reason(&self) -> String {
        self.state.reason(&self.catalog, self.knows_pool())
    }

    /// Why the rank's answers are bounds: the reason for its state, or else what is not known of its
    /// groups. Empty where the reason is in what a request asks for.
    pub(in crate::fleet) fn reason_of_bound(&self) -> String {
        let reason = self.reason();
        if reason.is_empty() {
            let of_view = |view| self.catalog.reason_of_bound(&view).to_owned();
            return self.view().map_or_else(String::new, of_view);
        }
        reason
    }

    /// What the rule is evaluated with for the rank; `None` while no group is known.
    #[must_use]
    pub(in crate::fleet) fn view(&self) -> Option<View> {
        let placeholders = self.slots.channels.groups_of_placeholders();
        self.catalog.view(&placeholders)
    }

    /// The boundaries at which the rank's hashes may stand; `None` while no group is known.
    #[must_use]
    pub(in crate::fleet) fn finest_step(&self) -> Option<KeyStep> {
        self.view().map(|view| self.catalog.finest_step(&view))
    }

    /// Whether what the rank is known to hold is certainly there (`RankState::can_promise`).
    #[must_use]
    pub(in crate::fleet) fn can_promise(&self) -> bool {
        self.state.can_promise(&self.catalog)
    }

    /// Whether the rank may hold anything of a prompt on these tiers, whatever its events have told.
    #[must_use]
    pub(in crate::fleet) fn may_hold_anything_of(
        &self,
        prompt: &Prompt<'_>,
        tiers: TierSet,
    ) -> bool {
        self.state.contradiction(&self.catalog).is_some()
            || self.state.is_midway
            || !self.is_bounded_on(tiers)
            || self.unidentified.may_be_of(prompt)
    }

    /// Takes note of a refused event: until the next clear, copies may be gone, or may be there,
    /// of which nothing is known.
    pub(in crate::fleet) fn miss(&mut self, untold: Untold) {
        self.state.miss(untold);
        if untold != Untold::Removed {
            self.know_nothing_else();
        }
    }

    /// Counts a contradiction, which degrades the rank.
    pub(in crate::fleet) fn contradict(&mut self, reason: &'static str) {
        self.counts.refuse(reason, 1);
        self.state.contradicted.get_or_insert(Cow::Borrowed(reason));
    }

    /// Lends limbo everything that it needs.
    pub(in crate::fleet) fn limbo_context<'a>(
        slots: &'a mut Slots,
        shared: &'a mut SharedPresence<'_>,
        bit: u64,
        placed_by: PlacedBy,
        effort: &'a Effort,
    ) -> LimboContext<'a> {
        LimboContext {
            nodes: shared.nodes,
            planes: shared.planes,
            slots,
            bit,
            placed_by,
            effort,
        }
    }

    /// Draws the consequences of what events told limbo.
    pub(in crate::fleet) fn solve(&mut self, shared: &mut SharedPresence<'_>) {
        let bit = self.column.bit;
        let Self {
            slots,
            limbo,
            effort,
            ..
        } = self;
        limbo.solve(&mut Self::limbo_context(
            slots,
            shared,
            bit,
            PlacedBy::Join,
            effort,
        ));
        self.settle_accounts();
    }

    /// Draws the consequences of what a request told limbo, within what the request may spend.
    pub(in crate::fleet) fn solve_for_query(
        &mut self,
        shared: &mut SharedPresence<'_>,
        effort: &Effort,
    ) {
        let bit = self.column.bit;
        let mut context =
            Self::limbo_context(&mut self.slots, shared, bit, PlacedBy::Query, effort);
        self.limbo.solve(&mut context);
        self.settle_accounts();
    }

    /// Moves the counters of limbo and of shared boundaries into the rank's counters.
    pub(in crate::fleet) fn settle_accounts(&mut self) {
        self.counts.placed.join += std::mem::take(&mut self.limbo.placed_by_join);
        self.counts.placed.query += std::mem::take(&mut self.limbo.placed_by_query);
        if std::mem::take(&mut self.limbo.contradictions) > 0 {
            self.contradict("contradicts_earlier_place");
        }
        let [two_hashes, stored_twice] = self.slots.sharing.take_found();
        self.counts.refuse("two_hashes_at_one_boundary", two_hashes);
        self.counts.refuse("stored_twice", stored_twice);
    }

    /// Whether the newest load of an adapter certainly holds a boundary on one of these tiers.
    #[must_use]
    pub(in crate::fleet) fn holds_of(
        &self,
        load: &Load,
        key: PrefixKey,
        tiers: TierSet,
        nodes: &Nodes,
    ) -> bool {
        let slot = load
            .hash_at(key)
            .and_then(|hash| self.slots.find(hash, nodes));
        slot.is_some_and(|slot| {
            let mut channels = self.slots.held_channels(slot);
            channels.any(|channel| {
                let key = self.slots.channels.get(channel).key;
                !key.doubted && tiers.contains(key.tier)
            })
        })
    }

    /// The channel for the copies of a store, made if it is new. `None` if the rank already has as
    /// many channels as it may have; these copies then count as neither present nor absent.
    pub(in crate::fleet) fn channel_of_store(
        &mut self,
        key: ChannelKey,
        planes: &mut Planes,
    ) -> Option<ChannelId> {
        if self.slots.channels.is_full() && self.slots.channels.find(key).is_none() {
            self.counts.refuse("too_many_channels", 1);
            self.state.forgot.insert(key.tier);
            self.leave_uncounted(key.tier);
            return None;
        }
        Some(self.channel(key, planes))
    }

    /// The channel of a key, made if it is new.
    pub(in crate::fleet) fn channel(&mut self, key: ChannelKey, planes: &mut Planes) -> ChannelId {
        if let Some(channel) = self.slots.channels.find(key) {
            return channel;
        }
        (self.slots.channels).add(key, planes, self.column.word)
    }

    /// Forgets where a hash without copies stands, if it stands anywhere.
    pub(in crate::fleet) fn forget_name(&mut self, slot: SlotId, shared: &mut SharedPresence<'_>) {
        if let Whereabouts::Placed(node) = self.slots.whereabouts(slot) {
            shared.nodes.release(node);
            self.slots.forget(slot);
        }
    }

    /// Forgets slots that stand nowhere, and names without a copy beyond the allowance: at most
    /// this many in all. Returns how many; fewer mean that none is left.
    pub(in crate::fleet) fn trim(&mut self, shared: &mut SharedPresence<'_>, most: usize) -> usize {
        let doomed = self.forget_doomed(most, shared);
        for forgotten in doomed..most {
            let Some(slot) = self.slots.next_to_forget() else {
                self.limbo.sweep_if_grown(&mut self.slots);
                return forgotten;
            };
            self.forget_name(slot, shared);
        }
        most
    }

    /// The index of a group on the wire.
    #[must_use]
    pub(in crate::fleet) fn group_name(group: u16) -> Option<u16> {
        (group != UNGROUPED).then_some(group)
    }

    /// Bytes held, by capacity and estimate.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        let doomed = self.doomed.capacity() * size_of::<SlotId>();
        let silent = self.silent.as_ref().map_or(0, |silent| silent.bytes());
        size_of::<Self>()
            + self.slots.bytes()
            + self.limbo.bytes()
            + self.adapters.bytes()
            + doomed
            + silent
    }

    /// Panics unless slots, bits, nodes and limbo agree.
    pub(in crate::fleet) fn check_integrity(&self, nodes: &Nodes, planes: &Planes) {
        self.slots.check_integrity(nodes);
        self.limbo.check_integrity(&self.slots);
        self.check_silent(nodes);
        for slot in self.slots.iter() {
            let Whereabouts::Placed(node) = self.slots.whereabouts(slot) else {
                continue;
            };
            assert!(
                nodes.refs(node) > 0,
                "slot {slot:?} points to a node that is gone"
            );
            for channel in self.slots.held_channels(slot) {
                let plane = self.slots.channels.get(channel).plane;
                let shown = planes.word(plane, node) & self.column.bit != 0;
                assert!(
                    shown,
                    "slot {slot:?} channel {channel:?} is held but not shown"
                );
            }
        }
    }
}
