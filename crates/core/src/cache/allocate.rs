//! One request's blocks for one step: free what is read no more, adopt a hit, allocate, register.
//!
//! Every group's part of a hit is pinned before any group allocates, so that no group evicts what
//! another one is about to reuse.

use std::collections::VecDeque;

use super::BlockCopy;
use super::checkpoints::Checkpoints;
use super::config::CacheConfig;
use super::find::Finder;
use super::group::{Group, Kind};
use super::request::{Request, Table};
use super::state;
use super::statistics::Statistics;
use crate::blocks::{BlockId, Entries, EventLog, NULL_BLOCK, Pool, count, signed};
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::secret::Secret;
use hashbrown::HashSet;

/// What one request asks of one step; tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// The request.
    pub request: u64,
    /// To be computed.
    pub num_new_tokens: u32,
    /// Reused, of a request that starts now.
    pub num_hit_tokens: u32,
    /// To be remembered with the request.
    pub junction: Option<u32>,
    /// Computed elsewhere, behind the hit.
    pub num_external_tokens: u32,
    /// Draft tokens that need slots too.
    pub num_lookahead_tokens: u32,
    /// Scheduled, not processed yet: what they read stays.
    pub num_in_flight_tokens: u32,
    /// Of the encoder, for cross attention.
    pub num_encoder_tokens: u32,
    /// Before this step, hit excluded; as tracked, where it is not given.
    pub num_computed_tokens: Option<u32>,
    /// Nothing is registered yet: a load is under way.
    pub delay_commit: bool,
    /// Allocate only if all of the request would fit.
    pub full_sequence_must_fit: bool,
    /// The watermark applies.
    pub is_waiting: bool,
}

/// The engines' word for the memory that the blocks are in.
const MEDIUM: &str = "GPU";

/// Everything but the requests.
#[derive(Debug)]
pub(super) struct Store {
    pub config: CacheConfig,
    pub groups: Vec<Group>,
    pub pool: Pool,
    pub log: EventLog,
    pub finder: Finder,
    /// Under retention by value.
    pub checkpoints: Option<Checkpoints>,
    /// Per group: blocks to be zeroed before they are used.
    pub to_zero: Vec<Vec<BlockId>>,
    /// Per group: copies to be made, both ends held.
    pub copies: Vec<Vec<BlockCopy>>,
    /// The ends of the copies that were taken in this step, held until the next one starts.
    pub being_copied: Vec<BlockId>,
    /// States registered in this step, which hold what they promise only after it.
    pub fresh: HashSet<(Digest, u16)>,
    /// States registered in this step.
    pub kept_states: Vec<state::KeptState>,
    pub statistics: Statistics,
    /// Entries of the hashes that the commit at hand has registered.
    pub entries: Entries,
    /// The hit at hand.
    hits: Hits,
    /// The hits of the call at hand that are not adopted yet, and the index that had them.
    checked: VecDeque<(u64, Hits)>,
}

/// A hit's blocks: those of group `g` are `blocks[ends[g - 1]..ends[g]]`. Without a hit both are
/// empty.
#[derive(Debug, Default)]
struct Hits {
    blocks: Vec<BlockId>,
    ends: Vec<usize>,
}

impl Hits {
    fn of(&self, group: usize) -> &[BlockId] {
        let start = group
            .checked_sub(1)
            .and_then(|before| self.ends.get(before));
        let end = self.ends.get(group).copied().unwrap_or(0);
        &self.blocks[start.copied().unwrap_or(0)..end]
    }
}

/// The lengths of one allocation, in tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    /// Computed before, and reused now.
    pub local: u32,
    /// `local`, and what was computed elsewhere.
    pub total: u32,
    /// Behind what this step computes.
    pub main: u32,
    /// Behind all that needs slots.
    pub slots: u32,
}

impl Store {
    pub(super) fn new(config: CacheConfig, secret: &Secret) -> Self {
        let groups = Group::all(&config);
        Self {
            pool: Pool::new(config.num_blocks, groups.len(), secret),
            log: EventLog::new(&config.topology, MEDIUM, config.events),
            finder: Finder::new(&config.topology, &groups),
            checkpoints: Checkpoints::new(&config, &groups),
            to_zero: vec![Vec::new(); groups.len()],
            copies: vec![Vec::new(); groups.len()],
            being_copied: Vec::new(),
            fresh: HashSet::new(),
            kept_states: Vec::new(),
            statistics: Statistics::default(),
            entries: Entries::default(),
            hits: Hits::default(),
            checked: VecDeque::new(),
            groups,
            config,
        }
    }

    /// Begins a call: hits are looked up when they are checked, and kept until they are adopted.
    pub(super) fn start_checks(&mut self) {
        self.checked.clear();
    }

    /// Refuses what no state of the pool could serve, and a hit that is not held now.
    pub(super) fn check(&mut self, request: &Request, need: &Need) -> Result<()> {
        if need.num_new_tokens == 0 && need.num_hit_tokens == 0 && need.num_external_tokens == 0 {
            return Err(Error::InvalidValue(format!(
                "request {}: 0 new tokens and nothing to adopt; ask for at least one token",
                request.id
            )));
        }
        self.lengths(request, need)?;
        if need.num_hit_tokens > 0 {
            let hits = self.find_hit(request, need.num_hit_tokens)?;
            self.checked.push_back((self.pool.index.version(), hits));
        }
        Ok(())
    }

    /// The hit of a request that was checked, looked up again if blocks came or went since.
    fn checked_hit(&mut self, request: &Request, need: &Need) -> Result<Hits> {
        if need.num_hit_tokens == 0 {
            return Ok(Hits::default());
        }
        match self.checked.pop_front() {
            Some((version, hits)) if version == self.pool.index.version() => Ok(hits),
            _ => self.find_hit(request, need.num_hit_tokens),
        }
    }

    /// Allocates for one request, which was checked; false when it does not fit. Appends, per group,
    /// how many blocks are new, and the blocks.
    pub(super) fn allocate(
        &mut self,
        request: &mut Request,
        need: &Need,
        reserved: usize,
        out: (&mut Vec<BlockId>, &mut Vec<u32>),
    ) -> Result<bool> {
        let lengths = self.lengths(request, need)?;
        // What an earlier request of the call has evicted is gone: this one does not fit.
        let Ok(hits) = self.checked_hit(request, need) else {
            return Ok(false);
        };
        self.hits = hits;
        if !self.fits(request, need, &lengths, reserved) {
            return Ok(false);
        }
        self.count_start(request, need);
        self.note_saved(request, &lengths);
        self.adopt(request, need, &lengths);
        self.extend(request, need, &lengths, out);
        if let Some(junction) = need.junction {
            request.junction = junction;
        }
        request.quiet_until = 0;
        if !need.delay_commit {
            self.commit(request, lengths.main.min(request.num_tokens()));
        }
        // Only now: the commit asks where the step began.
        request.num_computed_tokens = lengths.main;
        Ok(true)
    }

    /// Refuses a request that no block table is long enough for.
    pub(super) fn check_length(&self, request: u64, num_tokens: u32) -> Result<()> {
        let max = self.config.max_model_len;
        if num_tokens > max {
            return Err(Error::InvalidValue(format!(
                "request {request}: {num_tokens} tokens, max_model_len is {max}; end it there"
            )));
        }
        Ok(())
    }

    fn lengths(&self, request: &Request, need: &Need) -> Result<Lengths> {
        let computed = need
            .num_computed_tokens
            .unwrap_or(request.num_computed_tokens);
        self.check_length(request.id, request.num_tokens())?;
        let max = self.config.max_model_len;
        let local = computed.saturating_add(need.num_hit_tokens);
        let total = local.saturating_add(need.num_external_tokens).min(max);
        let main = total.saturating_add(need.num_new_tokens);
        let boundary = need.num_hit_tokens + self.config.topology.replay_tokens;
        let is_boundary =
            boundary.is_multiple_of(self.config.hit_alignment()) && local < request.num_tokens();
        if need.num_hit_tokens > 0 && !is_boundary {
            return Err(Error::InvalidValue(format!(
                "request {}: no hit ends at {} of {} tokens; take what match says",
                request.id,
                need.num_hit_tokens,
                request.num_tokens()
            )));
        }
        if need.num_hit_tokens > 0 && request.is_tracked() {
            return Err(Error::InvalidValue(format!(
                "request {}: a hit of {} tokens, but it runs already; preempt it first",
                request.id, need.num_hit_tokens
            )));
        }
        Ok(Lengths {
            local,
            total,
            main,
            slots: main.saturating_add(need.num_lookahead_tokens).min(max),
        })
    }

    /// Looks the blocks of a hit up.
    fn find_hit(&mut self, request: &Request, tokens: u32) -> Result<Hits> {
        let mut hits = Hits::default();
        let looks = self.finder.looks(request, &self.groups, &self.pool);
        for group in &self.groups {
            let look = looks.get(usize::from(group.index)).copied().flatten();
            let at = (request, &self.pool);
            let found = self
                .finder
                .blocks(at, group, (tokens, look), &mut hits.blocks);
            if let Err(position) = found
                && !self.config.hits_may_lack_blocks()
            {
                return Err(Error::InvalidValue(format!(
                    "request {}: group {} does not hold block {position} of the hit of {tokens} \
                     tokens; match again",
                    request.id, group.index
                )));
            }
            hits.ends.push(hits.blocks.len());
        }
        Ok(hits)
    }

    /// The blocks of a hit, group by group.
    pub(super) fn hit_blocks(
        &mut self,
        request: &Request,
        tokens: u32,
    ) -> Result<Vec<Vec<BlockId>>> {
        let hits = self.find_hit(request, tokens)?;
        let groups = 0..self.groups.len();
        Ok(groups.map(|group| hits.of(group).to_vec()).collect())
    }

    /// Blocks that a request would take out of the free queue, or has to spare where it is negative.
    pub(super) fn blocks_needed(
        &mut self,
        request: &Request,
        need: &Need,
        is_admission: bool,
    ) -> Result<i64> {
        let lengths = self.lengths(request, need)?;
        self.hits = if need.num_hit_tokens > 0 {
            self.find_hit(request, need.num_hit_tokens)?
        } else {
            Hits::default()
        };
        Ok(self.needed(request, need, &lengths, is_admission))
    }

    /// Whether the step fits. Frees what is read no more: if it fits, or if the engine does anyway.
    fn fits(
        &mut self,
        request: &mut Request,
        need: &Need,
        lengths: &Lengths,
        reserved: usize,
    ) -> bool {
        let watermark = if need.is_waiting {
            i64::from(self.config.watermark_blocks)
        } else {
            0
        };
        let is_eager = self.config.frees_skipped_when_full;
        let processed = lengths.total.saturating_sub(need.num_in_flight_tokens);
        let free = |pool: &Pool| signed(pool.num_free());
        if need.full_sequence_must_fit {
            let all = request.num_tokens().min(self.config.max_model_len);
            let whole = Lengths {
                main: all,
                slots: all,
                ..*lengths
            };
            if self.needed(request, need, &whole, true) + watermark > free(&self.pool) {
                return false;
            }
        }
        if is_eager {
            self.free_skipped(request, processed);
        }
        let freed = if is_eager {
            0
        } else {
            self.count_skipped(request, processed)
        };
        let available = free(&self.pool) + freed - signed(reserved);
        let needed = self.needed(request, need, lengths, false);
        let taken = needed + self.uncounted(request, lengths);
        if needed + watermark > available || taken > free(&self.pool) + freed {
            return false;
        }
        if !is_eager {
            self.free_skipped(request, processed);
        }
        true
    }

    /// Blocks that the request takes out of the free queue. Negative where it has some to spare.
    fn needed(&self, request: &Request, need: &Need, lengths: &Lengths, is_admission: bool) -> i64 {
        let groups = self.groups.iter().enumerate();
        groups
            .map(|(index, group)| {
                let (table, hits) = (&request.tables[index], self.hits.of(index));
                match group.kind {
                    Kind::State { speculative } => {
                        let step = state::Step {
                            group,
                            speculative,
                            lengths,
                            saves: self.saved_by(request, (group, table), lengths).is_some(),
                        };
                        state::needed(self, &step, table, hits)
                    }
                    Kind::Cross => {
                        let encoder = Lengths {
                            local: 0,
                            total: 0,
                            main: need.num_encoder_tokens,
                            slots: need.num_encoder_tokens,
                        };
                        self.needed_of(group, table, hits, &encoder, is_admission)
                    }
                    Kind::Ring => i64::from(table.blocks.is_empty()),
                    Kind::Nothing => 0,
                    Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                        self.needed_of(group, table, hits, lengths, is_admission)
                    }
                }
            })
            .sum()
    }

    /// Blocks that the request takes and `needed` leaves out.
    fn uncounted(&self, request: &Request, lengths: &Lengths) -> i64 {
        if lengths.total <= lengths.local {
            return 0;
        }
        let groups = self.groups.iter().zip(&request.tables).enumerate();
        groups
            .map(|(index, (group, table))| {
                let Kind::State { speculative } = group.kind else {
                    return 0;
                };
                let step = state::Step {
                    group,
                    speculative,
                    lengths,
                    saves: self.saved_by(request, (group, table), lengths).is_some(),
                };
                state::uncounted(self, &step, table, self.hits.of(index))
            })
            .sum()
    }

    fn needed_of(
        &self,
        group: &Group,
        table: &Table,
        hits: &[BlockId],
        lengths: &Lengths,
        is_admission: bool,
    ) -> i64 {
        let mut required = lengths.slots.div_ceil(group.block) as usize;
        if is_admission && let Some(cap) = group.admission_cap {
            required = required.min(cap as usize);
        }
        let length = table.blocks.len();
        if table.num_cached.is_some() {
            return signed(required.saturating_sub(length));
        }
        let skipped = (group.skipped(lengths.total) / group.block) as usize;
        let new = required.saturating_sub(skipped.max(hits.len() + length));
        let kept = &hits[skipped.saturating_sub(length).min(hits.len())..];
        let has_shared_tail = !hits.is_empty() && !lengths.local.is_multiple_of(group.block);
        signed(new + self.num_evictable(kept) + usize::from(has_shared_tail))
    }

    /// Blocks that would leave the free queue when they are touched.
    pub(super) fn num_evictable(&self, blocks: &[BlockId]) -> usize {
        let is_free = |block: &&BlockId| **block != NULL_BLOCK && self.pool.refs(**block) == 0;
        blocks.iter().filter(is_free).count()
    }

    /// Gives the request its hit, and blocks for what was computed elsewhere.
    fn adopt(&mut self, request: &mut Request, need: &Need, lengths: &Lengths) {
        let is_hit = !self.hits.blocks.is_empty();
        if (!is_hit && need.num_external_tokens == 0) || request.is_tracked() {
            return;
        }
        for (index, group) in self.groups.iter().enumerate() {
            if matches!(group.kind, Kind::Ring | Kind::Nothing | Kind::Cross) {
                continue;
            }
            let table = &mut request.tables[index];
            let all = lengths.local + need.num_external_tokens;
            let skipped = (group.skipped(all) / group.block) as usize;
            let hits = self.hits.of(index);
            let kept = &hits[skipped.min(hits.len())..];
            for &block in kept {
                self.pool.touch(block);
            }
            table.blocks.resize(skipped, NULL_BLOCK);
            table.blocks.extend_from_slice(kept);
            table.num_cached = Some(count(table.blocks.len()));
            if let Some(&tail) = kept.last()
                && !lengths.local.is_multiple_of(group.block)
            {
                let position = lengths.local / group.block;
                table.shared_tail = Some((position, tail));
                table.num_cached = Some(position);
            }
        }
        if need.num_hit_tokens > 0 {
            self.note_resume(request, need.num_hit_tokens);
        }
        if need.num_external_tokens > 0 {
            self.extend_external(request, need, lengths);
        }
    }

    fn extend_external(&mut self, request: &mut Request, need: &Need, lengths: &Lengths) {
        let all = lengths.local + need.num_external_tokens;
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let wanted = match group.kind {
                Kind::Ring => 1,
                Kind::Cross | Kind::Nothing => 0,
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } | Kind::State { .. } => {
                    if group.skipped(all) >= all {
                        continue;
                    }
                    all.div_ceil(group.block) as usize
                }
            };
            let missing = wanted.saturating_sub(request.tables[index].blocks.len());
            let start = request.tables[index].blocks.len();
            self.take(missing, &mut request.tables[index].blocks);
            self.note_zeroing(&group, &request.tables[index].blocks[start..]);
        }
    }

    /// Gives the request blocks for what this step computes.
    fn extend(
        &mut self,
        request: &mut Request,
        need: &Need,
        lengths: &Lengths,
        (blocks, counts): (&mut Vec<BlockId>, &mut Vec<u32>),
    ) {
        for index in 0..self.groups.len() {
            let group = self.groups[index];
            let table = &mut request.tables[index];
            let before = blocks.len();
            match group.kind {
                Kind::State { speculative } => {
                    let step = state::Step {
                        group: &group,
                        speculative,
                        lengths,
                        saves: table.state.saved.is_some(),
                    };
                    state::extend(self, &step, (request.id, table), blocks);
                }
                Kind::Cross => self.extend_table(&group, table, need.num_encoder_tokens, blocks),
                Kind::Ring => self.extend_table(&group, table, 1, blocks),
                Kind::Nothing => {}
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                    self.extend_table(&group, table, lengths.slots, blocks);
                }
            }
            counts.push(count(blocks.len() - before));
        }
    }

    fn extend_table(
        &mut self,
        group: &Group,
        table: &mut Table,
        tokens: u32,
        out: &mut Vec<BlockId>,
    ) {
        if let Some((position, source)) = table.shared_tail.take() {
            let copy = self.take_one();
            self.redirect(group, table, (position, source), copy);
            self.to_zero[usize::from(group.index)].push(copy);
            out.push(copy);
        }
        let required = tokens.div_ceil(group.block) as usize;
        let start = table.blocks.len();
        self.take(required.saturating_sub(start), &mut table.blocks);
        self.note_zeroing(group, &table.blocks[start..]);
        out.extend_from_slice(&table.blocks[start..]);
    }

    /// Has the request write to a copy of a shared tail. Source and copy are held for the copying.
    pub(super) fn redirect(
        &mut self,
        group: &Group,
        table: &mut Table,
        (position, source): (u32, BlockId),
        copy: BlockId,
    ) {
        debug_assert_eq!(table.blocks[position as usize], source);
        table.blocks[position as usize] = copy;
        self.copies[usize::from(group.index)].push(BlockCopy {
            source,
            destination: copy,
        });
        self.pool.touch(copy);
    }

    fn note_zeroing(&mut self, group: &Group, blocks: &[BlockId]) {
        if group.needs_zeroing {
            self.to_zero[usize::from(group.index)].extend_from_slice(blocks);
        }
    }

    /// Takes the next victim.
    pub(super) fn take_one(&mut self) -> BlockId {
        while !self.pool.has_victim()
            && let Some(checkpoints) = &mut self.checkpoints
            && checkpoints.let_go(&mut self.pool)
        {}
        let (block, lost) = self.pool.take();
        self.statistics.num_allocated_blocks += 1;
        self.statistics.num_evicted_blocks += u64::from(!lost.is_empty());
        for (key, group) in lost {
            self.log.removed(key, group);
        }
        block
    }

    /// Takes victims; it was checked that there are enough.
    pub(super) fn take(&mut self, count: usize, out: &mut Vec<BlockId>) {
        for _ in 0..count {
            out.push(self.take_one());
        }
    }
}
