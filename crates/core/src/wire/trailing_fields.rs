//! Caches the fields after an event's own: they usually repeat the previous event's bytes and are then
//! not decoded again.
//!
//! Invariant: equal bytes mean the same if they follow the same fields of the same kind of event and as
//! many fields are still to come. (They are equally many values, so either both events have names or
//! none has.) Only short bytes are compared, so no event costs much more than its bytes.

use crate::wire::draft::Draft;
use crate::wire::fields::{EventTag, Fields};

/// Longer bytes are read every time: a prefill of 512 blocks has less.
const MOST_BYTES: usize = 1024;

/// Where in an event its own fields end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldCursor {
    pub(super) tag: EventTag,
    /// Fields before it.
    pub(super) seen: Fields,
    /// Fields after it.
    pub(super) left: u32,
}

/// The trailing fields of an event that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct TrailingFields<'p> {
    at: FieldCursor,
    bytes: &'p [u8],
    /// The event, of which these bytes gave every field but its own.
    draft: Draft<'p>,
}

impl<'p> TrailingFields<'p> {
    /// The trailing fields of an event, if they can be compared: the event's own fields all stand
    /// before them, and no others do.
    pub(super) fn of(at: FieldCursor, bytes: &'p [u8], draft: Draft<'p>) -> Option<Self> {
        let (own, _) = at.tag.own();
        let is_apart = own.has_all(at.seen) && at.seen.has_all(draft.seen.within(own));
        let is_short = (1..=MOST_BYTES).contains(&bytes.len());
        (is_apart && is_short).then_some(Self { at, bytes, draft })
    }

    /// The bytes that would say the same after these own fields.
    pub(super) fn expected(&self, at: FieldCursor) -> Option<&'p [u8]> {
        (self.at == at).then_some(self.bytes)
    }

    /// An event of which the own fields were read, with these trailing fields.
    pub(super) fn complete(&self, draft: &Draft<'p>) -> Draft<'p> {
        let mut whole = self.draft;
        whole.hashes = draft.hashes;
        whole.tokens = draft.tokens;
        whole.stored.hashes = draft.stored.hashes;
        whole.stored.parent = draft.stored.parent;
        whole.stored.tokens = draft.stored.tokens;
        whole.stored.block_size = draft.stored.block_size;
        whole
    }
}
