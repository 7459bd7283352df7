//! What lies after each boundary of a request within the lookahead of its hashes.
//!
//! ```text
//! tokens     |  unit  |  unit  |  unit  |
//! lookahead           |++++|   |++++|
//! media                 m             n         m is in the first identity, n in none
//! ```
//! All boundaries are read in one pass, whatever the lookahead: it is learned from an event, and a
//! request has many boundaries.

use super::texts::Marks;
use super::walk::Prompt;
use crate::prefix::{Step, Unit, minus, plus};

/// For each boundary whose lookahead (at least 1 token) is whole within the request: what the
/// tokens there, and media that begin among them, add to the identity of a hash.
#[must_use]
pub(super) fn aheads(marks: &Marks, prompt: &Prompt<'_>, unit: &Unit, lookahead: u32) -> Vec<u64> {
    let mut aheads = token_marks(marks, prompt.tokens, unit, lookahead as usize);
    if !prompt.media.is_empty() {
        add_media(marks, prompt, (unit.tokens, lookahead), &mut aheads);
    }
    aheads
}

fn token_marks(marks: &Marks, tokens: &[u32], unit: &Unit, lookahead: usize) -> Vec<u64> {
    let size = unit.tokens as usize;
    let count = tokens.len().saturating_sub(lookahead) / size;
    if lookahead <= size {
        let ends = (1..=count).map(|i| i * size);
        return ends
            .map(|end| marks.lookahead(&tokens[end..end + lookahead]))
            .collect();
    }
    if count == 0 {
        return Vec::new();
    }
    // The step of a long lookahead is what takes the prefix before it to the one after it.
    let advance = |to: &mut Step, chunk: &[u32]| {
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

fn add_media(
    marks: &Marks,
    prompt: &Prompt<'_>,
    (unit, lookahead): (u32, u32),
    aheads: &mut [u64],
) {
    let field = marks.field();
    // Sums from the start, measured from token 0: a window of items is a difference of two.
    let mut sum = 0;
    let mut sums = vec![sum];
    for item in prompt.media {
        sum = plus(sum, field.mark(marks.media(item.id), item.offset));
        sums.push(sum);
    }
    let (mut first, mut next) = (0, 0);
    let mut end = 0;
    for ahead in aheads {
        end += unit;
        let begins = |at: usize, before: u32| {
            prompt
                .media
                .get(at)
                .is_some_and(|item| item.offset < before)
        };
        while begins(first, end) {
            first += 1;
        }
        next = next.max(first);
        while begins(next, end.saturating_add(lookahead)) {
            next += 1;
        }
        if next > first {
            let from_start = minus(sums[next], sums[first]);
            let step = Step {
                tokens: end,
                local: 0,
            };
            *ahead = plus(*ahead, field.undo(step, from_start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::MediaItem;
    use crate::secret::Secret;

    /// Each boundary by itself, as the page on extra keys says it.
    fn one_by_one(marks: &Marks, prompt: &Prompt<'_>, unit: u32, lookahead: u32) -> Vec<u64> {
        let mut found = Vec::new();
        let mut end = unit;
        while (end + lookahead) as usize <= prompt.tokens.len() {
            let tokens = &prompt.tokens[end as usize..(end + lookahead) as usize];
            let items = prompt.media.iter().filter_map(|item| {
                let offset = item.offset.checked_sub(end).filter(|o| *o < lookahead)?;
                Some(marks.field().mark(marks.media(item.id), offset))
            });
            found.push(items.fold(marks.lookahead(tokens), plus));
            end += unit;
        }
        found
    }

    #[test]
    fn one_pass_says_what_each_boundary_says_by_itself() {
        let marks = Marks::new(&Secret::new([7; 32]));
        let tokens: Vec<u32> = (0..97).map(|i| i * 7919 % 1000).collect();
        let ids = ["a", "b", "c", "a"];
        for offsets in [
            vec![],
            vec![0, 3, 3, 95],
            vec![15, 16, 17, 60],
            vec![96, 97, 98, 400],
        ] {
            let media: Vec<MediaItem<'_>> = offsets
                .iter()
                .zip(ids)
                .map(|(&offset, id)| MediaItem {
                    id,
                    offset,
                    length: 2,
                })
                .collect();
            let prompt = Prompt {
                tokens: &tokens,
                lora: None,
                salt: None,
                media: &media,
            };
            for (unit, lookahead) in [(1, 1), (4, 1), (4, 4), (4, 5), (3, 50), (16, 96), (16, 200)]
            {
                assert_eq!(
                    aheads(&marks, &prompt, &Unit::new(marks.field(), unit), lookahead),
                    one_by_one(&marks, &prompt, unit, lookahead),
                    "unit {unit}, lookahead {lookahead}, media at {offsets:?}"
                );
            }
        }
    }
}
