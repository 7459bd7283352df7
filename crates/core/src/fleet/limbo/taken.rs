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

impl AskedSalt {
    /// What is needed to ask for boundaries that are taken beside a span's hashes. `None` if none
    /// can be: the span floats, or no hash of its salt is known to stand anywhere.
    pub(super) fn beside(limbo: &Limbo, span: &SparseSpan) -> Option<Self> {
        if span.start.frame != Frame::Absolute {
            return None;
        }
        let class = limbo.root(span.class);
        let salt = limbo.label(class);
        (salt.is_some() || !limbo.by_prefix.is_empty()).then_some(Self { class, salt })
    }

    /// Whether another hash than this one stands at a boundary.
    pub(super) fn is_taken(
        self,
        limbo: &Limbo,
        slot: SlotId,
        at: Step,
        context: &LimboContext<'_>,
    ) -> bool {
        let is_other =
            |entry: &LimboEntry| entry.slot != slot && limbo.root(entry.class) == self.class;
        let mut there = limbo.at_prefix(at.local);
        if there
            .by_ref()
            .take_while(|_| context.effort.spend(1))
            .any(|entry| is_other(&limbo.entries[entry.0]))
        {
            return true;
        }
        // An undecided hash is at no node, so whatever is held at the node is another hash.
        let (Some(salt), Whereabouts::Limbo(entry)) = (self.salt, context.slots.whereabouts(slot))
        else {
            return false;
        };
        let ahead = limbo.entries[entry.0].ahead;
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
