//! Boundaries that are taken, because another hash of the same salt is known to stand there.
//!
//! A caller that asks about many boundaries of one span first finds out once whether any can be
//! taken.

use super::fact::{ClassId, Frame};
use super::records::LimboEntry;
use super::span::SparseSpan;
use super::{Limbo, LimboContext};
use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::{SlotId, Whereabouts};
use crate::prefix::Step;

/// The salt class whose hashes are asked for at a boundary.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedSalt {
    class: ClassId,
    /// The salt, if known: only then can nodes be looked up.
    salt: Option<SaltId>,
}

impl Limbo {
    /// What is needed to ask for boundaries that are taken beside a span's hashes. `None` if none
    /// can be: the span floats, or no hash of its salt is known to stand anywhere.
    pub(super) fn standing_beside(&self, span: &SparseSpan) -> Option<AskedSalt> {
        if span.start.frame != Frame::Absolute {
            return None;
        }
        let class = self.root(span.class);
        let salt = self.label(class);
        (salt.is_some() || !self.by_prefix.is_empty()).then_some(AskedSalt { class, salt })
    }

    /// Whether another hash than this one stands at a boundary.
    pub(super) fn is_taken(
        &self,
        beside: AskedSalt,
        slot: SlotId,
        at: Step,
        context: &LimboContext<'_>,
    ) -> bool {
        let is_other =
            |entry: &LimboEntry| entry.slot != slot && self.root(entry.class) == beside.class;
        let mut there = self.at_prefix(at.local);
        if there
            .by_ref()
            .take_while(|_| context.effort.spend(1))
            .any(|entry| is_other(&self.entries[entry.0]))
        {
            return true;
        }
        // An undecided hash is at no node, so whatever is held at the node is another hash.
        let (Some(salt), Whereabouts::Limbo(entry)) =
            (beside.salt, context.slots.whereabouts(slot))
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
        let node = context.nodes.find(context.nodes.key_of(place), None);
        node.is_some_and(|node| {
            let mut planes = context.slots.channels.planes().iter();
            planes.any(|&plane| context.planes.word(plane, node) & context.bit != 0)
        })
    }
}
