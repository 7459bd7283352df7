//! Which blocks a retention keeps findable.
//!
//! ```text
//! segments of 4 blocks, a window that needs 2    | . . x x | . . x x | . . x x |
//! ```

use crate::cache::config::Retention;
use crate::cache::group::{Group, Kind, Tail};

/// Which blocks of a group a retention keeps, given where resumes are expected.
#[derive(Debug, Clone, Copy)]
pub(in crate::cache) struct Keep<'a> {
    group: &'a Group,
    /// The number of blocks of a segment; each segment keeps its tail.
    segment: Option<u32>,
    tail: Tail,
    /// The tails that are kept end at multiples of this many tokens.
    alignment: u32,
    boundaries: &'a [u32],
}

impl<'a> Keep<'a> {
    /// `None` means that every block is kept. `boundaries` are the token positions where a resume
    /// is expected.
    pub(in crate::cache) fn new(
        group: &'a Group,
        retention: Retention,
        alignment: u32,
        boundaries: &'a [u32],
    ) -> Option<Self> {
        let tail = group.tail()?;
        let is_state = matches!(group.kind, Kind::State { .. });
        if !is_state && !alignment.is_multiple_of(group.block) {
            return None;
        }
        let (segment, boundaries) = match retention {
            Retention::Dense | Retention::ByValue(_) if is_state => return None,
            Retention::Dense | Retention::ByValue(_) => (Some(alignment / group.block), &[][..]),
            Retention::Interval(0) => (None, boundaries),
            Retention::Interval(tokens) => (Some(tokens / group.block), boundaries),
        };
        let is_all = segment.is_some_and(|blocks| tail.blocks >= blocks);
        (!is_all).then_some(Self {
            group,
            segment,
            tail,
            alignment,
            boundaries,
        })
    }

    /// Whether the block at a position is kept.
    pub(in crate::cache) fn keeps(&self, block: u32) -> bool {
        let in_segment = self.segment.is_some_and(|blocks| {
            block >= self.tail.beyond
                && (block - self.tail.beyond) % blocks >= blocks - self.tail.blocks
        });
        in_segment
            || self.boundaries.iter().any(|&boundary| {
                let aligned = boundary / self.alignment * self.alignment;
                let end = aligned / self.group.block + self.tail.beyond;
                (end.saturating_sub(self.tail.blocks)..end).contains(&block)
            })
    }
}
