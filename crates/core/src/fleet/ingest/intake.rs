//! A batch on its way into the index. It is decoded before the index is locked, then applied slice
//! by slice, so other users of the index get a turn in between.
//!
//! Invariant: between two slices everything is settled, and the rank of the batch promises nothing. Half
//! a batch is a state that its engine may never have been in, so the rank's answers are bounds
//! until the last slice. Every other rank answers as usual. Only questions may be asked in between:
//! a caller that wants to change the index waits until the batch is applied, because slots that the
//! batch has found could go.

use std::ops::Range;

use super::naming::NamedChain;
use crate::fleet::presence::slots::{ChannelId, ChannelKey, SlotId};
use crate::prefix::PrefixKey;
use crate::wire::{Batch, Decoder, Limits};

/// The work of one slice: some two milliseconds. A unit is a listed hash.
pub const SLICE: usize = 8192;
/// This many tokens cost as much as one hash.
pub(in crate::fleet) const TOKENS_PER_HASH: u32 = 128;

/// The effect of one batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// The number of hashes that stores listed.
    pub stored: u64,
    /// The number of copies that removals took away.
    pub removed: u64,
    /// The number of clears.
    pub cleared: u64,
    /// The number of events and details that were refused.
    pub refused: u64,
    /// The units of work on what is undecided, and on what is guessed of groups that no event tells of.
    /// They grow with the batch, and hardly faster.
    pub effort: u64,
}

/// The decoder's arenas, and how far the batch in them is applied. It is kept from batch to batch.
#[derive(Debug)]
pub struct Intake {
    decoder: Decoder,
    pub(in crate::fleet) progress: BatchProgress,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(Limits::default()),
            progress: BatchProgress::default(),
        }
    }
}

impl Intake {
    /// Decodes a payload; the index is not changed yet. Bad bytes are refused here, and counted
    /// with the first slice.
    pub fn read(&mut self, payload: &[u8]) {
        self.decoder.decode(payload);
        self.progress.rewind();
    }

    /// The effect of the slices so far.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.progress.applied
    }

    /// Bytes that arenas and buffers occupy.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.decoder.arena_bytes() + self.progress.bytes()
    }

    /// The rank that the batch names, if it names one.
    pub(in crate::fleet) fn dp_rank(&self) -> Option<u32> {
        self.decoder.batch().dp_rank
    }

    /// The batch that was read, and how far it is applied.
    pub(in crate::fleet) fn parts(&mut self) -> (&Batch, &mut BatchProgress) {
        (self.decoder.batch(), &mut self.progress)
    }
}

/// The next thing to do with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::fleet) enum Phase {
    /// Nothing has been done yet.
    #[default]
    Begin,
    /// The dense stores of the piece are to be named.
    Name,
    /// The copies of the piece are to be counted.
    Count,
    /// The marks that a request has left are to be shown.
    Show,
    /// The names beyond the allowance are to be forgotten.
    Trim,
    /// Nothing is left to do.
    Done,
}

/// Where the copies of the current event are counted.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::fleet) enum Target {
    /// This has not been looked up yet.
    #[default]
    Unknown,
    /// The channel of a store; `None` if the rank already has as many channels as it may have.
    Channel(Option<ChannelId>),
    /// The key that a removal removes from.
    Key(ChannelKey),
}

/// How far a batch is applied.
#[derive(Debug, Default)]
pub(in crate::fleet) struct BatchProgress {
    /// The next thing to do.
    pub phase: Phase,
    /// The effect so far.
    pub applied: Applied,
    /// The events up to the next clear, which are all named before any is counted.
    pub piece: Range<usize>,
    /// The current event.
    pub event: usize,
    /// How many of the current event's hashes are done.
    pub hashes: usize,
    /// The dense store that is being named.
    pub chain: Option<NamedChain>,
    /// The slots of the dense stores of the piece, in order.
    pub slots: Vec<SlotId>,
    /// The keys of the blocks that are being named.
    pub keys: Vec<PrefixKey>,
    /// For each event of the piece, the range of its slots.
    pub named: Vec<Option<Range<usize>>>,
    /// The range of the last store's slots.
    pub previous: Option<Range<usize>>,
    /// The groups whose block turned out larger in this piece.
    pub grown: Vec<u16>,
    /// The slot at which regrading those groups continues.
    pub regraded: usize,
    /// Where the copies of the current event are added or removed.
    pub target: Target,
    /// The slots of the last sparse store.
    pub sparse: Vec<SlotId>,
    /// Whether the last store was sparse.
    pub previous_was_sparse: bool,
    /// The work that the slice may still do.
    pub left: usize,
}

impl BatchProgress {
    fn rewind(&mut self) {
        self.phase = Phase::Begin;
        self.applied = Applied::default();
        self.piece = 0..0;
        self.chain = None;
        self.begin_piece();
    }

    /// Refuses the whole batch.
    pub(in crate::fleet) fn refuse(&mut self) {
        self.applied.refused = 1;
        self.phase = Phase::Done;
    }

    /// Starts a piece: what was named for earlier pieces does not concern its events.
    pub(in crate::fleet) fn begin_piece(&mut self) {
        self.event = self.piece.start;
        self.hashes = 0;
        self.slots.clear();
        self.named.clear();
        self.previous = None;
        self.grown.clear();
        self.regraded = 0;
        self.target = Target::Unknown;
        self.previous_was_sparse = false;
    }

    /// Goes on to the next event.
    pub(in crate::fleet) fn next_event(&mut self) {
        self.event += 1;
        self.hashes = 0;
        self.target = Target::Unknown;
        self.work(1);
    }

    /// Counts work that was done.
    pub(in crate::fleet) fn work(&mut self, units: usize) {
        self.left = self.left.saturating_sub(units);
    }

    /// How many of an event's remaining blocks this slice takes; at least one.
    pub(in crate::fleet) fn take(&mut self, blocks: usize, tokens_per_block: u32) -> usize {
        let cost = 1 + (tokens_per_block / TOKENS_PER_HASH) as usize;
        let taken = blocks.min((self.left / cost).max(1));
        self.work(taken * cost);
        taken
    }

    fn bytes(&self) -> usize {
        (self.slots.capacity() + self.sparse.capacity()) * size_of::<SlotId>()
            + self.keys.capacity() * size_of::<PrefixKey>()
            + self.named.capacity() * size_of::<Option<Range<usize>>>()
    }
}
