//! A set of slots: a bit for each slot, and a bit for each word of them that is not zero, so that the
//! members of a large set with few are found quickly.

use super::SlotId;

const BITS: u32 = u64::BITS;

/// A set of slots.
#[derive(Debug, Default)]
pub(super) struct SlotSet {
    words: Vec<u64>,
    /// Which words are not zero.
    used: Vec<u64>,
    len: usize,
}

/// The word and the bit of a number.
const fn address(number: u32) -> (usize, u64) {
    ((number / BITS) as usize, 1 << (number % BITS))
}

/// The number of the highest bit of a word.
const fn highest(word: u64) -> u32 {
    BITS - 1 - word.leading_zeros()
}

impl SlotSet {
    pub(super) fn contains(&self, slot: SlotId) -> bool {
        let (word, bit) = address(slot.0);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Adds a slot; false if it is in the set.
    pub(super) fn insert(&mut self, slot: SlotId) -> bool {
        let (word, bit) = address(slot.0);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
            self.used.resize(word / BITS as usize + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.used[word / BITS as usize] |= 1 << (word % BITS as usize);
        self.len += usize::from(is_new);
        is_new
    }

    /// Removes a slot; false if it is not in the set.
    pub(super) fn remove(&mut self, slot: SlotId) -> bool {
        let (word, bit) = address(slot.0);
        if !self.contains(slot) {
            return false;
        }
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            self.used[word / BITS as usize] &= !(1 << (word % BITS as usize));
        }
        self.len -= 1;
        true
    }

    /// Removes the last members, at most this many, and returns them from the first to the last.
    pub(super) fn take(&mut self, most: usize) -> Vec<SlotId> {
        let mut taken = Vec::with_capacity(most.min(self.len));
        for at in (0..self.used.len()).rev() {
            while taken.len() < most && self.used[at] != 0 {
                let word = u32::try_from(at).unwrap_or(u32::MAX) * BITS + highest(self.used[at]);
                let bit = highest(self.words[word as usize]);
                let slot = SlotId(word * BITS + bit);
                self.remove(slot);
                taken.push(slot);
            }
        }
        taken.reverse();
        taken
    }

    /// How many members.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Cuts off the slots from this number on, which are not in the set, and gives back their memory.
    pub(super) fn cut_off(&mut self, end: usize) {
        let words = end.div_ceil(BITS as usize);
        self.words.truncate(words);
        self.words.shrink_to_fit();
        self.used.truncate(words.div_ceil(BITS as usize));
        self.used.shrink_to_fit();
    }

    /// Bytes held, by capacity.
    pub(super) fn bytes(&self) -> usize {
        (self.words.capacity() + self.used.capacity()) * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_set_of_slots_has_what_a_plain_one_has() {
        let (mut set, mut model) = (SlotSet::default(), BTreeSet::new());
        let mut number: u32 = 1;
        for step in 0..20_000 {
            number = number.wrapping_mul(0x915F_77F5).wrapping_add(1);
            let slot = number >> 18;
            match step % 5 {
                0 => assert_eq!(set.remove(SlotId(slot)), model.remove(&slot)),
                _ => assert_eq!(set.insert(SlotId(slot)), model.insert(slot)),
            }
            if step % 997 == 0 {
                let taken: Vec<u32> = set.take(300).into_iter().map(|slot| slot.0).collect();
                let at = model.len().saturating_sub(300);
                let last: Vec<u32> = model.iter().copied().skip(at).collect();
                assert_eq!(taken, last);
                model.retain(|slot| !last.contains(slot));
            }
            assert_eq!(set.len(), model.len());
        }
        assert!((0..1 << 14).all(|slot| set.contains(SlotId(slot)) == model.contains(&slot)));
        set.take(usize::MAX);
        assert!(set.len() == 0 && set.words.iter().chain(&set.used).all(|&word| word == 0));
    }
}
