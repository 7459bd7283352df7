//! Requests that go back: because drafts were rejected, or because a load has failed.
//!
//! - `own_tables` says who holds a block, and how far each request can resume with its own blocks.
//! - `take_back` takes back tokens, computed ones or known ones.
//! - `rewind` takes a request back to an earlier boundary in place.
//! - `assess` shows the tables to [`crate::recovery`], which judges all requests together.
//! - `recover` does all that a recovery needs, in one step or not at all.

mod assess;
pub(super) mod own_tables;
pub(super) mod recover;
pub(super) mod rewind;
mod take_back;

use self::own_tables::{OwnLimit, Places, own_tables};
use self::recover::{Recoverer, Recovery};
use super::Cache;
use crate::blocks::{BlockId, BlockSet};
use crate::error::{Error, Result};
use crate::recovery::{Assessment, AssessmentInput, ResumePoint, Run, Search, assess};

impl Cache {
    /// Where each of these blocks stands in the tables of requests. The null block stands nowhere.
    /// This reads all tables once.
    ///
    /// # Errors
    /// `UnknownBlock`.
    pub fn requests_of(&self, blocks: &[BlockId]) -> Result<Places> {
        self.check_blocks(blocks)?;
        Ok(Places::of(self, blocks))
    }

    /// How far each of these requests can resume with the blocks of its own tables, if `bad` blocks
    /// are left out. See [`Search::new`] for `drops_unit`; `max_refusals` is the number of refusals
    /// that are told for each request.
    ///
    /// # Errors
    /// `UnknownRequest`; `UnknownBlock`.
    pub fn resume_points(
        &self,
        limits: &[OwnLimit],
        bad: &[BlockId],
        drops_unit: bool,
        max_refusals: usize,
    ) -> Result<Vec<ResumePoint>> {
        self.check_blocks(bad)?;
        let bad = BlockSet::new(self.core.pool.num_blocks(), bad);
        let search = Search::new(&self.core.config.topology, bad, drops_unit, max_refusals);
        let points = limits.iter().map(|limit| {
            let request = self.request(limit.request)?;
            let own = own_tables(&self.core, request, limit.num_tokens);
            Ok(search.resume_point(&own))
        });
        points.collect()
    }

    /// Sets how many tokens are computed, after drafts were rejected. The request keeps its blocks.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` for more than were computed; `NoWayBack` if the request
    /// cannot go on from there, because a window or chunk has given back a block that is read, or a
    /// state has moved on by more than the drafts that it keeps.
    pub fn roll_back(&mut self, id: u64, num_computed_tokens: u32) -> Result<()> {
        self.with(id, |core, request| {
            core.check_roll_back(request, num_computed_tokens)?;
            request.roll_back(num_computed_tokens);
            Ok(())
        })
    }

    /// Forgets the tokens of a request from `num_tokens` on, and the hashes that cover them.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` if the prompt or a findable block would be cut.
    pub fn truncate(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |core, request| {
            let least = request
                .num_prompt_tokens
                .max(core.num_findable_tokens(request));
            let most = request.num_tokens();
            if !(least..=most).contains(&num_tokens) {
                return Err(Error::InvalidValue(format!(
                    "request {id}: truncate to {num_tokens} of {most} tokens; {least} are its \
                     prompt or findable by others: preempt it to start over"
                )));
            }
            request.truncate(num_tokens, core.hash_blocks());
            Ok(())
        })
    }

    /// Goes back to the first `num_tokens` tokens of a request, which are computed and good. The
    /// request keeps its blocks, and forgets what it has registered for the tokens after that.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` for more tokens than are computed; `NoWayBack` for a request
    /// with states, or if a window or chunk has given back a block that is read or written again.
    /// Then nothing has changed.
    pub fn rewind(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |core, request| {
            core.check_rewind(request, num_tokens)?;
            core.rewind(request, num_tokens);
            Ok(())
        })
    }

    /// What failures taint, and where each affected run resumes. The cache is not changed.
    ///
    /// # Errors
    /// `UnknownRequest` for a run that goes on; otherwise as [`assess`] says.
    pub fn assess(&self, runs: &[Run], input: &AssessmentInput) -> Result<Assessment> {
        assess(self, runs, input)
    }

    /// Applies all parts of a recovery. The module `recover` has their order and their conditions.
    ///
    /// # Errors
    /// `UnknownRequest`, `GivenTwice`, `UnknownBlock`; `NoWayBack` for a request that cannot go back
    /// in place; `InvalidValue` for a value that a single call refuses, and for parts that contradict
    /// each other. Then nothing has changed.
    pub fn recover(&mut self, recovery: &Recovery) -> Result<()> {
        let cache = &*self;
        let unwritten = Recoverer { cache, recovery }.check()?;
        self.forget(&recovery.forget)?;
        for at in &recovery.commit {
            self.commit(at.request, at.num_tokens)?;
        }
        for at in &recovery.rewind {
            self.rewind(at.request, at.num_tokens)?;
        }
        self.hold_blocks(&recovery.hold)?;
        self.preempt(&recovery.preempt, false)?;
        self.core.zeroing.list(unwritten);
        self.core.statistics.num_recoveries += 1;
        Ok(())
    }
}
