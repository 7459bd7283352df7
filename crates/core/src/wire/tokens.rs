//! The arena of token ids: 32 bits for each, and beside them what the wide ones have more.
//!
//! Invariant: the wide ones are in the order of their places, so those of a span are a piece of the list.

use super::Span;
use crate::wide::{WideToken, halves};

/// What a wide token has besides the 32 bits in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    High(u32),
    Text(Span),
}

/// A wide token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wide {
    /// The index of its place in the arena.
    at: u32,
    rest: Rest,
}

impl Wide {
    pub(super) fn token<'a>(&self, texts: &'a str) -> WideToken<'a> {
        match self.rest {
            Rest::High(high) => WideToken::High(high),
            Rest::Text(text) => WideToken::Text(&texts[text.range()]),
        }
    }

    /// Where its place is, counted from an index at or before it.
    pub(super) fn after(&self, start: u32) -> u32 {
        self.at - start
    }
}

/// Token ids, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenArena {
    pub(super) ids: Vec<u32>,
    pub(super) wide: Vec<Wide>,
}

impl TokenArena {
    pub(super) fn clear(&mut self) {
        self.truncate((0, 0));
    }

    /// How many tokens there are, and how many of them are wide.
    pub(super) fn marks(&self) -> (usize, usize) {
        (self.ids.len(), self.wide.len())
    }

    pub(super) fn truncate(&mut self, (ids, wide): (usize, usize)) {
        self.ids.truncate(ids);
        self.wide.truncate(wide);
    }

    pub(super) fn bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u32>() + self.wide.capacity() * size_of::<Wide>()
    }

    pub(super) fn wide_in(&self, span: Span) -> &[Wide] {
        if self.wide.is_empty() {
            return &[];
        }
        let before = |end: usize| self.wide.partition_point(|wide| (wide.at as usize) < end);
        let range = span.range();
        &self.wide[before(range.start)..before(range.end)]
    }

    /// Appends a token of another arena, with what it has besides.
    pub(super) fn copy(&mut self, from: &Self, index: usize) {
        let at = narrow(self.ids.len());
        self.ids.push(from.ids[index]);
        let wide = from.wide_in(Span::between(index, index + 1));
        self.wide
            .extend(wide.iter().map(|wide| Wide { at, ..*wide }));
    }
}

/// Where the wide tokens of a list go.
pub(super) struct WideSink<'a> {
    pub(super) wide: &'a mut Vec<Wide>,
    pub(super) texts: &'a mut String,
    pub(super) max_text_bytes: usize,
}

impl WideSink<'_> {
    /// Takes a number for the place `at`; what 32 bits of the place hold.
    pub(super) fn number(&mut self, at: usize, number: u64) -> u32 {
        let (low, rest) = halves(number);
        if let Some(WideToken::High(high)) = rest {
            self.push(at, Rest::High(high));
        }
        low
    }

    /// Takes a text, which is not empty, for the place `at`; what 32 bits of the place hold.
    pub(super) fn text(&mut self, at: usize, text: &str) -> u32 {
        let start = self.texts.len();
        self.texts.push_str(text);
        self.push(at, Rest::Text(Span::between(start, self.texts.len())));
        0
    }

    fn push(&mut self, at: usize, rest: Rest) {
        self.wide.push(Wide {
            at: narrow(at),
            rest,
        });
    }
}

/// Arenas are never longer than a payload, which fits `u32`.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
