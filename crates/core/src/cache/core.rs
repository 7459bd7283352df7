//! What all requests of a cache share, and the operations that every part of a step needs: taking
//! blocks, forgetting hashes, and noting what the engine has to be told.

use hashbrown::{HashMap, HashSet};

use super::by_hand::held::HeldBlocks;
use super::config::CacheConfig;
use super::findable::FindableLog;
use super::group::Group;
use super::request::{HashBlocks, Request, SharedTail, Table};
use super::retention::{Boundaries, Checkpoints};
use super::statistics::Statistics;
use super::step::find::Finder;
use super::step::io::{BlockCopy, KeptState};
use super::step::registered::Steps;
use super::step::zeroing::Zeroing;
use crate::blocks::{BlockId, EventLog, NULL_BLOCK, Pool};
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::secret::Secret;

/// The whole cache except for the requests.
#[derive(Debug, Clone)]
pub(super) struct Core {
    pub config: CacheConfig,
    pub groups: Vec<Group>,
    pub pool: Pool,
    pub log: EventLog,
    pub findable: FindableLog,
    pub finder: Finder,
    pub boundaries: Boundaries,
    /// The checkpoints, under retention by value.
    pub checkpoints: Option<Checkpoints>,
    pub zeroing: Zeroing,
    /// For each group, the copies to be made. Both ends of each copy are held.
    pub copies: Vec<Vec<BlockCopy>>,
    /// The ends of the copies that were taken in this step. They are held until the next step
    /// starts.
    pub being_copied: Vec<BlockId>,
    /// What the caller holds.
    pub held: HeldBlocks,
    /// What was registered in this step, before it has run.
    pub steps: Steps,
    /// The states registered in this step. Their blocks do not hold them until the step has run.
    pub fresh: HashSet<(Digest, u16)>,
    /// The blocks that this step writes, each with the end of the tokens that it has already. Only
    /// where hits end inside blocks: those blocks are copied, and copies are made before the step.
    pub being_written: HashMap<BlockId, u32>,
    /// The states registered in this step, with their blocks.
    pub kept_states: Vec<KeptState>,
    pub statistics: Statistics,
}

impl Core {
    pub(super) fn new(config: CacheConfig, secret: &Secret) -> Self {
        let groups = Group::all(&config);
        let boundaries = Boundaries::new(&config, &groups);
        Self {
            pool: Pool::new(config.num_blocks, groups.len(), secret),
            log: EventLog::new(&config.topology, &config.medium, config.events),
            findable: FindableLog::new(config.findable, config.num_blocks),
            finder: Finder::new(&config.topology, &groups),
            checkpoints: Checkpoints::new(&config, &groups, boundaries),
            boundaries,
            zeroing: Zeroing::new(groups.len()),
            copies: vec![Vec::new(); groups.len()],
            being_copied: Vec::new(),
            held: HeldBlocks::default(),
            steps: Steps::new(config.num_blocks),
            fresh: HashSet::new(),
            being_written: HashMap::new(),
            kept_states: Vec::new(),
            statistics: Statistics::default(),
            groups,
            config,
        }
    }

    pub(super) fn hash_blocks(&self) -> HashBlocks {
        HashBlocks {
            tokens: self.config.topology.hash_block_size,
            lookahead: self.config.topology.hash_lookahead,
        }
    }

    /// Hashes as many of a request's tokens as possible, or takes the given hashes.
    pub(super) fn hash(&self, request: &mut Request, given: Option<&[Digest]>) -> Result<()> {
        let cut = self.hash_blocks();
        match (given, self.config.hash) {
            (Some(hashes), _) => request.append_hashes(hashes, cut.tokens),
            (None, Some(function)) if self.config.caching => request.grow(function, cut),
            (None, _) => Ok(()),
        }
    }

    /// Refuses a request that is too long for any block table.
    pub(super) fn check_length(&self, request: u64, num_tokens: u32) -> Result<()> {
        let max = self.config.max_model_len;
        if num_tokens > max {
            return Err(Error::InvalidValue(format!(
                "request {request}: {num_tokens} tokens, max_model_len is {max}; end it there"
            )));
        }
        Ok(())
    }

    /// Takes the next victim. Checkpoints that go before it are let go first.
    pub(super) fn take_one(&mut self) -> BlockId {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.make_room(&mut self.pool);
        }
        let (log, mut is_evicted) = (&mut self.log, false);
        let block = self.pool.take(|key, group| {
            is_evicted = true;
            log.removed(key, group);
        });
        self.statistics.num_allocated_blocks += 1;
        self.statistics.num_evicted_blocks += u64::from(is_evicted);
        block
    }

    /// The number of blocks that would leave the free queue if they were touched.
    pub(super) fn num_evictable(&self, blocks: &[BlockId]) -> usize {
        let is_free = |block: &&BlockId| **block != NULL_BLOCK && self.pool.refs(**block) == 0;
        blocks.iter().filter(is_free).count()
    }

    /// Takes victims. The caller has checked that there are enough.
    pub(super) fn take(&mut self, count: usize, out: &mut Vec<BlockId>) {
        for _ in 0..count {
            out.push(self.take_one());
        }
    }

    /// Forgets the hashes of a block, and records the events.
    pub(super) fn forget(&mut self, block: BlockId) {
        if self.pool.key(block).is_some() {
            self.drop_checkpoints_of(block);
            let log = &mut self.log;
            self.pool
                .forget(block, |key, group| log.removed(key, group));
        }
    }

    /// Drops the checkpoints that need a block, because the block is about to lose a hash.
    pub(super) fn drop_checkpoints_of(&mut self, block: BlockId) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.forget(&mut self.pool, block);
        }
    }

    /// Makes the request write to a copy of a shared tail. Source and copy are held until the copy
    /// is made.
    pub(super) fn redirect(
        &mut self,
        group: &Group,
        table: &mut Table,
        tail: SharedTail,
        copy: BlockId,
    ) {
        debug_assert_eq!(table.blocks[tail.position as usize], tail.block);
        table.blocks[tail.position as usize] = copy;
        self.note_copy(group, tail.block, copy);
        self.pool.touch(copy);
    }

    pub(super) fn note_copy(&mut self, group: &Group, source: BlockId, destination: BlockId) {
        self.copies[usize::from(group.index)].push(BlockCopy {
            source,
            destination,
        });
    }

    /// Notes that a block, if it is registered, holds a state that is written in this step.
    pub(super) fn note_fresh(&mut self, block: BlockId) {
        if block != NULL_BLOCK
            && let Some(key) = self.pool.key(block)
        {
            let digest = *self.pool.index.digest(key.entry);
            self.fresh.insert((digest, key.group));
        }
    }

    /// Whether a copy of a block, made before this step runs, would lack some of the first `tokens`
    /// tokens, which end inside the block.
    pub(super) fn is_unwritten(&self, block: BlockId, tokens: u32) -> bool {
        let written = self.being_written.get(&block);
        written.is_some_and(|&written| written < tokens)
    }

    /// Whether a block is registered for a state that is written in this step.
    pub(super) fn is_fresh(&self, block: BlockId) -> bool {
        self.pool.key(block).is_some_and(|key| {
            let digest = *self.pool.index.digest(key.entry);
            self.fresh.contains(&(digest, key.group))
        })
    }

    /// Notes the state in a block as kept, if the block is registered.
    pub(super) fn note_kept(&mut self, request: u64, block: BlockId) {
        if let Some(key) = self.pool.key(block) {
            self.kept_states.push(KeptState {
                request,
                group: key.group,
                block,
                num_tokens: self.pool.num_tokens(block),
            });
        }
    }

    /// Forgets the states of a request whose blocks are given back.
    pub(super) fn forget_kept_states(&mut self, request: u64) {
        self.kept_states.retain(|state| state.request != request);
    }
}
