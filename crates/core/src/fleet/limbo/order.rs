//! Narrowing one span by the order of its hashes, by boundaries that are taken, and by the other
//! spans that list the same hash.
//!
//! The search jumps over candidates that another span excludes. Every look after the first at each
//! hash has to be paid from the effort; when the effort is used up, a candidate counts as possible.

use smallvec::SmallVec;

use super::fact::SpanId;
use super::span::SparseSpan;
use super::taken::AskedSalt;
use super::{Limbo, LimboContext};
use crate::fleet::presence::slots::SlotId;
use crate::prefix::{KeyField, Step};

/// Another span that lists the same hash, in the same frame.
struct Rival<'a> {
    span: &'a SparseSpan,
    /// Where the other span starts.
    start: Step,
    /// The first and the last boundary that it leaves to the hash, in tokens from the origin of the
    /// frame.
    first: u32,
    last: u32,
}

impl SparseSpan {
    /// The block that ends at this position, if the span starts at `start`.
    pub(super) fn block_at(&self, field: KeyField, start: Step, end: Step) -> Option<u32> {
        let block = self.block_of(end.tokens.checked_sub(start.tokens)?)?;
        (field.then(start, self.ends[block as usize]) == end).then_some(block)
    }

    /// The block that ends this number of tokens after the start.
    fn block_of(&self, tokens: u32) -> Option<u32> {
        let block = (self.ends).binary_search_by_key(&tokens, |end| end.tokens);
        u32::try_from(block.ok()?).ok()
    }

    /// Where a block ends, in tokens from the origin of the frame.
    pub(super) fn tokens_at(&self, block: u32) -> u32 {
        self.start.step.tokens + self.ends[block as usize].tokens
    }

    /// The first block that ends at or after this number of tokens; the number of blocks if none
    /// does.
    fn first_block_from(&self, tokens: u32) -> u32 {
        let start = self.start.step.tokens;
        let block = self.ends.partition_point(|end| start + end.tokens < tokens);
        u32::try_from(block).unwrap_or(u32::MAX)
    }
}

impl Rival<'_> {
    /// The first block, at or after `block`, that a quick check does not exclude.
    fn up(&self, field: KeyField, span: &SparseSpan, block: u32) -> u32 {
        let tokens = span.tokens_at(block);
        if tokens < self.first {
            return span.first_block_from(self.first);
        }
        if tokens > self.last {
            return u32::try_from(span.ends.len()).unwrap_or(u32::MAX);
        }
        block + u32::from(!self.has_end_of(field, span, block))
    }

    /// The last block, at or before `block`, that a quick check does not exclude.
    fn down(&self, field: KeyField, span: &SparseSpan, block: u32) -> u32 {
        let tokens = span.tokens_at(block);
        if tokens > self.last {
            return span.first_block_from(self.last + 1).saturating_sub(1);
        }
        if tokens < self.first {
            return 0;
        }
        block - u32::from(!self.has_end_of(field, span, block))
    }

    /// Whether one of the rival's blocks ends where this block of `span` ends.
    fn has_end_of(&self, field: KeyField, span: &SparseSpan, block: u32) -> bool {
        let end = span.ends[block as usize];
        if self.start == span.start.step {
            let same = self.span.block_of(end.tokens);
            return same.is_some_and(|same| self.span.ends[same as usize] == end);
        }
        let end = field.then(span.start.step, end);
        self.span.block_at(field, self.start, end).is_some()
    }
}

/// One span while it is narrowed by the order of its hashes. The caller has taken it out of limbo.
pub(super) struct SpanOrder<'a, 'c> {
    pub(super) limbo: &'a Limbo,
    pub(super) context: &'a LimboContext<'c>,
    pub(super) id: SpanId,
}

impl SpanOrder<'_, '_> {
    /// Narrows every listed hash by the order of the list. Returns false if no block is left for
    /// some hash.
    pub(super) fn narrow(&self, span: &mut SparseSpan) -> bool {
        let beside = AskedSalt::beside(self.limbo, span);
        let mut next = 0;
        for i in 0..span.listed.len() {
            let low = span.listed[i].low.max(next);
            span.listed[i].low = low;
            if !span.listed[i].fixed {
                span.listed[i].low = self.lowest(beside, span, i);
            }
            next = span.listed[i].low + 1;
        }
        let mut bound = u32::try_from(span.ends.len()).unwrap_or(u32::MAX);
        for i in (0..span.listed.len()).rev() {
            let Some(last) = bound.checked_sub(1) else {
                return false;
            };
            span.listed[i].high = span.listed[i].high.min(last);
            if !span.listed[i].fixed {
                span.listed[i].high = self.highest(beside, span, i);
            }
            if span.listed[i].high < span.listed[i].low {
                return false;
            }
            bound = span.listed[i].high;
        }
        true
    }

    /// The first block whose end a listed hash may stand at; a number above its last block if there
    /// is none.
    fn lowest(&self, beside: Option<AskedSalt>, span: &SparseSpan, i: usize) -> u32 {
        let rivals = self.rivals(span, i);
        let listed = &span.listed[i];
        let is_taken = |block| self.is_end_taken(beside, span, listed.slot, block);
        let mut low = listed.low;
        while low <= listed.high {
            let up = rivals
                .iter()
                .map(|rival| rival.up(self.limbo.field, span, low));
            let next = match up.max() {
                Some(up) if up > low => up,
                Some(_) | None => low + u32::from(is_taken(low)),
            };
            if next == low || !self.context.effort.spend(1) {
                break;
            }
            low = next;
        }
        low
    }

    /// The last block whose end a listed hash may stand at. The caller knows that the first one is
    /// possible.
    fn highest(&self, beside: Option<AskedSalt>, span: &SparseSpan, i: usize) -> u32 {
        let rivals = self.rivals(span, i);
        let listed = &span.listed[i];
        let is_taken = |block| self.is_end_taken(beside, span, listed.slot, block);
        let mut high = listed.high;
        while high > listed.low {
            let down = rivals
                .iter()
                .map(|rival| rival.down(self.limbo.field, span, high));
            let next = match down.min() {
                Some(down) if down < high => down.max(listed.low),
                Some(_) | None => high - u32::from(is_taken(high)),
            };
            if next == high || !self.context.effort.spend(1) {
                break;
            }
            high = next;
        }
        high
    }

    fn is_end_taken(
        &self,
        beside: Option<AskedSalt>,
        span: &SparseSpan,
        slot: SlotId,
        block: u32,
    ) -> bool {
        let end = span.end(self.limbo.field, block);
        beside.is_some_and(|beside| beside.is_taken(self.limbo, slot, end, self.context))
    }

    fn rivals(&self, span: &SparseSpan, i: usize) -> SmallVec<[Rival<'_>; 2]> {
        let Some(entry) = span.listed[i].entry else {
            return SmallVec::new();
        };
        let others = self.limbo.entries[entry.0].spans.iter();
        others
            .filter(|(other, _)| *other != self.id)
            .take_while(|_| self.context.effort.spend(1))
            .filter_map(|&(other, at)| {
                let other = &self.limbo.spans[other.0];
                let (listed, start) = (&other.listed[at as usize], self.limbo.resolve(other.start));
                let is_rival = !listed.fixed && start.frame == span.start.frame;
                is_rival.then(|| Rival {
                    span: other,
                    start: start.step,
                    first: start.step.tokens + other.ends[listed.low as usize].tokens,
                    last: start.step.tokens + other.ends[listed.high as usize].tokens,
                })
            })
            .collect()
    }
}
