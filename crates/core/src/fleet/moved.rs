//! Where entries of a table went when its end was given back, and what a table could give back.

/// Where what stood at the end of a table stands now.
#[derive(Debug)]
pub(super) struct Moved {
    /// The table ends here now.
    pub end: u32,
    /// For each place from there on: the place that what stood there has now, if anything did.
    pub to: Vec<Option<u32>>,
}

impl Moved {
    /// Where something stands now, by where it stood.
    #[must_use]
    pub(super) fn place_of(&self, place: u32) -> Option<u32> {
        match place.checked_sub(self.end) {
            None => Some(place),
            Some(at) => self.to[at as usize],
        }
    }
}

/// Bytes that a hash table keeps beyond what its entries need.
#[must_use]
pub(super) fn idle_in_table(allocated: usize, len: usize, entry: usize) -> usize {
    // Room for one more, a control byte each, and a group of them.
    let buckets = (len.max(3) + 1) * 8 / 7 + 1;
    allocated.saturating_sub(buckets.next_power_of_two() * (entry + 1) + 16)
}
