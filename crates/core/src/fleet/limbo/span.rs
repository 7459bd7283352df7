//! Sparse stores: hashes that stand, in order, at ends of blocks of a span of tokens.
//!
//! ```text
//! blocks      |  0  |  1  |  2  |  3  |  4  |      listed  a  b
//! a may be    |--lo-----------hi|                  order:  a before b
//! b may be          |--lo-----------hi|
//! ```
//!
//! A span names the entries of its undecided hashes, and each of them names it; `order` narrows.

use super::fact::{At, ClassId, Frame, Salt, SpanId};
use super::records::OfFrame;
use super::slab::{Linked, Links};
use crate::fleet::nodes::Place;
use crate::fleet::slots::{EntryId, SlotId};
use crate::prefix::{Field, Step};

/// The tails that an engine keeps of a window group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tails {
    /// Blocks of one tail.
    pub blocks: u32,
    /// Blocks from one possible end to the next.
    pub every: u32,
}

/// A sparse store as it comes from the wire.
pub(crate) struct SparseStore<'a> {
    /// Where its tokens start.
    pub start: At,
    /// The salt of its chain.
    pub salt: Salt,
    /// For each block, the step from `start` to the block's end.
    pub ends: Vec<Step>,
    /// The slots of the listed hashes, in order, each with its lookahead part.
    pub listed: &'a [(SlotId, u64)],
    /// What its engine keeps of such a group, where known.
    pub tails: Option<Tails>,
}

#[derive(Debug)]
pub(super) struct Listed {
    /// The slot of the hash.
    pub slot: SlotId,
    /// Its entry, while it is undecided.
    pub entry: Option<EntryId>,
    /// Where the entry names this span among its own.
    pub named_at: u32,
    /// What the lookahead tokens add to its identity.
    pub ahead: u64,
    /// The first block whose end it may stand at.
    pub low: u32,
    /// The last block whose end it may stand at.
    pub high: u32,
    /// Its block is known.
    pub fixed: bool,
    /// It stands at a node, but the span floats: noted here because the slot may go.
    pub elsewhere: Option<Place>,
}

impl Listed {
    /// It is not known where it stands.
    pub(super) fn is_open(&self) -> bool {
        !self.fixed && self.entry.is_some()
    }
}

/// An undecided sparse store.
#[derive(Debug)]
pub(super) struct Span {
    /// Where its tokens start.
    pub start: At,
    /// The salt class of its chain.
    pub class: ClassId,
    /// For each block, the step from the start to the end of the block.
    pub ends: Box<[Step]>,
    /// The listed hashes, in order.
    pub listed: Box<[Listed]>,
    /// What its engine keeps of such a group, where known.
    pub tails: Option<Tails>,
    /// Its neighbours in the ring of its start.
    pub in_frame: Links,
    /// It waits to be looked at.
    pub is_dirty: bool,
    /// It was never looked at: its own size pays for the first time.
    pub is_new: bool,
}

impl Linked<OfFrame> for Span {
    fn links(&self) -> Links {
        self.in_frame
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.in_frame
    }
}

impl Span {
    /// The same span under new numbers; nothing changed for it.
    pub(super) fn moved(self, start: At, class: ClassId) -> Self {
        Self {
            start,
            class,
            is_dirty: false,
            ..self
        }
    }

    /// Where a block ends, from the origin of the span's frame.
    pub(super) fn end(&self, field: Field, block: u32) -> Step {
        field.then(self.start.step, self.ends[block as usize])
    }

    /// Undecided hashes, each with the first and the last block whose end it may be.
    pub(super) fn open(&self) -> impl Iterator<Item = (SlotId, u32, u32)> + '_ {
        let open = self.listed.iter().filter(|l| l.is_open());
        open.map(|l| (l.slot, l.low, l.high))
    }

    pub(super) fn end_from_start(&self, block: u32) -> Step {
        self.ends[block as usize]
    }

    /// Bytes of its lists, and of the names that its hashes keep of it.
    pub(super) fn list_bytes(&self) -> usize {
        let named = 2 * size_of::<(SpanId, u32)>();
        size_of_val(&*self.ends) + size_of_val(&*self.listed) + self.listed.len() * named
    }
}

impl Default for Span {
    fn default() -> Self {
        Self {
            start: At {
                frame: Frame::Absolute,
                step: Step::NONE,
            },
            class: ClassId(0),
            ends: Box::default(),
            listed: Box::default(),
            tails: None,
            in_frame: Links::default(),
            is_dirty: false,
            is_new: false,
        }
    }
}
