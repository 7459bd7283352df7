//! One engine's block cache over any mix of groups: what to reuse, what to hand out, what to keep.
//!
//! [`Cache`] owns blocks and requests. Nothing here does I/O or reads a clock; events are recorded
//! and taken by the caller. A request's way: `request` (tokens -> hashes), `find` (hashes -> the
//! rule -> a boundary), `allocate` and `state` (blocks for a step), `commit` (blocks others can
//! find). [`crate::blocks`] holds the blocks, `group` what kinds differ in. Under retention by value `retain` names boundaries worth keeping and `checkpoints` weighs them.

mod allocate;

mod checkpoints;
mod commit;
mod config;
mod decode;
mod find;
mod group;
mod request;
mod retain;
mod saved_state;
mod shared_prefix;
mod single_blocks;
mod skipped;
mod state;
mod statistics;
mod work;

use crate::secret::Secret;
use hashbrown::HashMap;
use smallvec::SmallVec;

pub use allocate::Need;
pub use checkpoints::Checkpoint;
pub use config::{ByValue, CacheConfig, GroupOptions, HashFunction, PrefillCost, Retention};
pub use find::Match;
pub use state::{Cursor, KeptState};
pub use statistics::{Starts, Statistics};
pub use work::{BlockCopy, Work};

use crate::blocks::{BlockId, Extra, NULL_BLOCK};
use crate::error::{Error, Result};
use crate::hash::Digest;
use allocate::Store;
use checkpoints::Checkpoints;
use request::Request;

/// Blocks that a step handed out: those of request `i` and group `g` come after those of request
/// `i` and group `g - 1`; `counts[i * num_groups + g]` says how many they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Requests that fit, in the order asked.
    pub num_fit: usize,
    /// New blocks, flat; null blocks where a state group skips positions.
    pub blocks: Vec<BlockId>,
    /// How many per request and group.
    pub counts: Vec<u32>,
}

/// What is known of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    /// How many hold it.
    pub num_references: u32,
    /// The group and hash that it is found by first, and how many tokens that covers.
    pub key: Option<(u16, Digest, u32)>,
}

/// Where a request stands; tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Computed.
    pub num_computed_tokens: u32,
    /// Of the prompt.
    pub num_prompt_tokens: u32,
    /// All.
    pub num_tokens: u32,
    /// Where others are known to branch off; 0 = nowhere.
    pub junction: u32,
}

/// A request as it is added.
#[derive(Debug, Clone, Default)]
pub struct NewRequest {
    /// Its tokens so far.
    pub tokens: Vec<u32>,
    /// How many of them are the prompt.
    pub num_prompt_tokens: u32,
    /// What separates its cache.
    pub extra: Extra,
    /// Hashes that the engine computed; `None`: they are computed here.
    pub hashes: Option<Vec<Digest>>,
}

/// The cache of one engine.
#[derive(Debug)]
pub struct Cache {
    store: Store,
    requests: HashMap<u64, Box<Request>>,
    next_id: u64,
}

fn unknown(id: u64) -> Error {
    Error::Unknown(format!(
        "request {id} is not known; it was released, or never added"
    ))
}

impl Cache {
    /// An empty cache; `secret` spreads the hashes in its tables.
    ///
    /// # Errors
    /// `InvalidValue` for what cannot work; see [`CacheConfig::validate`].
    pub fn new(config: CacheConfig, secret: &Secret) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            store: Store::new(config, secret),
            requests: HashMap::new(),
            next_id: 0,
        })
    }

    fn request(&self, id: u64) -> Result<&Request> {
        self.requests
            .get(&id)
            .map(Box::as_ref)
            .ok_or_else(|| unknown(id))
    }

    fn with<T>(
        &mut self,
        id: u64,
        work: impl FnOnce(&mut Store, &mut Request) -> Result<T>,
    ) -> Result<T> {
        let request = self.requests.get_mut(&id).ok_or_else(|| unknown(id))?;
        work(&mut self.store, request)
    }

    /// Makes a request known; it holds no block yet.
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
        let mut request = Request::new(id, self.store.groups.len(), new.extra);
        request.tokens = new.tokens;
        request.num_prompt_tokens = new.num_prompt_tokens;
        self.store.hash(&mut request, new.hashes.as_deref())?;
        self.requests.insert(id, Box::new(request));
        self.next_id += 1;
        Ok(id)
    }

    /// Appends tokens, to the prompt too if `to_prompt`; hashes grow, or continue with those given.
    ///
    /// # Errors
    /// `Unknown`; `InvalidValue` for hashes that do not fit.
    pub fn extend(
        &mut self,
        id: u64,
        tokens: &[u32],
        hashes: Option<&[Digest]>,
        to_prompt: bool,
    ) -> Result<()> {
        self.with(id, |store, request| {
            let before = request.num_tokens();
            request.quiet_until = 0;
            request.tokens.extend_from_slice(tokens);
            let result = store.hash(request, hashes);
            if result.is_err() {
                request.tokens.truncate(before as usize);
            } else if to_prompt {
                request.num_prompt_tokens = request.num_tokens();
            }
            result
        })
    }

    /// How much a request can reuse now. Changes nothing.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn find(&mut self, id: u64) -> Result<Match> {
        self.with(id, |store, request| {
            store.statistics.num_matches += 1;
            Ok(store.finder.find(request, &store.groups, &store.pool))
        })
    }

    /// The blocks of a hit, group by group: what `allocate` would adopt.
    ///
    /// # Errors
    /// `Unknown`; `InvalidValue` for a hit that is not held.
    pub fn hit_blocks(&mut self, id: u64, num_tokens: u32) -> Result<Vec<Vec<BlockId>>> {
        self.with(id, |store, request| store.hit_blocks(request, num_tokens))
    }

    /// What is known of each block.
    ///
    /// # Errors
    /// `InvalidValue` for a block that does not exist.
    pub fn describe(&self, blocks: &[BlockId]) -> Result<Vec<BlockInfo>> {
        self.check_blocks(blocks)?;
        let pool = &self.store.pool;
        let key = |block: BlockId| {
            let key = pool.key(block)?;
            let digest = *pool.index.digest(key.entry);
            Some((key.group, digest, pool.num_tokens(block)))
        };
        let describe = |&block: &BlockId| BlockInfo {
            num_references: pool.refs(block),
            key: key(block),
        };
        Ok(blocks.iter().map(describe).collect())
    }

    /// Allocates for many requests in order; stops at the first that does not fit.
    ///
    /// # Errors
    /// `Unknown` or `InvalidValue` (a request that is given twice, too), before anything has changed.
    pub fn allocate(&mut self, needs: &[Need], reserved_blocks: usize) -> Result<Allocation> {
        self.check_distinct(needs.iter().map(|need| need.request))?;
        self.store.start_checks();
        for need in needs {
            self.with(need.request, |store, request| store.check(request, need))?;
        }
        let mut done = Allocation::default();
        for need in needs {
            let out = (&mut done.blocks, &mut done.counts);
            let fits = self.with(need.request, |store, request| {
                store.allocate(request, need, reserved_blocks, out)
            })?;
            if !fits {
                break;
            }
            done.num_fit += 1;
        }
        Ok(done)
    }

    /// Makes the blocks of the first `num_tokens` tokens findable.
    ///
    /// # Errors
    /// `Unknown`; `InvalidValue` for more tokens than the request has blocks or hashes for.
    pub fn commit(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |store, request| {
            let computed = request.num_computed_tokens.min(request.num_tokens());
            if num_tokens > computed {
                return Err(Error::InvalidValue(format!(
                    "request {id}: commit of {num_tokens} tokens, {computed} are computed"
                )));
            }
            store.commit(request, num_tokens);
            request.quiet_until = 0;
            Ok(())
        })
    }

    /// Gives back what nothing computed after `num_tokens` tokens reads.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn free_skipped(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |store, request| {
            store.free_skipped(request, num_tokens);
            request.quiet_until = 0;
            Ok(())
        })
    }

    /// Gives all blocks of requests back, tails first, and forgets the requests.
    ///
    /// # Errors
    /// `Unknown`, or `InvalidValue` for a request that is given twice, before anything has changed.
    pub fn release(&mut self, ids: &[u64]) -> Result<()> {
        self.check_distinct(ids.iter().copied())?;
        for id in ids {
            if let Some(mut request) = self.requests.remove(id) {
                self.store.give_back(&mut request);
            }
        }
        Ok(())
    }

    /// Gives all blocks of requests back; they stay known, with nothing computed.
    ///
    /// # Errors
    /// `Unknown`, or `InvalidValue` for a request that is given twice, before anything has changed.
    pub fn preempt(&mut self, ids: &[u64]) -> Result<()> {
        self.check_distinct(ids.iter().copied())?;
        ids.iter().try_for_each(|&id| {
            self.with(id, |store, request| {
                store.give_back(request);
                store.count_preemption(request);
                request.num_computed_tokens = 0;
                request.quiet_until = 0;
                Ok(())
            })
        })
    }

    /// Refuses requests that are not known, and one that is given twice.
    fn check_distinct(&self, ids: impl Iterator<Item = u64> + Clone) -> Result<()> {
        for id in ids.clone() {
            self.request(id)?;
        }
        let mut sorted: SmallVec<[u64; 64]> = ids.collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::InvalidValue(format!(
                "request {} is given twice in one call; give each request once",
                pair[0]
            ))),
            None => Ok(()),
        }
    }

    /// Forgets a request and hands its blocks over, groups in order: the caller frees them.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn pop_blocks(&mut self, id: u64) -> Result<Vec<BlockId>> {
        let mut request = self.requests.remove(&id).ok_or_else(|| unknown(id))?;
        self.store.note_end(&request);
        self.store.forget_kept_states(id);
        Ok(request.clear_tables().into_iter().flatten().collect())
    }

    /// Drops one reference each; what is given first is evicted first.
    ///
    /// # Errors
    /// `InvalidValue` for a block that does not exist or has no such reference; nothing has changed.
    pub fn free_blocks(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        let mut dropped: HashMap<BlockId, u32> = HashMap::new();
        for &block in blocks.iter().filter(|block| **block != NULL_BLOCK) {
            let count = dropped.entry(block).or_insert(0);
            *count += 1;
            if *count > self.store.pool.refs(block) {
                return Err(Error::InvalidValue(format!(
                    "block {block} is freed {count} times, but has {} references",
                    self.store.pool.refs(block)
                )));
            }
        }
        self.store.pool.free(blocks.iter().copied());
        Ok(())
    }

    fn check_blocks(&self, blocks: &[BlockId]) -> Result<()> {
        let num_blocks = self.store.pool.num_blocks();
        match blocks.iter().find(|block| block.index() >= num_blocks) {
            Some(block) => Err(Error::InvalidValue(format!(
                "block {block} does not exist; the pool has {num_blocks}"
            ))),
            None => Ok(()),
        }
    }

    /// Sets how many tokens are computed, after drafts were rejected. Blocks stay.
    ///
    /// # Errors
    /// `Unknown`; `InvalidValue` for more than were computed.
    pub fn roll_back(&mut self, id: u64, num_computed_tokens: u32) -> Result<()> {
        self.with(id, |_, request| {
            if num_computed_tokens > request.num_computed_tokens {
                return Err(Error::InvalidValue(format!(
                    "request {id}: roll back to {num_computed_tokens} tokens, {} are computed",
                    request.num_computed_tokens
                )));
            }
            request.num_computed_tokens = num_computed_tokens;
            request.quiet_until = 0;
            Ok(())
        })
    }

    /// Forgets the tokens of a request from `num_tokens` on, and the hashes that cover them.
    ///
    /// # Errors
    /// `Unknown`; `InvalidValue` when the prompt would be cut, or a block that is findable.
    pub fn truncate(&mut self, id: u64, num_tokens: u32) -> Result<()> {
        self.with(id, |store, request| {
            let groups = store.groups.iter().zip(&request.tables);
            let committed = groups
                .map(|(g, t)| t.num_cached.unwrap_or(0) * g.block)
                .max();
            let least = request.num_prompt_tokens.max(committed.unwrap_or(0));
            let most = request.num_tokens();
            if !(least..=most).contains(&num_tokens) {
                return Err(Error::InvalidValue(format!(
                    "request {id}: truncate to {num_tokens} of {most} tokens; {least} are its \
                     prompt or findable by others: preempt it to start over"
                )));
            }
            request.truncate(num_tokens, store.hashing());
            request.num_computed_tokens = request.num_computed_tokens.min(num_tokens);
            request.quiet_until = 0;
            Ok(())
        })
    }

    /// Drops the hashes of blocks, in this order; blocks stay with their owners.
    ///
    /// # Errors
    /// `InvalidValue` for a block that does not exist; nothing has changed.
    pub fn forget(&mut self, blocks: &[BlockId]) -> Result<()> {
        self.check_blocks(blocks)?;
        for &block in blocks {
            self.store.forget(block);
        }
        self.forget_quiet_steps();
        Ok(())
    }

    /// Has every request's next step look at its tables again.
    fn forget_quiet_steps(&mut self) {
        for request in self.requests.values_mut() {
            request.quiet_until = 0;
        }
    }

    /// The block table of a request, group by group.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn tables(&self, id: u64) -> Result<impl Iterator<Item = &[BlockId]>> {
        let tables = self.request(id)?.tables.iter();
        Ok(tables.map(|table| table.blocks.as_slice()))
    }

    /// Where a request stands.
    ///
    /// # Errors
    /// `Unknown`.
    pub fn progress(&self, id: u64) -> Result<Progress> {
        let request = self.request(id)?;
        Ok(Progress {
            num_computed_tokens: request.num_computed_tokens,
            num_prompt_tokens: request.num_prompt_tokens,
            num_tokens: request.num_tokens(),
            junction: request.junction,
        })
    }

    /// Takes the counts since the last call.
    pub fn take_statistics(&mut self) -> Statistics {
        std::mem::take(&mut self.store.statistics)
    }

    /// Hands the recorded events over, encoded one after the other, and their number; see [`frame`](crate::blocks::frame).
    pub fn take_events<T>(&mut self, take: impl FnOnce(&[u8], u32) -> T) -> T {
        self.store.log.take(take)
    }

    /// Blocks that can be handed out.
    #[must_use]
    pub fn num_free_blocks(&self) -> usize {
        self.store.pool.num_free()
    }

    /// Groups.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.store.groups.len()
    }

    /// Blocks that a request of so many tokens holds at most, by group-wise reservation.
    #[must_use]
    pub fn blocks_for(&self, num_tokens: u32) -> usize {
        let groups = self.store.groups.iter();
        groups
            .map(|group| group.reservation(num_tokens) as usize)
            .sum()
    }

    /// Everything findable: group, hash and the copies, oldest first. Walks everything.
    pub fn cached(&self) -> impl Iterator<Item = (u16, &Digest, Vec<BlockId>)> {
        let index = &self.store.pool.index;
        index.keys().map(|key| {
            (
                key.group,
                index.digest(key.entry),
                index.copies(key).collect(),
            )
        })
    }

    /// The free queue, next victim first; blocks that checkpoints keep are not in it.
    pub fn free_queue(&self) -> impl Iterator<Item = BlockId> {
        self.store.pool.queue()
    }

    /// Under retention by value, what can be let go when the free queue is empty, least value first.
    pub fn checkpoints(&self) -> impl Iterator<Item = Checkpoint> {
        let checkpoints = self.store.checkpoints.iter();
        checkpoints.flat_map(|all| all.queued(&self.store.pool))
    }

    /// Bytes held by blocks, hashes and checkpoints, by capacity; walks the checkpoints.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let checkpoints = self.store.checkpoints.as_ref();
        self.store.pool.bytes() + checkpoints.map_or(0, Checkpoints::bytes)
    }

    /// Walks everything. `outside`: references that the caller holds.
    ///
    /// # Panics
    /// Unless blocks, hashes and requests agree.
    pub fn check_integrity(&self, outside: &[BlockId]) {
        let pool = &self.store.pool;
        pool.check_integrity();
        if let Some(checkpoints) = &self.store.checkpoints {
            checkpoints.check_integrity(pool);
        }
        let mut refs = vec![0; pool.num_blocks()];
        let tables = self.requests.values().flat_map(|r| &r.tables);
        let held = tables.flat_map(|table| table.blocks.iter().copied());
        let ends = self.held_by_copies();
        for block in held.chain(ends).chain(outside.iter().copied()) {
            refs[block.index()] += 1;
        }
        for (block, &num_references) in (0u32..).zip(&refs).skip(1) {
            let block = BlockId(block);
            assert_eq!(
                pool.refs(block),
                num_references,
                "references of block {block}"
            );
        }
    }
}

impl Store {
    fn hashing(&self) -> (u32, u32) {
        let topology = &self.config.topology;
        (topology.hash_block_size, topology.hash_lookahead)
    }

    fn hash(&self, request: &mut Request, given: Option<&[Digest]>) -> Result<()> {
        match (given, self.config.hash) {
            (Some(hashes), _) => request.append_hashes(hashes, self.hashing().0),
            (None, Some(function)) if self.config.caching => request.grow(function, self.hashing()),
            (None, _) => Ok(()),
        }
    }
}
