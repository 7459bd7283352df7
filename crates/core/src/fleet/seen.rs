//! What was there once: boundaries that nobody names any longer, and those that were promised.
//!
//! ```text
//!           newest                 oldest
//! row 0     k  k  k  k  k  k  .  .  .  .       a key stands in the row that its bits tell;
//! row 1     k  k  k  k  k  k  k  k  k  k  -->  in a full row the oldest key leaves for a new one
//! row 2     k  k  k  .  .  .  .  .  .  .
//!
//! waiting   k  k  k  k  k  k  k  k             what was noted since somebody last asked
//! ```
//! Invariant: a row has each key once, the one that was noted last first, and room only at its end.
//! To note a key takes a few nanoseconds, because it only waits. It comes into its row, somewhere in
//! memory, when somebody asks: whoever never asks never pays for it. Half of the memory is for rows,
//! which have their full size from the first key on; the other half is for keys that wait, of which the
//! oldest leave too. What leaves is counted.

use std::collections::VecDeque;
use std::hint::black_box;

use crate::prefix::PrefixKey;
use crate::secret::{Secret, Spreader};

/// Keys per row: two lines of a cache. Full rows are rare while the table is a third full.
const ROW: usize = 16;

/// So many rows are fetched from memory at once.
const FETCHED: usize = 32;

/// The room for keys that wait which is kept when none does.
const WAITING_KEPT: usize = 1 << 12;

/// A key as it is stored: 1 more than the key, because 0 means that there is room.
type Kept = u64;

/// The keys that were noted last, as many as the memory holds.
#[derive(Debug)]
pub(in crate::fleet) struct Seen {
    spread: Spreader,
    rows: Vec<[Kept; ROW]>,
    /// The rows that the memory holds; they are made when the first key comes.
    num_rows: usize,
    num_keys: usize,
    /// The keys that were noted and have not come into their rows, the oldest first.
    waiting: VecDeque<PrefixKey>,
    num_forgotten: u64,
}

impl Seen {
    /// An empty table that takes at most this many bytes.
    #[must_use]
    pub(in crate::fleet) fn new(secret: &Secret, limit_bytes: usize) -> Self {
        let most = 1 << 32; // A row is found by 32 bits.
        Self {
            spread: secret.spread(),
            rows: Vec::new(),
            num_rows: (limit_bytes / 2 / size_of::<[Kept; ROW]>()).min(most),
            num_keys: 0,
            waiting: VecDeque::new(),
            num_forgotten: 0,
        }
    }

    /// How many keys the rows hold; so many may wait, too.
    fn most(&self) -> usize {
        self.num_rows * ROW
    }

    /// Remembers a key. A table without rows forgets it at once.
    pub(in crate::fleet) fn note(&mut self, key: PrefixKey) {
        let (len, most) = (self.waiting.len(), self.most());
        if len == most {
            self.num_forgotten += 1;
            if self.waiting.pop_front().is_none() {
                return;
            }
        } else if len == self.waiting.capacity() {
            self.waiting.reserve_exact((most - len).min(len.max(ROW)));
        }
        self.waiting.push_back(key);
    }

    /// Brings at most this many keys into their rows. Returns how many still wait.
    pub(in crate::fleet) fn settle(&mut self, most: usize) -> usize {
        if self.rows.is_empty() && !self.waiting.is_empty() {
            self.rows = vec![[0; ROW]; self.num_rows];
        }
        let mut left = most.min(self.waiting.len());
        while left > 0 {
            let count = left.min(FETCHED);
            let mut some = [0; FETCHED];
            for (place, key) in some.iter_mut().zip(self.waiting.drain(..count)) {
                *place = key;
            }
            black_box(self.fetch(&some[..count]));
            for &key in &some[..count] {
                self.note_one(key);
            }
            left -= count;
        }
        if self.waiting.is_empty() {
            self.waiting.shrink_to(WAITING_KEPT);
        }
        self.waiting.len()
    }

    /// Looks at the rows of keys that come into them one by one next. These looks do not depend on
    /// each other, so their fetches from memory overlap. Returns how many rows are full.
    fn fetch(&self, keys: &[PrefixKey]) -> usize {
        let rows = keys.iter().map(|&key| &self.rows[self.row_of(key)]);
        rows.filter(|row| row[0] != 0 && row[ROW - 1] != 0).count()
    }

    /// Makes a key the newest of its row.
    fn note_one(&mut self, key: PrefixKey) {
        let (at, entry) = (self.row_of(key), key + 1);
        let row = &mut self.rows[at];
        // Every place is looked at: where a search ends cannot be foreseen, and would be waited for.
        let place = (0..ROW).fold(ROW - 1, |place, i| if row[i] == entry { i } else { place });
        let left = row[place];
        if left == entry {
            row.copy_within(..place, 1);
        } else {
            row.copy_within(..ROW - 1, 1);
        }
        row[0] = entry;
        self.num_keys += usize::from(left == 0);
        self.num_forgotten += u64::from(left != 0 && left != entry);
    }

    /// Counts boundaries that are forgotten without a key.
    pub(in crate::fleet) fn lose(&mut self, num_boundaries: u64) {
        self.num_forgotten += num_boundaries;
    }

    /// Whether a key is remembered, unless it waits.
    #[must_use]
    pub(in crate::fleet) fn has(&self, key: PrefixKey) -> bool {
        let row = self.rows.get(self.row_of(key));
        row.is_some_and(|row| row.contains(&(key + 1)))
    }

    /// The row of a key.
    fn row_of(&self, key: PrefixKey) -> usize {
        let at = (u64::from(self.spread.tag(key)) * self.num_rows as u64) >> 32;
        usize::try_from(at).unwrap_or(usize::MAX)
    }

    /// How many keys are remembered, without those that wait.
    #[must_use]
    pub(in crate::fleet) fn len(&self) -> usize {
        self.num_keys
    }

    /// How many boundaries were forgotten; each counts as often as it was.
    #[must_use]
    pub(in crate::fleet) fn num_forgotten(&self) -> u64 {
        self.num_forgotten
    }

    /// The bytes held.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<[Kept; ROW]>()
            + self.waiting.capacity() * size_of::<PrefixKey>()
    }

    /// Panics unless each key stands once, in its own row and without room before it.
    pub(in crate::fleet) fn check_integrity(&self) {
        let mut num_keys = 0;
        for (at, row) in self.rows.iter().enumerate() {
            let keys: Vec<PrefixKey> = row.iter().map_while(|e| e.checked_sub(1)).collect();
            assert!(
                row[keys.len()..].iter().all(|&e| e == 0),
                "row {at} has room before a key"
            );
            for (place, &key) in keys.iter().enumerate() {
                assert_eq!(self.row_of(key), at, "the row of a key");
                assert!(!keys[..place].contains(&key), "row {at} has a key twice");
            }
            num_keys += keys.len();
        }
        assert_eq!(num_keys, self.num_keys, "keys in rows");
        assert!(self.waiting.len() <= self.most(), "keys that wait");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::prefix::scatter;

    fn table(limit_bytes: usize) -> Seen {
        Seen::new(&Secret::new([7; 32]), limit_bytes)
    }

    #[test]
    fn each_row_has_the_keys_that_were_noted_last() {
        let mut seen = table(2 * 8 * 128);
        let mut rows: HashMap<usize, Vec<PrefixKey>> = HashMap::new();
        let mut forgotten = 0;
        for step in 0..5_000 {
            let key = scatter(scatter(step) % 300);
            seen.note(key);
            let row = rows.entry(seen.row_of(key)).or_default();
            row.retain(|&other| other != key);
            row.insert(0, key);
            forgotten += u64::from(row.len() > ROW);
            row.truncate(ROW);
            if step % 100 == 0 {
                seen.check_integrity();
                while seen.settle(7) > 0 {}
                seen.check_integrity();
                let known = |n| rows.values().any(|row| row.contains(&scatter(n)));
                assert!((0..300).all(|n| seen.has(scatter(n)) == known(n)));
                assert_eq!(seen.num_forgotten(), forgotten);
            }
        }
        seen.settle(usize::MAX);
        assert_eq!(seen.len(), rows.values().map(Vec::len).sum::<usize>());
        assert!(rows.len() == 8 && forgotten > 1_000);
    }

    #[test]
    fn memory_has_a_limit_whether_anybody_asks_or_not() {
        for asks in [false, true] {
            let mut seen = table(2_000);
            assert_eq!(seen.bytes(), 0);
            for key in 0..10_000 {
                seen.note(scatter(key));
                if asks && key % 10 == 0 {
                    seen.settle(usize::MAX);
                }
                assert!(seen.bytes() <= 2_000);
            }
            seen.settle(usize::MAX);
            let all = seen.len() as u64 + seen.num_forgotten();
            assert_eq!(all, 10_000, "each key is remembered or counted");
            assert!(seen.has(scatter(9_999)) && !seen.has(scatter(0)));
        }
    }

    #[test]
    fn a_table_without_memory_forgets_at_once() {
        let mut seen = table(255);
        seen.note(5);
        assert!(seen.settle(1) == 0 && !seen.has(5));
        assert_eq!((seen.bytes(), seen.len(), seen.num_forgotten()), (0, 0, 1));
    }

    #[test]
    fn nothing_leaves_a_table_that_is_a_third_full() {
        let mut seen = table(2 << 20);
        for key in 0..(1 << 17) * 3 / 10 {
            seen.note(scatter(key));
        }
        seen.settle(usize::MAX);
        assert_eq!(seen.num_forgotten(), 0);
    }
}
