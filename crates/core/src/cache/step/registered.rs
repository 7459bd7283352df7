//! The step at hand: which blocks were registered in it, and do not hold what their hashes say
//! before it has run.
//!
//! ```text
//! start_step    a step begins; the step before has run
//! allocate      registers blocks that the step will write: noted here
//! take_work     the device has been given the step, and runs it
//! ```
//! A request that gives its blocks back before the device has the step takes its part out of the
//! step, so what was registered for it would never be written. It is forgotten again. So is what a
//! step that failed was to write.

use crate::blocks::BlockId;
use crate::cache::request::Request;

/// A block, and the request that registered it in this step.
type Registered = (u64, BlockId);

/// The step at hand. A cache without steps, and one that follows vLLM, notes nothing.
#[derive(Debug, Clone, Default)]
pub(in crate::cache) struct Steps {
    have_begun: bool,
    registered: Vec<Registered>,
    /// The number of those, from the first, that the device was given.
    num_given: usize,
    /// More than any step can register.
    most: usize,
}

impl Steps {
    pub(in crate::cache) fn new(num_blocks: u32) -> Self {
        Self {
            most: 4 * num_blocks as usize,
            ..Self::default()
        }
    }

    pub(super) fn have_begun(&self) -> bool {
        self.have_begun
    }

    pub(super) fn begin(&mut self) {
        self.have_begun = true;
        self.clear();
    }

    pub(super) fn clear(&mut self) {
        self.registered.clear();
        self.num_given = 0;
    }

    pub(super) fn give(&mut self) {
        if self.registered.len() > self.most {
            self.clear(); // The engine has stopped to begin its steps.
        }
        self.num_given = self.registered.len();
    }

    pub(super) fn note(&mut self, request: &Request, block: BlockId) {
        if self.have_begun {
            self.registered.push((request.id, block));
        }
    }

    /// How many blocks were noted. `settle` takes back what was noted after that.
    pub(in crate::cache) fn num_noted(&self) -> usize {
        self.registered.len()
    }

    /// Notes that only this many blocks are still to be written: the others hold what they should.
    pub(in crate::cache) fn settle(&mut self, num_noted: usize) {
        self.registered.truncate(num_noted);
    }

    /// What is not written if the requests leave the step, or if the step has failed.
    pub(in crate::cache) fn unwritten(
        &self,
        ids: &[u64],
        step_failed: bool,
    ) -> impl Iterator<Item = Registered> {
        let start = if step_failed { 0 } else { self.num_given };
        let of_ids = |(id, _): &&Registered| ids.contains(id);
        self.registered[start..].iter().filter(of_ids).copied()
    }
}
