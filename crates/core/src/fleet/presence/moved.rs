//! Where the entries at the end of a table moved when the end was cut off, and how much a table
//! could give back.

/// The new places of the entries that stood at the end of a table.
#[derive(Debug)]
pub(in crate::fleet) struct Moved {
    /// The new end of the table.
    pub end: u32,
    /// For each place from the new end on, the new place of the entry that stood there, if there
    /// was one.
    pub to: Vec<Option<u32>>,
}

impl Moved {
    /// The new place of the entry that stood at `place`.
    #[must_use]
    pub(in crate::fleet) fn place_of(&self, place: u32) -> Option<u32> {
        match place.checked_sub(self.end) {
            None => Some(place),
            Some(at) => self.to[at as usize],
        }
    }
}

/// The bytes of spare capacity in a hash table.
#[must_use]
pub(in crate::fleet) fn idle_in_table(allocated: usize, len: usize, entry: usize) -> usize {
    // The table keeps room for one more entry, one control byte per bucket, and one more group of
    // these.
    let buckets = (len.max(3) + 1) * 8 / 7 + 1;
    allocated.saturating_sub(buckets.next_power_of_two() * (entry + 1) + 16)
}
