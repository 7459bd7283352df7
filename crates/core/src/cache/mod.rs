//! One engine's block cache over any mix of groups: what to reuse, what to hand out, what to keep.
//!
//! [`Cache`] owns the requests. What they share is in `core`, and the blocks are in
//! [`crate::blocks`]. Nothing here does I/O or reads a clock. Events are recorded until the caller
//! takes them.
//!
//! - `config` says how a cache is set up, and `group` what distinguishes the kinds of groups.
//! - `hint` is what a caller says of a request's end, and `value_cursor` what retention by value
//!   remembers of a request.
//! - `request` is one request: its tokens, hashes and tables.
//! - `core` is what all requests share.
//! - `retention` decides what is worth keeping.
//! - `step` serves requests; begin with its inputs and outputs.
//! - `by_hand` is for callers who treat single blocks.
//! - `leave` is for requests that give all their blocks back.
//! - `going_back` is for requests that go back, and for failed loads.
//! - `findable` notes what hashes began to find.
//! - `statistics` and `inspect` show what the cache did and what it has.
//!
//! ```
//! use kvbraid_core::cache::{Cache, CacheConfig, Need, NewRequest};
//! use kvbraid_core::secret::Secret;
//! use kvbraid_core::spec::{GroupSpec, SpecKind, Topology};
//!
//! // A model with full attention, in a pool of 8 blocks of 4 tokens.
//! let full = GroupSpec::new(SpecKind::FullAttention, 4);
//! let config = CacheConfig::new(Topology::new(vec![full]), 8);
//! let mut cache = Cache::new(config, &Secret::new([7; 32]))?;
//! let prompt = |tokens: Vec<u32>| NewRequest {
//!     num_prompt_tokens: tokens.len() as u32,
//!     tokens,
//!     ..NewRequest::default()
//! };
//!
//! // The first request computes its 10 tokens, in three blocks.
//! let first = cache.add(prompt((0..10).collect()))?;
//! let need = Need { request: first, num_new_tokens: 10, ..Need::default() };
//! assert_eq!(cache.allocate(&[need], 0)?.blocks.len(), 3);
//! cache.release(&[first], false)?;
//!
//! // The second one shares 9 tokens with it: two whole blocks.
//! let second = cache.add(prompt((0..9).chain([77, 78]).collect()))?;
//! let hit = cache.find(second)?.num_tokens;
//! assert_eq!(hit, 8);
//! let need = Need { request: second, num_hit_tokens: hit, num_new_tokens: 3, ..Need::default() };
//! assert_eq!(cache.allocate(&[need], 0)?.blocks.len(), 1);
//! # Ok::<(), kvbraid_core::Error>(())
//! ```

mod by_hand;
mod config;
mod core;
mod findable;
mod going_back;
mod group;
mod hint;
mod inspect;
mod leave;
mod request;
mod retention;
mod statistics;
mod step;
mod value_cursor;

use hashbrown::HashMap;

pub use config::{
    ByValue, CacheConfig, EvictionPolicy, GroupOptions, HashFunction, PrefillCost, Retention,
};
pub use findable::Findable;
pub use going_back::own_tables::{OwnLimit, Places, TableEntry};
pub use going_back::recover::{Boundary, Recovery};
pub use hint::Hint;
pub use leave::FinishedRequest;
pub use retention::Checkpoint;
pub(crate) use retention::Checkpoints;
pub use statistics::{Starts, Statistics};
pub use step::io::{
    Allocation, BlockCopy, BlockInfo, Fill, KeptState, Match, Need, NewRequest, NoFit, Progress,
    TableProgress, TierMatch, Work,
};
pub use step::match_over::match_over;

use self::core::Core;
use self::request::Request;
use self::step::allocate::Stepper;
use self::step::commit::commit;
use self::step::plan::{Fit, HitBlocks, Plan};
use crate::blocks::BlockId;
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::secret::Secret;

/// The cache of one engine. A clone shares nothing with it, and behaves alike.
#[derive(Debug, Clone)]
pub struct Cache {
    core: Core,
    requests: HashMap<u64, Box<Request>>,
    next_id: u64,
}

impl Cache {
    /// An empty cache. `secret` makes the layout of its hash tables unpredictable.
    ///
    /// # Errors
    /// `InvalidValue` for a configuration that cannot work; see [`CacheConfig::validate`].
    pub fn new(config: CacheConfig, secret: &Secret) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            core: Core::new(config, secret),
            requests: HashMap::new(),
            next_id: 0,
        })
    }

    fn request(&self, id: u64) -> Result<&Request> {
        self.requests
            .get(&id)
            .map(Box::as_ref)
            .ok_or(Error::UnknownRequest(id))
    }

    fn with<T>(
        &mut self,
        id: u64,
        work: impl FnOnce(&mut Core, &mut Request) -> Result<T>,
    ) -> Result<T> {
        let request = self
            .requests
            .get_mut(&id)
            .ok_or(Error::UnknownRequest(id))?;
        work(&mut self.core, request)
    }

    /// A request in a step; see [`Stepper`].
    fn in_step(
        &mut self,
        id: u64,
        done: &mut Allocation,
        work: impl FnOnce(Stepper<'_>) -> Result<Fit>,
    ) -> Result<Fit> {
        self.with(id, |core, request| {
            work(Stepper {
                core,
                request,
                done,
            })
        })
    }

    /// Adds a request, which holds no block yet.
    ///
    /// # Errors
    /// `InvalidValue` for an empty prompt, or hashes that do not fit the tokens.
    pub fn add(&mut self, new: NewRequest) -> Result<u64> {
        let num_tokens = new.tokens.len();
        if new.num_prompt_tokens == 0 || new.num_prompt_tokens as usize > num_tokens {
            return Err(Error::InvalidValue(format!(
                "num_prompt_tokens is {} of {num_tokens} tokens; a prompt has at least one token",
                new.num_prompt_tokens
            )));
        }
        let id = self.next_id;
        let mut request = Request::new(id, self.core.groups.len(), new.extra);
        request.tokens = new.tokens;
        request.num_prompt_tokens = new.num_prompt_tokens;
        request.by_value.hint = new.hint;
        self.core.hash(&mut request, new.hashes.as_deref())?;
        self.requests.insert(id, Box::new(request));
        self.next_id += 1;
        Ok(id)
    }

    /// Appends tokens, which also extend the prompt if `to_prompt`. Hashes are computed, or taken
    /// from those given.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` for hashes that do not fit.
    pub fn extend(
        &mut self,
        id: u64,
        tokens: &[u32],
        hashes: Option<&[Digest]>,
        to_prompt: bool,
    ) -> Result<()> {
        self.with(id, |core, request| {
            let before = request.num_tokens();
            request.append(tokens);
            let result = core.hash(request, hashes);
            if result.is_err() {
                request.tokens.truncate(before as usize);
            } else if to_prompt {
                request.num_prompt_tokens = request.num_tokens();
            }
            result
        })
    }

    /// How much a request can reuse now. The cache is not changed.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn find(&mut self, id: u64) -> Result<Match> {
        self.with(id, |core, request| {
            core.statistics.num_matches += 1;
            Ok(core.finder.find(request, &core.groups, &core.pool))
        })
    }

    /// The blocks of a hit, group by group, as `allocate` would adopt them.
    ///
    /// # Errors
    /// `UnknownRequest`; `NotHeld` for a hit that is gone.
    pub fn hit_blocks(&mut self, id: u64, num_tokens: u32) -> Result<Vec<Vec<BlockId>>> {
        self.with(id, |core, request| {
            let hits = HitBlocks::find(core, request, num_tokens, None)?;
            let groups = 0..core.groups.len();
            Ok(groups.map(|group| hits.of(group).to_vec()).collect())
        })
    }

    /// Allocates for many requests in order, and stops at the first that does not fit.
    ///
    /// # Errors
    /// `UnknownRequest`, `GivenTwice`, `InvalidValue`, or `NotHeld` for a hit that is gone. Then
    /// nothing has changed.
    pub fn allocate(&mut self, needs: &[Need], reserved_blocks: usize) -> Result<Allocation> {
        self.check_distinct(needs.iter().map(|need| need.request))?;
        let mut plans = Vec::with_capacity(needs.len());
        for need in needs {
            plans.push(self.with(need.request, |core, request| {
                Plan::check(core, request, need)
            })?);
        }
        let mut done = Allocation::default();
        for plan in plans {
            let fit = self.in_step(plan.need.request, &mut done, |mut stepper| {
                Ok(stepper.allocate(plan, reserved_blocks))
            })?;
            if let Err(reason) = fit {
                done.reason = Some(reason);
                break;
            }
            done.num_fit += 1;
        }
        Ok(done)
    }

    /// Does a decoding step: appends one token to each request and allocates for it, up to the first
    /// that does not fit. That one and those after it are as they were.
    ///
    /// # Errors
    /// The same as for `allocate`, and `InvalidValue` for a request with tokens that are not
    /// computed; then nothing has changed.
    pub fn decode(&mut self, ids: &[u64], tokens: &[u32]) -> Result<Allocation> {
        if ids.len() != tokens.len() {
            return Err(Error::InvalidValue(format!(
                "{} requests and {} tokens; give one token for each",
                ids.len(),
                tokens.len()
            )));
        }
        self.check_each(ids.iter().copied(), |request| {
            request.check_decode()?;
            let num_tokens = request.num_tokens() + 1;
            self.core.check_length(request.id, num_tokens)
        })?;
        let mut done = Allocation::default();
        done.counts.reserve(ids.len() * self.core.groups.len());
        for (&id, &token) in ids.iter().zip(tokens) {
            let fit = self.in_step(id, &mut done, |mut stepper| stepper.decode(token))?;
            if let Err(reason) = fit {
                done.reason = Some(reason);
                break;
            }
            done.num_fit += 1;
        }
        Ok(done)
    }

    /// Makes the blocks of the first `num_tokens` tokens findable: they hold what they should.
    ///
    /// # Errors
    /// `UnknownRequest`; `InvalidValue` for more tokens than the request has blocks or hashes for.
    pub fn commit(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |core, request| {
            request.check_commit(num_tokens)?;
            let noted = core.steps.num_noted();
            commit(core, request, num_tokens, None);
            core.steps.settle(noted);
            Ok(())
        })
    }

    /// Gives back the blocks that no token computed after `num_tokens` tokens reads.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn free_skipped(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |core, request| {
            core.free_skipped(request, num_tokens);
            Ok(())
        })
    }

    /// Makes the next decoding step of every request look at its tables.
    fn forget_quiet_steps(&mut self) {
        for request in self.requests.values_mut() {
            request.forget_quiet_steps();
        }
    }

    /// The block table of a request, group by group.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn tables(&self, id: u64) -> Result<impl Iterator<Item = &[BlockId]>> {
        let tables = self.request(id)?.tables().iter();
        Ok(tables.map(|table| table.blocks.as_slice()))
    }

    /// The hashes of a request, one for each hash block, without the first `start`.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn block_hashes(&self, id: u64, start: usize) -> Result<&[Digest]> {
        let hashes = self.request(id)?.hashes.get(start..);
        Ok(hashes.unwrap_or_default())
    }

    /// How far a request has come.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn progress(&self, id: u64) -> Result<Progress> {
        let request = self.request(id)?;
        Ok(Progress {
            num_computed_tokens: request.num_computed_tokens,
            num_prompt_tokens: request.num_prompt_tokens,
            num_tokens: request.num_tokens(),
            junction: request.junction,
        })
    }

    /// The numbers of tokens at which a request's steps should end, because requests are expected
    /// to branch off there; in order.
    ///
    /// # Errors
    /// `UnknownRequest`.
    pub fn stops(&self, id: u64) -> Result<Vec<u32>> {
        self.request(id)?;
        let checkpoints = self.core.checkpoints.as_ref();
        Ok(checkpoints.map_or_else(Vec::new, |checkpoints| checkpoints.stops(id).collect()))
    }

    /// The checkpoints, under retention by value.
    pub(crate) fn retention(&self) -> Option<&Checkpoints> {
        self.core.checkpoints.as_ref()
    }

    /// Does from now on what another cache does, with this interval between regular checkpoints;
    /// see [`Checkpoints::imitate`].
    pub(crate) fn imitate(&mut self, other: &Checkpoints, interval: u32) {
        if let Some(checkpoints) = &mut self.core.checkpoints {
            checkpoints.imitate(other, interval);
        }
    }

    /// Takes the counts since the last call.
    pub fn take_statistics(&mut self) -> Statistics {
        std::mem::take(&mut self.core.statistics)
    }

    /// Takes the blocks that a hash began to find since the last call and still finds, without
    /// states.
    ///
    /// # Errors
    /// `InvalidValue` if the configuration does not want them noted.
    pub fn take_findable(&mut self) -> Result<Vec<Findable>> {
        let Core { findable, pool, .. } = &mut self.core;
        if findable.is_on() {
            return Ok(findable.take(pool));
        }
        Err(Error::InvalidValue(
            "findable is off, so nothing was noted; set it in the configuration".to_owned(),
        ))
    }

    /// Hands over the recorded events, encoded one after the other, and their number; see
    /// [`frame`](crate::blocks::frame).
    pub fn take_events<T>(&mut self, take: impl FnOnce(&[u8], u32) -> T) -> T {
        self.core.log.take(take)
    }

    /// The number of blocks that can be handed out.
    #[must_use]
    pub fn num_free_blocks(&self) -> usize {
        self.core.pool.num_free()
    }

    /// The number of groups.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.core.groups.len()
    }

    /// The largest number of blocks that a request of this many tokens holds, reserved group by
    /// group.
    #[must_use]
    pub fn blocks_for(&self, num_tokens: u32) -> usize {
        let groups = self.core.groups.iter();
        groups
            .map(|group| group.reservation(num_tokens) as usize)
            .sum()
    }
}
