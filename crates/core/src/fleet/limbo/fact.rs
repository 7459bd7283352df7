//! The words in which facts are told: positions, salts, and what they are said of.

use crate::fleet::nodes::{Place, SaltId};
use crate::fleet::slots::EntryId;
use crate::prefix::Step;

/// Index of a floating trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TrieId(pub(super) u32);

/// Index of an undecided sparse store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SpanId(pub(super) u32);

/// Index of a salt class; resolve with `Limbo::root`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClassId(pub(super) u32);

/// Where positions are measured from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Frame {
    /// The start of the prompt: a step from here is (boundary, prefix key).
    Absolute,
    /// The boundary of the hash that this trie floats below.
    Trie(TrieId),
}

/// A position: so many tokens, and their key, from the origin of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    /// Where it is measured from.
    pub frame: Frame,
    /// How far it is from there.
    pub step: Step,
}

impl At {
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
    /// The salt of a class, seen or not.
    Of(ClassId),
}

/// What the events or a request told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fact {
    /// The hash stands here; `ahead` is its lookahead part.
    Stands(EntryId, At, u64),
    /// Two classes are one.
    SameSalt(ClassId, ClassId),
    /// The class has this salt.
    HasSalt(ClassId, SaltId),
}

/// By which means a hash got its place: counted for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// It joined a hash whose place the events told.
    Join,
    /// A request's own engine chain named it.
    Query,
}
