//! Which boundaries of a request become checkpoints, under retention by value.

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::overlaps::Overlaps;
use super::{Checkpoints, Origin};
use crate::blocks::Pool;
use crate::cache::request::Request;

impl Checkpoints {
    /// Notes that a request starts: what its prompt shares with earlier ones is learned from.
    pub(in crate::cache) fn note_start(&mut self, request: &Request) {
        let boundaries = *self.boundaries();
        if let Some(overlaps) = &mut self.overlaps {
            let usable = request.num_prompt_tokens.saturating_sub(1);
            let prefixes = boundaries.prefixes(request, usable);
            overlaps.note(
                request.num_prompt_tokens,
                prefixes,
                boundaries.hit_alignment,
            );
        }
    }

    /// The lengths at which a request's steps should end, so what many requests are expected to
    /// share can be resumed. A draft head drops one unit of every hit.
    pub(in crate::cache) fn stops(&self, request: u64) -> impl Iterator<Item = u32> {
        let lengths = self
            .overlaps
            .as_ref()
            .map(|overlaps| overlaps.stops(request));
        self.resumed_at(lengths.unwrap_or_default())
    }

    fn resumed_at<'a>(&self, lengths: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        let boundaries = *self.boundaries();
        let dropped = if boundaries.has_eagle {
            boundaries.hit_alignment
        } else {
            0
        };
        lengths.iter().map(move |length| length - dropped)
    }

    /// Notes that a request resumes at a boundary, having reused this many tokens.
    pub(in crate::cache) fn note_resume(
        &mut self,
        pool: &mut Pool,
        request: &mut Request,
        num_tokens: u32,
    ) {
        let boundary = num_tokens + self.boundaries().replay_tokens;
        let ending = self.resume(pool, request, boundary);
        request.by_value.resume(boundary, ending);
    }

    /// Notes that more of a request is registered: its tokens up to `num_tokens`.
    pub(in crate::cache) fn note_progress(
        &mut self,
        pool: &mut Pool,
        request: &mut Request,
        num_tokens: u32,
    ) {
        if !self.are_sparse() {
            return;
        }
        let settled = self.boundaries().settled(num_tokens);
        let Some(passed) = request.by_value.advance(settled) else {
            return;
        };
        for (end, origin) in self.expected(request, passed) {
            if end > 0 {
                self.keep(pool, request, end, origin);
            }
        }
    }

    /// Notes that a request is about to give its blocks back, so its last boundary becomes a
    /// checkpoint.
    pub(in crate::cache) fn note_end(&mut self, pool: &mut Pool, request: &Request) {
        let end = self.boundaries().settled(request.num_known_computed());
        self.end(pool, request, end);
    }

    /// The boundaries within `range` at which requests are expected to resume, in order.
    fn expected(
        &self,
        request: &Request,
        range: RangeInclusive<u32>,
    ) -> SmallVec<[(u32, Origin); 8]> {
        let unit = self.boundaries().hit_alignment;
        let interval = self.interval();
        let first = (range.start() - 1) / interval.max(1) + 1;
        let multiples = (first..).map(|count| count.saturating_mul(interval));
        let multiples = multiples.take_while(|end| interval > 0 && end <= range.end());
        let others = self.boundaries().expected(request).into_iter();
        let others = others.map(|boundary| {
            let is_junction = boundary == request.junction;
            let origin = if is_junction {
                Origin::Junction
            } else {
                Origin::End
            };
            (boundary / unit * unit, origin)
        });
        let overlaps = self.overlaps.as_ref().map(Overlaps::expected);
        let overlaps = self.resumed_at(overlaps.unwrap_or_default());
        let all = multiples.map(|end| (end, Origin::Interval)).chain(others);
        let all = all.chain(overlaps.map(|end| (end, Origin::Overlap)));
        let mut ends: SmallVec<_> = all.filter(|(end, _)| range.contains(end)).collect();
        ends.sort_by_key(|&(end, _)| end);
        ends
    }
}
