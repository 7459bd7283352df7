//! Sparse stores: their hashes stand, in order, at ends of blocks of a span of tokens.
//!
//! ```text
//! blocks      |  0  |  1  |  2  |  3  |  4  |      listed  a  b
//! a may be    |--lo-----------hi|                  order:  a before b
//! b may be          |--lo-----------hi|
//! ```
//!
//! A span refers to the entries of its undecided hashes, and each entry refers back; `order`
//! narrows.

use super::fact::{ClassId, Frame, Position, Salt, SpanId};
use super::records::OfFrame;
use super::slab::{Linked, Links};
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::{LimboId, SlotId};
use crate::prefix::{KeyField, Step};
use serde::{Deserialize, Serialize};

/// The shape of the tails that an engine keeps of a window group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tails {
    /// The number of blocks of one tail.
    pub blocks: u32,
    /// The number of blocks from one possible end of a tail to the next.
    pub every: u32,
}

/// A sparse store as the wire told it.
pub(crate) struct SparseStore<'a> {
    /// The position where its tokens start.
    pub start: Position,
    /// The salt of its chain.
    pub salt: Salt,
    /// For each block, the step from `start` to the block's end.
    pub ends: Vec<Step>,
    /// The slots of the listed hashes, in order, each with the hash's lookahead part.
    pub listed: &'a [(SlotId, u64)],
    /// The tails that its engine keeps of such a group, if known.
    pub tails: Option<Tails>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Listed {
    /// The slot of the hash.
    pub slot: SlotId,
    /// The entry of the hash, while the hash is undecided.
    pub entry: Option<LimboId>,
    /// The index of this span among the spans of the entry.
    pub named_at: u32,
    /// What the lookahead tokens add to the identity of the hash.
    pub ahead: u64,
    /// The first block whose end the hash may stand at.
    pub low: u32,
    /// The last block whose end the hash may stand at.
    pub high: u32,
    /// Whether it is known which block the hash ends.
    pub fixed: bool,
    /// The place of a hash that left for a node while this span floats. It is noted here because
    /// the slot may be forgotten.
    pub elsewhere: Option<Place>,
}

impl Listed {
    /// Whether it is not known yet where the hash stands.
    pub(super) fn is_open(&self) -> bool {
        !self.fixed && self.entry.is_some()
    }
}

/// An undecided sparse store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SparseSpan {
    /// The position where its tokens start.
    pub start: Position,
    /// The salt class of its chain.
    pub class: ClassId,
    /// For each block, the step from the start to the end of the block.
    pub ends: Box<[Step]>,
    /// The listed hashes, in order.
    pub listed: Box<[Listed]>,
    /// The tails that its engine keeps of such a group, if known.
    pub tails: Option<Tails>,
    /// Its neighbours in the ring of the spans with the same start.
    pub in_frame: Links,
    /// Whether it waits to be looked at.
    pub is_dirty: bool,
    /// Whether it was never looked at: the first look is paid for by the store's own size.
    pub is_new: bool,
}

impl Linked<OfFrame> for SparseSpan {
    fn links(&self) -> Links {
        self.in_frame
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.in_frame
    }
}

impl SparseSpan {
    /// The same span with new numbers for its start and class. Nothing else about it changed.
    pub(super) fn moved(self, start: Position, class: ClassId) -> Self {
        Self {
            start,
            class,
            is_dirty: false,
            ..self
        }
    }

    /// Where a block ends, measured from the origin of the span's frame.
    pub(super) fn end(&self, field: KeyField, block: u32) -> Step {
        field.then(self.start.step, self.ends[block as usize])
    }

    /// The undecided hashes, each with the first and the last block whose end it may stand at.
    pub(super) fn open(&self) -> impl Iterator<Item = (SlotId, u32, u32)> + '_ {
        let open = self.listed.iter().filter(|l| l.is_open());
        open.map(|l| (l.slot, l.low, l.high))
    }

    pub(super) fn end_from_start(&self, block: u32) -> Step {
        self.ends[block as usize]
    }

    /// The bytes of its lists, and of the references that the entries of its hashes keep to it.
    pub(super) fn list_bytes(&self) -> usize {
        let named = 2 * size_of::<(SpanId, u32)>();
        size_of_val(&*self.ends) + size_of_val(&*self.listed) + self.listed.len() * named
    }
}

impl Default for SparseSpan {
    fn default() -> Self {
        Self {
            start: Position {
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
