//! What the hashes at each boundary of a request cover beyond that boundary: the lookahead.
//!
//! ```text
//! tokens     |  unit  |  unit  |  unit  |
//! lookahead           |++++|   |++++|
//! media                 m             n         m is in the first identity, n in none
//! ```
//! All boundaries are handled in one pass, whatever the lookahead. The lookahead is learned from an
//! event, and a request has many boundaries, so reading each lookahead by itself could be made
//! expensive.

use super::prompt::MediaMark;
use super::texts::Marks;
use crate::fleet::effort::Effort;
use crate::prefix::{Step, Unit, minus, plus};

/// Computes what the hashes of a chain cover after each boundary.
pub(in crate::fleet) struct Lookahead<'a> {
    /// The numbers that texts and lookahead tokens add to keys.
    pub(in crate::fleet) marks: &'a Marks,
    /// The prepared step from one boundary to the next.
    pub(in crate::fleet) unit: &'a Unit,
    /// How many tokens after a boundary the hash covers: at least 1.
    pub(in crate::fleet) num_tokens: u32,
    /// The effort in which the work is counted.
    pub(in crate::fleet) effort: &'a Effort,
}

impl Lookahead<'_> {
    /// For each boundary whose lookahead lies within the request: what the lookahead tokens, and
    /// the media that begin among them, add to the identity of the hash.
    #[must_use]
    pub(in crate::fleet) fn aheads(&self, tokens: &[u32], media: &[MediaMark]) -> Vec<u64> {
        let mut aheads = self.token_marks(tokens);
        if !media.is_empty() {
            self.add_media(media, &mut aheads);
        }
        aheads
    }

    fn token_marks(&self, tokens: &[u32]) -> Vec<u64> {
        let (unit, marks, lookahead) = (self.unit, self.marks, self.num_tokens as usize);
        let size = unit.tokens as usize;
        let count = tokens.len().saturating_sub(lookahead) / size;
        if lookahead <= size {
            let ends = (1..=count).map(|i| i * size);
            return ends
                .map(|end| {
                    self.effort.note(lookahead as u64);
                    marks.lookahead(&tokens[end..end + lookahead])
                })
                .collect();
        }
        if count == 0 {
            return Vec::new();
        }
        // The step of a long lookahead takes the prefix before the lookahead to the prefix after
        // it.
        let advance = |to: &mut Step, chunk: &[u32]| {
            self.effort.note(size as u64);
            *to = Step {
                tokens: to.tokens + unit.tokens,
                local: unit.advance(to.local, unit.local(chunk)),
            };
        };
        let (mut before, mut after) = (Step::NONE, unit.field.step_of(&tokens[..lookahead]));
        let chunks = tokens
            .chunks_exact(size)
            .zip(tokens[lookahead..].chunks_exact(size));
        chunks
            .map(|(chunk, later)| {
                advance(&mut before, chunk);
                advance(&mut after, later);
                marks.lookahead_step(unit.field.rest_of(before, after))
            })
            .collect()
    }

    fn add_media(&self, media: &[MediaMark], aheads: &mut [u64]) {
        let field = self.marks.field();
        // Sums over the items from the start, measured from token 0: the sum over a window of items
        // is a difference of two of them.
        let (mut further, mut back) = (field.further(), field.back());
        let mut sum = 0;
        let mut sums = vec![sum];
        for item in media {
            sum = plus(sum, further.times(item.extra, item.offset));
            sums.push(sum);
        }
        let (mut first, mut next) = (0, 0);
        let mut end = 0;
        for ahead in aheads {
            end += self.unit.tokens;
            let begins = |at: usize, before: u32| {
                self.effort.note(1);
                media.get(at).is_some_and(|item| item.offset < before)
            };
            while begins(first, end) {
                first += 1;
            }
            next = next.max(first);
            while begins(next, end.saturating_add(self.num_tokens)) {
                next += 1;
            }
            if next > first {
                let from_start = minus(sums[next], sums[first]);
                let marks = back.times(from_start, end);
                *ahead = plus(*ahead, self.marks.ahead_sum(marks));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    fn in_one_pass(
        marks: &Marks,
        tokens: &[u32],
        media: &[MediaMark],
        unit: u32,
        num_tokens: u32,
        effort: &Effort,
    ) -> Vec<u64> {
        let lookahead = Lookahead {
            marks,
            unit: &Unit::new(marks.field(), unit),
            num_tokens,
            effort,
        };
        lookahead.aheads(tokens, media)
    }

    /// Each boundary by itself, as the documentation of extra keys defines it.
    fn one_by_one(
        marks: &Marks,
        token_ids: &[u32],
        media: &[MediaMark],
        unit: u32,
        lookahead: u32,
    ) -> Vec<u64> {
        let mut found = Vec::new();
        let mut end = unit;
        while (end + lookahead) as usize <= token_ids.len() {
            let tokens = &token_ids[end as usize..(end + lookahead) as usize];
            let items = media.iter().filter_map(|item| {
                let offset = item.offset.checked_sub(end).filter(|o| *o < lookahead)?;
                Some(marks.ahead(item.extra, offset))
            });
            found.push(items.fold(marks.lookahead(tokens), plus));
            end += unit;
        }
        found
    }

    #[test]
    fn one_pass_says_what_each_boundary_says_by_itself() {
        let (marks, effort) = (Marks::new(&Secret::new([7; 32])), Effort::default());
        let tokens: Vec<u32> = (0..97).map(|i| i * 7919 % 1000).collect();
        let ids = ["a", "b", "c", "a"];
        for offsets in [
            vec![],
            vec![0, 3, 3, 95],
            vec![15, 16, 17, 60],
            vec![96, 97, 98, 400],
        ] {
            let media: Vec<MediaMark> = offsets
                .iter()
                .zip(ids)
                .map(|(&offset, id)| MediaMark {
                    offset,
                    extra: marks.media(id),
                })
                .collect();
            for (unit, lookahead) in [(1, 1), (4, 1), (4, 4), (4, 5), (3, 50), (16, 96), (16, 200)]
            {
                assert_eq!(
                    in_one_pass(&marks, &tokens, &media, unit, lookahead, &effort),
                    one_by_one(&marks, &tokens, &media, unit, lookahead),
                    "unit {unit}, lookahead {lookahead}, media at {offsets:?}"
                );
            }
        }
    }

    /// The effort for a prompt with an item at each of its first `num_items` tokens.
    fn looks(num_tokens: u32, unit: u32, lookahead: u32, num_items: u32) -> u64 {
        let marks = Marks::new(&Secret::new([7; 32]));
        let tokens: Vec<u32> = (0..num_tokens).collect();
        let items = (0..num_items).map(|offset| MediaMark { offset, extra: 7 });
        let media: Vec<MediaMark> = items.collect();
        let effort = Effort::default();
        let _ = in_one_pass(&marks, &tokens, &media, unit, lookahead, &effort);
        effort.spent()
    }

    #[test]
    fn a_lookahead_costs_the_same_however_long_it_is() {
        for unit in [1, 16] {
            for lookahead in [1, 16, 17, 1_000, 4_000] {
                let looks = looks(8_192, unit, lookahead, 0);
                let boundaries = (8_192 - lookahead) / unit;
                let most = 2 * boundaries.min(8_192) * unit;
                assert!(looks >= boundaries.into(), "{unit}, {lookahead}: {looks}");
                assert!(looks <= most.into(), "{unit}, {lookahead}: {looks}");
            }
        }
    }

    #[test]
    fn each_item_is_looked_at_by_itself_and_not_at_each_boundary() {
        for lookahead in [1, 16, 1_000] {
            let [none, once, twice] = [0, 4_096, 8_192].map(|n| looks(8_192, 1, lookahead, n));
            assert!(once >= none + 4_096, "{lookahead}: {none}, {once}");
            assert!(twice <= none + 5 * 8_192, "{lookahead}: {none}, {twice}");
        }
    }
}
