//! The vocabulary of facts: positions, salts, and the hashes and classes that facts are about.

use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::LimboId;
use crate::prefix::Step;
use serde::{Deserialize, Serialize};

/// Index of a floating trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TrieId(pub(super) u32);

/// Index of an undecided sparse store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct SpanId(pub(super) u32);

/// Index of a salt class; resolve with `Limbo::root`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ClassId(pub(super) u32);

/// Where positions are measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Frame {
    /// The start of the prompt: a step from here is (boundary, prefix key).
    Absolute,
    /// The boundary of the hash that this trie floats below.
    Trie(TrieId),
}

/// A position: a number of tokens from the origin of a frame, and the key of those tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The frame that the position is measured from.
    pub frame: Frame,
    /// The tokens between the frame's origin and this position, as a step.
    pub step: Step,
}

impl Position {
    /// The position of a node.
    pub(crate) fn of(place: Place) -> Self {
        let step = Step {
            tokens: place.boundary,
            local: place.prefix,
        };
        Self {
            frame: Frame::Absolute,
            step,
        }
    }
}

/// The salt of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Salt {
    /// A salt that some block showed.
    Known(SaltId),
    /// The salt of a class, whether a block has shown it yet or not.
    Of(ClassId),
}

/// One piece of knowledge that an event or a request gave.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fact {
    /// The hash stands at this position. The last field is its lookahead part.
    Stands(LimboId, Position, u64),
    /// The two classes share one salt, so they become one class.
    SameSalt(ClassId, ClassId),
    /// The class has this salt.
    HasSalt(ClassId, SaltId),
}

/// How a hash got its place, counted for the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlacedBy {
    /// The hash joined another hash whose place the events told.
    Join,
    /// The hash chain of a request, computed as the engine would, contained the hash.
    Query,
}
