//! How long the next victim has waited, for retentions that compare it with something else.

use super::Pool;
use crate::ids::NULL_BLOCK;

/// The lower bits of a count, so a block has room for it. Two times are less than 2^31 apart.
pub(super) type Time = u32;

#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
fn time(count: u64) -> Time {
    count as Time
}

impl Pool {
    /// Sets the time for the blocks that come to wait from now on. It is a count of whatever the
    /// caller compares.
    pub fn set_time(&mut self, now: u64) {
        self.now = time(now);
    }

    /// Whether a block waits.
    #[must_use]
    pub fn has_victim(&self) -> bool {
        self.blocks[NULL_BLOCK.index()].next != NULL_BLOCK
    }

    /// Whether a resume may need the next victim, and the block came to wait after this time.
    #[must_use]
    pub fn victim_waits_since_after(&self, before: u64) -> bool {
        let next = self.blocks[NULL_BLOCK.index()].next;
        let victim = &self.blocks[next.index()];
        let age = victim.waits_since.wrapping_sub(time(before));
        !victim.is_useless && 0 < age && age <= Time::MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Author, Pool};
    use crate::hash::Digest;
    use crate::ids::BlockId;
    use crate::secret::Secret;

    /// A pool whose only block is findable and came to wait at this time.
    fn waiting_since(now: u64) -> Pool {
        let mut pool = Pool::new(2, 1, &Secret::new([7; 32]));
        let block = pool.take(|_, _| {});
        assert!(!pool.has_victim());
        let digest = Digest::from_bytes(&[7; 32]).expect("32 bytes");
        let key = pool.key_of(&digest, 0, None);
        pool.register(block, key, 16, Author::NOBODY);
        pool.set_time(now);
        pool.free([block]);
        pool
    }

    #[test]
    fn the_next_victim_came_to_wait_after_earlier_times_only() {
        for now in [5, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 40] {
            let pool = waiting_since(now);
            assert!(pool.has_victim());
            assert!(pool.victim_waits_since_after(now - 1));
            assert!(pool.victim_waits_since_after(now.saturating_sub(1 << 30)));
            assert!(!pool.victim_waits_since_after(now));
            assert!(!pool.victim_waits_since_after(now + 1));
        }
    }

    #[test]
    fn a_block_that_no_resume_needs_goes_before_everything() {
        let mut pool = waiting_since(5);
        pool.expedite(BlockId(1));
        assert!(!pool.victim_waits_since_after(0));
        let untouched = Pool::new(2, 1, &Secret::new([7; 32]));
        assert!(!untouched.victim_waits_since_after(1 << 31));
    }
}
