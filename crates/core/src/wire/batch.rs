//! A decoded batch: small records whose lists and texts lie in arenas of the batch.
//!
//! A `Span` belongs to one arena of the batch it came with; the accessors of `Batch` say which.

use std::ops::Range;

use crate::spec::SpecKind;
use crate::wide::WideAt;
use crate::wire::{BatchRefusal, Component, Components, RefusalReason, TokenArena};

/// A piece of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First element.
    pub start: u32,
    /// Number of elements.
    pub len: u32,
}

impl Span {
    /// The piece from `start` to `end`. Arenas are never longer than a payload, which fits `u32`.
    pub(super) fn between(start: usize, end: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            start: narrow(start),
            len: narrow(end - start),
        }
    }

    /// As an index into a slice.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Where a copy lies, in the engine's word; compared without regard to case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Medium {
    /// `GPU`; also what a missing or empty medium means.
    #[default]
    Gpu,
    /// `CPU` and the other words for host memory.
    Cpu,
    /// `STORAGE` and the other words for disks and remote stores.
    Storage,
    /// A connector's own word, in lower case (`Batch::text`).
    Other(Span),
}

impl Medium {
    /// Every known word, in lower case; the first of each medium is its canonical name.
    pub const NAMES: [(&'static str, Medium); 12] = [
        ("gpu", Medium::Gpu),
        ("cpu", Medium::Cpu),
        ("cpu_pinned", Medium::Cpu),
        ("cpu_tier1", Medium::Cpu),
        ("cpu_tier2", Medium::Cpu),
        ("host", Medium::Cpu),
        ("host_pinned", Medium::Cpu),
        ("storage", Medium::Storage),
        ("disk", Medium::Storage),
        ("external", Medium::Storage),
        ("shared_storage", Medium::Storage),
        ("object_store", Medium::Storage),
    ];

    pub(super) fn from_bytes(name: &[u8]) -> Option<Self> {
        let is_name = |word: &str| word.as_bytes().eq_ignore_ascii_case(name);
        Self::NAMES
            .iter()
            .find(|(word, _)| is_name(word))
            .map(|(_, medium)| *medium)
    }
}

/// One of the things besides tokens that a block's hash covers, in the order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraKey {
    /// A cache salt, or a multimodal identifier of older engines (`Batch::text`).
    Text(Span),
    /// A multimodal item and where it starts, in tokens from the block's start; may be negative.
    Item {
        /// Identifier (`Batch::text`).
        id: Span,
        /// Offset in tokens.
        offset: i64,
    },
    /// The digest of prompt embeddings (`Batch::digest`).
    Digest(Span),
}

/// Copies of blocks appeared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// Engine hashes of the listed blocks (`Batch::hashes_of`).
    pub hashes: Span,
    /// Engine hash before the span; `None` at the start of a prompt. 0 is a hash like any other.
    pub parent: Option<u64>,
    /// Token ids of the whole span, including blocks that are not listed (`Batch::tokens_of`).
    pub tokens: Span,
    /// Tokens per block; 0 on placeholders of offloaded copies.
    pub block_size: u32,
    /// Where the copies lie.
    pub medium: Medium,
    /// Name of the LoRA adapter (`Batch::text`); an empty name counts as none.
    pub lora_name: Option<Span>,
    /// The engine's number of the adapter: older engines send only this.
    pub lora_id: Option<i64>,
    /// Read it through `Batch::extra_keys_of`. `None`: the engine did not say. An empty span: every
    /// listed block said that it has none. Else one entry of `Batch::extra_blocks` per listed block.
    pub extra_keys: Option<Span>,
    /// Group index in the engine's own order.
    pub group: Option<u32>,
    /// Attention kind of the group.
    pub kind: Option<SpecKind>,
    /// Window of the group in tokens.
    pub window: Option<u32>,
    /// Whether the copies lie on another machine.
    pub remote: bool,
    /// Who owns the copies (`Batch::text`).
    pub owner: Option<Span>,
    /// Entries of `Batch::lookahead_blocks`, one per listed block; empty when the engine's hashes
    /// do not look ahead. Read it through `Batch::lookahead_of`.
    pub lookahead: Span,
    /// The cache salt of engines with a field for it (`Batch::text`); an empty one counts as none.
    pub salt: Option<Span>,
    /// The component that this event is about, if it is about one alone.
    pub component: Option<Component>,
    /// The components that each listed block has from now on, if the engine says it so.
    pub components: Option<Components>,
    /// Whether TensorRT-LLM's keys of media were listed for some block. They say which item a block
    /// has a part of, and not where in the block it is.
    pub has_mm_keys: bool,
    /// Hashes, parent, tokens, block size, LoRA, salt and extra keys are those of the previous
    /// `Stored` of this batch, with the same spans: groups of one model often say the same thing.
    pub same_as_previous: bool,
}

impl Stored {
    /// Whether its hashes alone tell where they stand: a state has no parent, and only the tokens of the
    /// last page before it.
    #[must_use]
    pub fn is_by_hash_alone(&self) -> bool {
        self.component == Some(Component::State)
    }

    /// Whether the copies lie on the engine's own GPU, so its prompts have come this far.
    #[must_use]
    pub fn is_on_own_gpu(&self) -> bool {
        self.medium == Medium::Gpu && !self.remote && self.owner.is_none()
    }

    /// The same copies, announced without tokens.
    #[must_use]
    pub fn by_hash_alone(&self) -> Self {
        Self {
            parent: None,
            tokens: Span::default(),
            block_size: 0,
            extra_keys: None,
            lookahead: Span::default(),
            salt: None,
            same_as_previous: false,
            ..*self
        }
    }
}

/// Copies of blocks were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Removed {
    /// Engine hashes (`Batch::hashes_of`).
    pub hashes: Span,
    /// Where the copies lay.
    pub medium: Medium,
    /// Group index in the engine's own order.
    pub group: Option<u32>,
    /// The component that this event is about; `None` means all of the block.
    pub component: Option<Component>,
    /// Whether the copies lay on another machine.
    pub remote: bool,
    /// Who owned the copies (`Batch::text`).
    pub owner: Option<Span>,
}

/// What a refused event may have told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untold {
    /// Only that there are copies.
    Stored,
    /// Only that there are copies no longer.
    Removed,
    /// Both, because the event could not be read that far.
    Anything,
}

impl Untold {
    /// What two refused events may have told.
    fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Anything }
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// `BlockStored`.
    Stored(Stored),
    /// `BlockRemoved`.
    Removed(Removed),
    /// `AllBlocksCleared`.
    Cleared,
    /// Events, or the rest of the batch, were refused here (`Batch::refused` has the reasons).
    Refused(Untold),
}

/// Everything that was read from one payload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// When the engine published it, in seconds since the epoch.
    pub ts: Option<f64>,
    /// Data-parallel rank that published it.
    pub dp_rank: Option<u32>,
    /// The events in their order, with the places where something was refused.
    pub events: Vec<Event>,
    /// The parts that could not be read, and notes.
    pub refused: Vec<BatchRefusal>,
    /// Arena of engine hashes.
    pub hashes: Vec<u64>,
    /// Arena of token ids, of spans and of lookaheads.
    pub tokens: TokenArena,
    /// Arena of texts.
    pub texts: String,
    /// Arena of digests.
    pub digests: Vec<u8>,
    /// Arena of extra keys.
    pub extras: Vec<ExtraKey>,
    /// Extra keys of each block: pieces of `extras`.
    pub extra_blocks: Vec<Span>,
    /// Lookahead of each block: pieces of `tokens`.
    pub lookahead_blocks: Vec<Span>,
}

impl Batch {
    /// The engine hashes of an event.
    #[must_use]
    pub fn hashes_of(&self, hashes: Span) -> &[u64] {
        &self.hashes[hashes.range()]
    }

    /// The token ids of a span: of a wide one what 32 bits hold ([`Self::wide_of`] has the rest).
    #[must_use]
    pub fn tokens_of(&self, tokens: Span) -> &[u32] {
        &self.tokens.ids[tokens.range()]
    }

    /// Whether a span has wide tokens.
    #[must_use]
    pub fn has_wide(&self, tokens: Span) -> bool {
        !self.tokens.wide_in(tokens).is_empty()
    }

    /// The wide tokens of a span, in order; their places are counted from its start.
    #[must_use]
    pub fn wide_of(&self, tokens: Span) -> impl ExactSizeIterator<Item = WideAt<'_>> {
        let wide = self.tokens.wide_in(tokens).iter();
        wide.map(move |wide| WideAt {
            at: wide.after(tokens.start),
            token: wide.token(&self.texts),
        })
    }

    /// A text.
    #[must_use]
    pub fn text(&self, text: Span) -> &str {
        &self.texts[text.range()]
    }

    /// A digest.
    #[must_use]
    pub fn digest(&self, digest: Span) -> &[u8] {
        &self.digests[digest.range()]
    }

    /// The extra keys of the listed block number `block`, without the LoRA name (which the wire
    /// repeats there).
    #[must_use]
    pub fn extra_keys_of(&self, stored: &Stored, block: usize) -> &[ExtraKey] {
        let blocks = stored.extra_keys.unwrap_or_default();
        let keys = self.extra_blocks[blocks.range()]
            .get(block)
            .copied()
            .unwrap_or_default();
        &self.extras[keys.range()]
    }

    /// The tokens after the listed block number `block` that its hash also covers.
    #[must_use]
    pub fn lookahead_of(&self, stored: &Stored, block: usize) -> &[u32] {
        self.tokens_of(self.lookahead_span(stored, block))
    }

    /// The span of the tokens after the listed block number `block` that its hash also covers.
    #[must_use]
    pub fn lookahead_span(&self, stored: &Stored, block: usize) -> Span {
        let blocks = &self.lookahead_blocks[stored.lookahead.range()];
        blocks.get(block).copied().unwrap_or_default()
    }

    /// Notes that something was not read: an event, the rest of the batch, or a detail.
    pub(super) fn refuse(&mut self, reason: RefusalReason, index: Option<u32>, untold: Untold) {
        self.refused.push(BatchRefusal {
            reason,
            event_index: index,
        });
        if reason.is_note() {
            return;
        }
        // Refused events can be as short as a byte: one place stands for all in a row.
        match self.events.last_mut() {
            Some(Event::Refused(last)) => *last = last.and(untold),
            _ => self.events.push(Event::Refused(untold)),
        }
    }

    pub(super) fn clear(&mut self) {
        self.ts = None;
        self.dp_rank = None;
        self.events.clear();
        self.refused.clear();
        self.truncate(ArenaLengths::default());
    }

    /// How full each arena is.
    pub(super) fn marks(&self) -> ArenaLengths {
        ArenaLengths {
            hashes: self.hashes.len(),
            tokens: self.tokens.marks(),
            texts: self.texts.len(),
            digests: self.digests.len(),
            extras: self.extras.len(),
            extra_blocks: self.extra_blocks.len(),
            lookahead_blocks: self.lookahead_blocks.len(),
        }
    }

    /// Takes back what a refused event has put into the arenas.
    pub(super) fn truncate(&mut self, marks: ArenaLengths) {
        self.hashes.truncate(marks.hashes);
        self.tokens.truncate(marks.tokens);
        self.texts.truncate(marks.texts);
        self.digests.truncate(marks.digests);
        self.extras.truncate(marks.extras);
        self.extra_blocks.truncate(marks.extra_blocks);
        self.lookahead_blocks.truncate(marks.lookahead_blocks);
    }

    pub(super) fn arena_bytes(&self) -> usize {
        self.events.capacity() * size_of::<Event>()
            + self.refused.capacity() * size_of::<BatchRefusal>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.tokens.bytes()
            + self.texts.capacity()
            + self.digests.capacity()
            + self.extras.capacity() * size_of::<ExtraKey>()
            + self.extra_blocks.capacity() * size_of::<Span>()
            + self.lookahead_blocks.capacity() * size_of::<Span>()
    }
}

/// Lengths of the arenas of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ArenaLengths {
    hashes: usize,
    tokens: (usize, usize),
    texts: usize,
    digests: usize,
    extras: usize,
    extra_blocks: usize,
    lookahead_blocks: usize,
}
