//! The rest of an event after its own fields: mostly the same as in the event before.
//!
//! Law: equal bytes mean the same if they follow the same fields of the same kind of event and as many
//! fields are still to come. (They are equally many values, so either both events have names or none
//! has.) Such bytes are compared and not read again. Only a short rest is compared, so no event costs
//! much more than its bytes.

use crate::wire::event::Draft;
use crate::wire::fields::{Fields, Tag};

/// A longer rest is read every time: a prefill of 512 blocks has less.
const MOST_BYTES: usize = 1024;

/// Where in an event its own fields end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) tag: Tag,
    /// Fields before it.
    pub(super) seen: Fields,
    /// Fields after it.
    pub(super) left: u32,
}

/// The rest of an event that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest<'p> {
    turn: Turn,
    bytes: &'p [u8],
    /// The event, of which the rest gave every field but its own.
    said: Draft<'p>,
}

impl<'p> Rest<'p> {
    /// The rest of an event, if it can be compared: what was said before it, or what it says, is not
    /// mixed up with what is the event's own.
    pub(super) fn of(turn: Turn, bytes: &'p [u8], said: Draft<'p>) -> Option<Self> {
        let (own, _) = turn.tag.own();
        let is_apart = own.has_all(turn.seen) && turn.seen.has_all(said.seen.within(own));
        let is_short = (1..=MOST_BYTES).contains(&bytes.len());
        (is_apart && is_short).then_some(Self { turn, bytes, said })
    }

    /// The bytes that, at this turn of an event, would say the same.
    pub(super) fn expected(&self, turn: Turn) -> Option<&'p [u8]> {
        (self.turn == turn).then_some(self.bytes)
    }

    /// An event of which the own fields were read, with this rest.
    pub(super) fn complete(&self, draft: &Draft<'p>) -> Draft<'p> {
        let mut whole = self.said;
        whole.hashes = draft.hashes;
        whole.tokens = draft.tokens;
        whole.stored.hashes = draft.stored.hashes;
        whole.stored.parent = draft.stored.parent;
        whole.stored.tokens = draft.stored.tokens;
        whole.stored.block_size = draft.stored.block_size;
        whole
    }
}
