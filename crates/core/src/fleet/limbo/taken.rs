//! Boundaries that are taken: another hash of the same salt is known to stand there.
//!
//! Whoever asks of many boundaries of one span finds out once whether anything can stand at all.

use super::fact::{ClassId, Frame};
use super::records::Entry;
use super::span::Span;
use super::{Limbo, World};
use crate::fleet::nodes::{Place, SaltId};
use crate::fleet::slots::{SlotId, Whereabouts};
use crate::prefix::Step;

/// Whose boundaries are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    class: ClassId,
    /// Nodes can be looked up.
    salt: Option<SaltId>,
}

impl Limbo {
    /// What may stand beside the hashes of a span; `None` where nothing can: the span floats, or no
    /// hash of its salt is known to stand anywhere.
    pub(super) fn standing_beside(&self, span: &Span) -> Option<Standing> {
        if span.start.frame != Frame::Absolute {
            return None;
        }
        let class = self.root(span.class);
        let salt = self.label(class);
        (salt.is_some() || !self.by_prefix.is_empty()).then_some(Standing { class, salt })
    }

    /// Whether a boundary is taken by another hash than this one.
    pub(super) fn is_taken(
        &self,
        beside: Standing,
        slot: SlotId,
        at: Step,
        world: &World<'_>,
    ) -> bool {
        let is_other = |entry: &Entry| entry.slot != slot && self.root(entry.class) == beside.class;
        let mut there = self.at_prefix(at.local);
        if there
            .by_ref()
            .take_while(|_| world.effort.spend(1))
            .any(|entry| is_other(&self.entries[entry.0]))
        {
            return true;
        }
        // An undecided hash is at no node: whatever is held there is another hash.
        let (Some(salt), Whereabouts::Limbo(entry)) = (beside.salt, world.slots.whereabouts(slot))
        else {
            return false;
        };
        let ahead = self.entries[entry.0].ahead;
        let place = Place {
            boundary: at.tokens,
            prefix: at.local,
            ahead,
            salt,
        };
        let node = world.nodes.find(world.nodes.key_of(place), None);
        node.is_some_and(|node| {
            let mut planes = world.slots.channels.planes().iter();
            planes.any(|&plane| world.planes.word(plane, node) & world.bit != 0)
        })
    }
}
