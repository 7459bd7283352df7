//! A batch on its way into the index: decoded before the index is asked for anything, then taken in
//! slice by slice, so that whoever shares the index gets a turn in between.
//!
//! Law: between two slices nothing is unsettled, and the rank that the batch is of promises nothing:
//! half a batch is a state that its engine may never have been in, so that its answers are bounds
//! until the last slice. Every other rank answers as ever. Only questions may be asked in between;
//! whoever changes the index waits until the batch is in, as slots that it found may be gone.

use std::ops::Range;

use super::naming::Chain;
use super::slots::{ChannelId, ChannelKey, SlotId};
use crate::prefix::PrefixKey;
use crate::wire::{Batch, Decoder, Limits};

/// Work of one slice: some two milliseconds. A unit is a listed hash.
pub const SLICE: usize = 8192;
/// So many tokens cost as much as a hash does.
pub(super) const TOKENS_PER_HASH: u32 = 128;

/// What one batch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Hashes listed by stores.
    pub stored: u64,
    /// Copies that removals took away.
    pub removed: u64,
    /// How many clears it had.
    pub cleared: u64,
    /// Events and details refused.
    pub refused: u64,
    /// Units of work on what is undecided: grows with the batch, hardly faster.
    pub effort: u64,
}

/// The decoder's arenas, and how far the batch in them has come. Kept from batch to batch.
#[derive(Debug)]
pub struct Intake {
    decoder: Decoder,
    pub(super) progress: Progress,
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(Limits::default()),
            progress: Progress::default(),
        }
    }
}

impl Intake {
    /// Decodes a payload, and changes nothing in the index yet. Bad bytes are refused here, and counted
    /// with the first slice.
    pub fn read(&mut self, payload: &[u8]) {
        self.decoder.decode(payload);
        self.progress.rewind();
    }

    /// What the slices so far did.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.progress.applied
    }

    /// Bytes that arenas and buffers occupy.
    #[must_use]
    pub(super) fn bytes(&self) -> usize {
        self.decoder.arena_bytes() + self.progress.bytes()
    }

    /// The rank that the batch names, if it does.
    pub(super) fn dp_rank(&self) -> Option<u32> {
        self.decoder.batch().dp_rank
    }

    /// The batch that was read, and how far it has come.
    pub(super) fn parts(&mut self) -> (&Batch, &mut Progress) {
        (self.decoder.batch(), &mut self.progress)
    }
}

/// What is to be done next with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// Nothing was done.
    #[default]
    Begin,
    /// Name the dense stores of the piece.
    Name,
    /// Count the copies of the piece.
    Count,
    /// Forget names beyond the allowance.
    Trim,
    /// Nothing is left.
    Done,
}

/// What the event at hand counts in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Target {
    /// Not asked yet.
    #[default]
    Unknown,
    /// A store's channel; none where the rank has as many as it may have.
    Channel(Option<ChannelId>),
    /// What a removal takes from.
    Key(ChannelKey),
}

/// How far a batch has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// What is to be done next.
    pub phase: Phase,
    /// What was done.
    pub applied: Applied,
    /// Events up to the next clear, which are named before they are counted.
    pub piece: Range<usize>,
    /// The event at hand.
    pub event: usize,
    /// How many of its hashes are done.
    pub hashes: usize,
    /// The dense store that is being named.
    pub chain: Option<Chain>,
    /// The slots of the dense stores of the piece, in order.
    pub slots: Vec<SlotId>,
    /// The keys of the blocks at hand.
    pub keys: Vec<PrefixKey>,
    /// Which of them belong to each event of the piece.
    pub named: Vec<Option<Range<usize>>>,
    /// Which of them belong to the last store.
    pub previous: Option<Range<usize>>,
    /// Groups whose block turned out larger in the piece.
    pub grown: Vec<u16>,
    /// The slot at which regrading them goes on.
    pub regraded: usize,
    /// Where the copies of the event at hand go to, or are taken from.
    pub target: Target,
    /// The slots of the last sparse store.
    pub sparse: Vec<SlotId>,
    /// The last store was sparse.
    pub previous_was_sparse: bool,
    /// Work that the slice may still do.
    pub left: usize,
}

impl Progress {
    fn rewind(&mut self) {
        self.phase = Phase::Begin;
        self.applied = Applied::default();
        self.piece = 0..0;
        self.chain = None;
        self.begin_piece();
    }

    /// The whole batch is refused.
    pub(super) fn refuse(&mut self) {
        self.applied.refused = 1;
        self.phase = Phase::Done;
    }

    /// Events of another piece are at hand: what was named before is no concern of theirs.
    pub(super) fn begin_piece(&mut self) {
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

    /// The event at hand is done with.
    pub(super) fn next_event(&mut self) {
        self.event += 1;
        self.hashes = 0;
        self.target = Target::Unknown;
        self.work(1);
    }

    /// So much was done.
    pub(super) fn work(&mut self, units: usize) {
        self.left = self.left.saturating_sub(units);
    }

    /// How many of the blocks that are left of an event this slice takes; at least one.
    pub(super) fn take(&mut self, blocks: usize, tokens_per_block: u32) -> usize {
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
