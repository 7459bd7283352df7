//! The ranks that one evaluation of the rule answers for: up to 64, each with a lane of its words.
//!
//! Ranks of one word of the planes are in the lanes of their bits, so the words are read as they are.
//! Where few ranks of each word are asked about, those of several words are brought together.

use smallvec::{SmallVec, smallvec};

/// Of a word with at most so many ranks, reading them one by one costs less than another evaluation.
const FEW: u32 = 8;

/// Some ranks of one word of the planes.
#[derive(Debug, Clone, Copy)]
struct Part {
    word: u16,
    mask: u64,
    /// The lane of its first rank, if the lanes are of several words; the others follow.
    first: u32,
}

impl Part {
    fn len(self) -> u32 {
        self.mask.count_ones()
    }

    /// Its ranks, as bits of its word.
    fn bits(self) -> impl Iterator<Item = u32> {
        let mut mask = self.mask;
        std::iter::from_fn(move || {
            let bit = mask.trailing_zeros();
            mask &= mask.wrapping_sub(1);
            (bit < u64::BITS).then_some(bit)
        })
    }
}

/// What the lanes of words stand for.
#[derive(Debug, Clone)]
pub(in crate::fleet) struct Lanes {
    parts: SmallVec<[Part; 1]>,
}

impl Lanes {
    /// These ranks of one word.
    #[must_use]
    pub(in crate::fleet) fn of(word: u16, mask: u64) -> Self {
        let first = 0;
        Self {
            parts: smallvec![Part { word, mask, first }],
        }
    }

    /// Those of the lanes of one word that are in `masks`, by word.
    #[must_use]
    pub(in crate::fleet) fn within(&self, masks: &[u64]) -> Self {
        let Part { word, mask, .. } = self.parts[0];
        Self::of(word, mask & masks[usize::from(word)])
    }

    /// Whether the lanes are of this word alone.
    #[must_use]
    pub(in crate::fleet) fn has_word(&self, word: u16) -> bool {
        self.is_one_word() && self.parts[0].word == word
    }

    /// Adds a rank of the one word.
    pub(in crate::fleet) fn add(&mut self, bit: u64) {
        self.parts[0].mask |= bit;
    }

    /// Adds the ranks of another word, if they are few, and there is room. Returns whether it did.
    pub(in crate::fleet) fn join(&mut self, other: &Self) -> bool {
        let (len, part) = (self.len(), other.parts[0]);
        let are_few = self.parts[0].len().max(part.len()) <= FEW;
        let joins = are_few && len + part.len() <= u64::BITS;
        if joins {
            self.parts.push(Part { first: len, ..part });
        }
        joins
    }

    /// Whether they are the ranks of one word, in the lanes of their bits.
    fn is_one_word(&self) -> bool {
        self.parts.len() == 1
    }

    fn len(&self) -> u32 {
        self.parts.last().map_or(0, |part| part.first + part.len())
    }

    /// The lanes that stand for a rank.
    #[must_use]
    pub(in crate::fleet) fn mask(&self) -> u64 {
        if self.is_one_word() {
            return self.parts[0].mask;
        }
        u64::MAX >> (u64::BITS - self.len())
    }

    /// The ranks by column, each with its lane.
    pub(in crate::fleet) fn ranks(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let one_word = self.is_one_word();
        self.parts.iter().flat_map(move |part| {
            let lanes = (part.first..).zip(part.bits());
            lanes.map(move |(lane, bit)| {
                let lane = if one_word { bit } else { lane };
                (usize::from(part.word) * 64 + bit as usize, lane as usize)
            })
        })
    }

    /// The lane of a rank, by column, if one stands for it.
    #[must_use]
    pub(in crate::fleet) fn lane(&self, column: usize) -> Option<usize> {
        let (word, bit) = (column / 64, 1 << (column % 64));
        let part = (self.parts.iter())
            .find(|part| usize::from(part.word) == word && part.mask & bit != 0)?;
        let before = (part.mask & (bit - 1)).count_ones();
        let lane = part.first + before;
        Some(if self.is_one_word() {
            column % 64
        } else {
            lane as usize
        })
    }

    /// The words that have the ranks, each with what is to be read of it: all, or its bits with their
    /// lanes.
    pub(in crate::fleet) fn words(
        &self,
    ) -> impl Iterator<
        Item = (
            u16,
            Option<impl Iterator<Item = (u32, u32)> + Clone + use<>>,
        ),
    > + '_ {
        let one_word = self.is_one_word();
        self.parts.iter().map(move |&part| {
            let mask = part.mask;
            let bits = (0..u64::BITS).filter(move |bit| mask >> bit & 1 != 0);
            (part.word, (!one_word).then(|| bits.zip(part.first..)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_of_one_word_have_the_lanes_of_their_bits() {
        let lanes = Lanes::of(2, 0b1010).within(&[0, 0, 0b1110, 0]);
        assert_eq!(lanes.mask(), 0b1010);
        assert_eq!(lanes.ranks().collect::<Vec<_>>(), [(129, 1), (131, 3)]);
        assert_eq!(
            (lanes.lane(131), lanes.lane(130), lanes.lane(3)),
            (Some(3), None, None)
        );
    }

    #[test]
    fn the_ranks_of_several_words_have_lanes_in_a_row() {
        let mut lanes = Lanes::of(0, 0b1010);
        assert!(lanes.join(&Lanes::of(3, 1 << 63)) && lanes.join(&Lanes::of(4, 0b11)));
        assert!(!lanes.join(&Lanes::of(5, u64::MAX >> 4)));
        assert!(!Lanes::of(0, u64::MAX).join(&Lanes::of(1, 1)));
        let ranks: Vec<_> = lanes.ranks().collect();
        assert_eq!(ranks, [(1, 0), (3, 1), (255, 2), (256, 3), (257, 4)]);
        assert!(
            ranks
                .iter()
                .all(|&(column, lane)| lanes.lane(column) == Some(lane))
        );
        assert_eq!(lanes.mask(), 0b1_1111);
    }
}
