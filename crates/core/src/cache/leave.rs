//! Requests that give their blocks back: because they are done, or to start over later.

use smallvec::SmallVec;

use super::Cache;
use super::core::Core;
use super::hint::Hint;
use super::request::Request;
use crate::blocks::{Author, BlockId};
use crate::error::{Error, Result};
use crate::hash::Digest;

/// A request that the cache has forgotten, for those who learn from it.
#[derive(Debug)]
pub struct FinishedRequest(Box<Request>);

impl FinishedRequest {
    pub(crate) fn has_computed(&self) -> bool {
        self.0.num_computed_tokens > 0
    }

    /// The tokens that were computed.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.0.num_known_computed()
    }

    pub(crate) fn num_prompt_tokens(&self) -> u32 {
        self.0.num_prompt_tokens
    }

    pub(crate) fn num_hashes(&self) -> usize {
        self.0.hashes.len()
    }

    /// Of its hashes, the last one of each of the first `most` runs of `every`.
    pub(crate) fn hashes_every(
        &self,
        every: u32,
        most: u32,
    ) -> impl ExactSizeIterator<Item = &Digest> {
        self.0.hashes_every(every, most)
    }

    pub(crate) fn hint(&self) -> Hint {
        self.0.by_value.hint
    }

    /// Where the steps ended that computed the prompt.
    pub(crate) fn step_ends(&self) -> &[u32] {
        &self.0.by_value.step_ends
    }
}

impl Cache {
    /// Gives all blocks of requests back, tails first, and forgets the requests, which it returns. What they were to
    /// write in a step that the device was not given is forgotten, and with `step_failed` also what
    /// it was given.
    ///
    /// # Errors
    /// `UnknownRequest`, `GivenTwice`; `InvalidValue` if another request has adopted what they were
    /// to write. Then nothing has changed.
    pub fn release(
        &mut self,
        ids: &[u64],
        step_failed: bool,
    ) -> Result<SmallVec<[FinishedRequest; 4]>> {
        self.leave_step(ids, step_failed)?;
        let mut finished = SmallVec::with_capacity(ids.len());
        for id in ids {
            if let Some(mut request) = self.requests.remove(id) {
                self.core.give_back(&mut request);
                finished.push(self.finish(request));
            }
        }
        Ok(finished)
    }

    /// Gives all blocks of requests back, as `release` does. The requests stay known, with nothing
    /// computed.
    ///
    /// # Errors
    /// The same as for `release`.
    pub fn preempt(&mut self, ids: &[u64], step_failed: bool) -> Result<()> {
        self.leave_step(ids, step_failed)?;
        ids.iter().try_for_each(|&id| {
            self.with(id, |core, request| {
                // The hint is for the end, and this is none: the request itself will return.
                let hint = std::mem::take(&mut request.by_value.hint);
                core.give_back(request);
                request.by_value.hint = hint;
                core.statistics.count_preemption(request);
                request.roll_back(0);
                Ok(())
            })
        })
    }

    /// Forgets a request and hands over its blocks, in the order of the groups. The caller frees
    /// them.
    ///
    /// # Errors
    /// The same as for `release`.
    pub fn pop_blocks(&mut self, id: u64) -> Result<(Vec<BlockId>, FinishedRequest)> {
        self.leave_step(&[id], false)?;
        let mut request = self.requests.remove(&id).ok_or(Error::UnknownRequest(id))?;
        self.core.note_end(&request);
        self.core.forget_kept_states(id);
        let blocks: Vec<BlockId> = request.clear_tables().into_iter().flatten().collect();
        self.core.held.add(blocks.iter().copied());
        Ok((blocks, self.finish(request)))
    }

    /// Learns from a request that has ended how likely others go on from its end.
    fn finish(&mut self, request: Box<Request>) -> FinishedRequest {
        if let Some(checkpoints) = &mut self.core.checkpoints {
            checkpoints.learn_from_finished(&request);
        }
        FinishedRequest(request)
    }

    fn leave_step(&mut self, ids: &[u64], step_failed: bool) -> Result<()> {
        self.check_distinct(ids.iter().copied())?;
        self.check_heirs(ids, step_failed)?;
        self.drop_unwritten(ids, step_failed);
        Ok(())
    }

    /// Refuses unknown requests, and a request that is given twice.
    pub(super) fn check_distinct(&self, ids: impl Iterator<Item = u64> + Clone) -> Result<()> {
        self.check_each(ids, |_| Ok(()))
    }

    /// The same, and refuses what `check` refuses of one of them.
    pub(super) fn check_each(
        &self,
        ids: impl Iterator<Item = u64> + Clone,
        check: impl Fn(&Request) -> Result<()>,
    ) -> Result<()> {
        let (mut last, mut is_ascending, mut checked) = (None, true, Ok(()));
        for id in ids.clone() {
            let request = self.request(id)?;
            checked = checked.and_then(|()| check(request));
            is_ascending &= last < Some(id);
            last = Some(id);
        }
        if is_ascending {
            return checked; // As requests run that started in the order in which they arrived.
        }
        let mut sorted: SmallVec<[u64; 64]> = ids.collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::GivenTwice(pair[0])),
            None => checked,
        }
    }

    /// Refuses to take requests out of a step in which another request reads what they were to
    /// write.
    pub(super) fn check_heirs(&self, ids: &[u64], step_failed: bool) -> Result<()> {
        let pool = &self.core.pool;
        let unwritten = self.core.steps.unwritten(ids, step_failed);
        let shared: Vec<BlockId> = unwritten
            .filter(|&(id, block)| is_author(&self.core, id, block) && pool.refs(block) > 1)
            .map(|(_, block)| block)
            .collect();
        if shared.is_empty() {
            return Ok(());
        }
        let places = self.requests_of(&shared)?.places;
        match places.iter().find(|place| !ids.contains(&place.request)) {
            Some(heir) => Err(Error::InvalidValue(format!(
                "requests {ids:?} leave the step before it has run, but request {} has adopted \
                 blocks that they were to write in it; give it back in the same call, or wait \
                 until the step has run",
                heir.request
            ))),
            None => Ok(()),
        }
    }

    /// Forgets what requests that leave the step were to write in it.
    fn drop_unwritten(&mut self, ids: &[u64], step_failed: bool) {
        let unwritten: Vec<_> = self.core.steps.unwritten(ids, step_failed).collect();
        for (id, block) in unwritten {
            if is_author(&self.core, id, block) {
                self.core.forget(block);
                self.core.statistics.num_dropped_blocks += 1;
            }
            if let Some(request) = self.requests.get_mut(&id) {
                request.leave_step();
            }
        }
    }
}

/// Whether a block is findable as this request has registered it.
fn is_author(core: &Core, request: u64, block: BlockId) -> bool {
    core.pool.key(block).is_some() && core.pool.author(block) == Author::of(request)
}
