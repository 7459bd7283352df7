//! What a step is going to take, determined before anything changes: the lengths, the blocks of the
//! hit, and how many blocks leave the free queue.
//!
//! `check` makes a [`Plan`] for every request of a call, and `allocate` consumes it. Requests are
//! served one after the other, so an earlier one may evict blocks that a later plan relies on. A
//! plan therefore knows the version of the index that it was made from, and looks its hit up again
//! if copies were added or removed since.

use super::io::{Need, NoFit};
use super::lengths::Lengths;
use super::state::{self, StateStep};
use crate::blocks::{BlockId, NULL_BLOCK, count, signed};
use crate::cache::core::Core;
use crate::cache::group::{Group, Kind};
use crate::cache::request::{Request, SavedState, Table};
use crate::error::{Error, Result};
use crate::rule::needed;

/// Whether a request fits, or why not.
pub(in crate::cache) type Fit = std::result::Result<(), NoFit>;

/// The blocks of a hit: those of group `g` are `blocks[ends[g - 1]..ends[g]]`. Both lists are empty
/// without a hit.
#[derive(Debug, Default)]
pub(in crate::cache) struct HitBlocks {
    blocks: Vec<BlockId>,
    ends: Vec<usize>,
}

impl HitBlocks {
    /// Looks up the blocks of a hit. If the tokens from there to `until` are loaded, blocks that no
    /// later token reads may be missing, for example the state that the load continues from.
    pub(in crate::cache) fn find(
        core: &mut Core,
        request: &Request,
        tokens: u32,
        until: Option<u32>,
    ) -> Result<Self> {
        let mut hits = Self::default();
        let looks = core.finder.looks(request, &core.groups, &core.pool);
        let lookup = core.finder.lookup(request, &core.pool);
        for group in &core.groups {
            let look = looks.get(usize::from(group.index)).copied().flatten();
            let found = core
                .finder
                .blocks(lookup, group, tokens, look, &mut hits.blocks);
            let start = hits.ends.last().copied().unwrap_or(0);
            let is_missing = |&position: &u32| hits.blocks[start + position as usize] == NULL_BLOCK;
            let unread = until.map_or(0, |until| needed(&group.spec, until).start);
            let end = count(hits.blocks.len() - start);
            if let Err(first) = found
                && !core.config.hits_may_lack_blocks()
                && let Some(position) = (first.max(unread)..end).find(is_missing)
            {
                return Err(Error::NotHeld {
                    request: request.id,
                    group: group.index,
                    position,
                    num_tokens: tokens,
                });
            }
            hits.ends.push(hits.blocks.len());
        }
        Ok(hits)
    }

    pub(in crate::cache) fn of(&self, group: usize) -> &[BlockId] {
        let start = group
            .checked_sub(1)
            .and_then(|before| self.ends.get(before));
        let end = self.ends.get(group).copied().unwrap_or(0);
        &self.blocks[start.copied().unwrap_or(0)..end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// One request's part in a call of `allocate`.
#[derive(Debug)]
pub(in crate::cache) struct Plan<'a> {
    pub need: &'a Need,
    pub(super) lengths: Lengths,
    pub hits: HitBlocks,
    /// The version of the index in which the hit was found.
    version: u64,
}

fn require(is_so: bool, otherwise: NoFit) -> Fit {
    if is_so { Ok(()) } else { Err(otherwise) }
}

/// The end of the tokens that are loaded after a hit, if there are any.
fn loaded_until(need: &Need, lengths: &Lengths) -> Option<u32> {
    (need.num_external_tokens > 0).then_some(lengths.total)
}

impl<'a> Plan<'a> {
    /// Plans one request's step. Refuses a step that no state of the pool could serve, and a hit
    /// that is not held now.
    pub(in crate::cache) fn check(
        core: &mut Core,
        request: &Request,
        need: &'a Need,
    ) -> Result<Self> {
        if need.num_new_tokens == 0 && need.num_hit_tokens == 0 && need.num_external_tokens == 0 {
            return Err(Error::InvalidValue(format!(
                "request {}: 0 new tokens and nothing to adopt; ask for at least one token",
                request.id
            )));
        }
        let plan = Self::new(core, request, need)?;
        plan.check_drafts(core, request)?;
        if !core.steps.have_begun() && !core.config.follows_vllm && plan.is_hit_unwritten(core) {
            return Err(Error::InvalidValue(format!(
                "request {}: its hit of {} tokens is a state, or ends inside a block, that the step \
                 at hand writes, and no step was ever begun; call start_step before each step, \
                 which says that the one before has run",
                request.id, need.num_hit_tokens
            )));
        }
        Ok(plan)
    }

    /// Refuses drafts that could not be taken back, because a group of states has too few blocks for
    /// them. The first token of a step is no draft, even if it is not known yet.
    fn check_drafts(&self, core: &Core, request: &Request) -> Result<()> {
        if core.config.follows_vllm {
            return Ok(()); // vLLM's own scheduler answers for what it takes back.
        }
        let first = self.lengths.total.saturating_add(1);
        let known = request.num_tokens();
        let drafts = self.lengths.main.saturating_sub(known.max(first));
        for group in &core.groups {
            if let Kind::State { speculative } = group.kind
                && drafts > speculative
            {
                return Err(Error::InvalidValue(format!(
                    "request {}: {drafts} of {} new tokens are drafts, because it has {known} tokens, \
                     but num_speculative_blocks of group {} is {speculative}; set it to the most \
                     drafts of a step, or compute fewer tokens",
                    request.id, self.need.num_new_tokens, group.index
                )));
            }
        }
        Ok(())
    }

    pub(in crate::cache) fn new(
        core: &mut Core,
        request: &Request,
        need: &'a Need,
    ) -> Result<Self> {
        let lengths = Lengths::of(core, request, need)?;
        let hits = match need.num_hit_tokens {
            0 => HitBlocks::default(),
            tokens => HitBlocks::find(core, request, tokens, loaded_until(need, &lengths))?,
        };
        Ok(Self {
            need,
            lengths,
            hits,
            version: core.pool.index.version(),
        })
    }

    /// Looks the hit up again if copies were added or removed since. Returns false if the hit
    /// is gone.
    pub(super) fn renew(&mut self, core: &mut Core, request: &Request) -> bool {
        let version = core.pool.index.version();
        if self.need.num_hit_tokens == 0 || self.version == version {
            return true;
        }
        let until = loaded_until(self.need, &self.lengths);
        let found = HitBlocks::find(core, request, self.need.num_hit_tokens, until);
        let is_held = found.is_ok();
        self.hits = found.unwrap_or_default();
        self.version = version;
        is_held
    }

    /// The number of blocks that a request would take out of the free queue; negative if it would
    /// have some to spare, and more than there are if it has to wait for the next step.
    pub(in crate::cache) fn blocks_needed(
        &self,
        core: &Core,
        request: &Request,
        is_admission: bool,
    ) -> i64 {
        if self.is_hit_unwritten(core) {
            return i64::from(core.config.num_blocks) + 1;
        }
        self.needed(core, request, &self.lengths, is_admission)
    }

    /// Whether the step fits; if not, why. Frees the blocks that are no longer read, if the step fits
    /// or if the engine frees them anyway.
    ///
    /// ```text
    /// free blocks    |-- reserved --|-- watermark --|------ needed ------|-- left --|
    /// ```
    pub(super) fn fit(&self, core: &mut Core, request: &mut Request, reserved: usize) -> Fit {
        let Self { need, lengths, .. } = self;
        if self.is_hit_unwritten(core) {
            return Err(NoFit::Unwritten);
        }
        let watermark = if need.is_waiting {
            i64::from(core.config.watermark_blocks)
        } else {
            0
        };
        if need.full_sequence_must_fit {
            let whole = lengths.of_all(core, request);
            let needed = self.needed(core, request, &whole, true);
            let free = signed(core.pool.num_free());
            require(needed <= free, NoFit::FullSequence)?;
            require(needed + watermark <= free, NoFit::Watermark)?;
        }
        let is_eager = core.config.follows_vllm;
        let processed = lengths.total.saturating_sub(need.num_in_flight_tokens);
        if is_eager {
            core.free_skipped(request, processed);
        }
        let freed = if is_eager {
            0
        } else {
            core.count_skipped(request, processed)
        };
        let available = signed(core.pool.num_free()) + freed;
        let needed = self.needed(core, request, lengths, false);
        let taken = needed + self.uncounted(core, request);
        require(needed <= available, NoFit::Memory)?;
        require(needed + watermark <= available, NoFit::Watermark)?;
        let is_left = needed + watermark <= available - signed(reserved);
        require(is_left, NoFit::Reserved)?;
        require(taken <= available, NoFit::Memory)?;
        if !is_eager {
            core.free_skipped(request, processed);
        }
        Ok(())
    }

    /// Whether the hit is a state, or ends inside a block, that this step still writes. The
    /// request has to wait for the next step.
    fn is_hit_unwritten(&self, core: &Core) -> bool {
        let local = self.lengths.local;
        core.groups.iter().enumerate().any(|(index, group)| {
            let Some(&last) = self.hits.of(index).last() else {
                return false;
            };
            match group.kind {
                Kind::State { .. } => core.is_fresh(last),
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                    !local.is_multiple_of(group.block) && core.is_unwritten(last, local)
                }
                Kind::Cross | Kind::Ring | Kind::Nothing => false,
            }
        })
    }

    /// The number of blocks that the request takes out of the free queue; negative if it has some
    /// to spare.
    fn needed(&self, core: &Core, request: &Request, lengths: &Lengths, is_admission: bool) -> i64 {
        let groups = core.groups.iter().enumerate();
        groups
            .map(|(index, group)| {
                let (table, hits) = (&request.tables()[index], self.hits.of(index));
                match group.kind {
                    Kind::State { speculative } => {
                        let step = state_step(core, request, group, speculative, lengths);
                        state::needed(core, &step, table, hits)
                    }
                    Kind::Cross => {
                        let encoder = Lengths {
                            local: 0,
                            total: 0,
                            main: self.need.num_encoder_tokens,
                            slots: self.need.num_encoder_tokens,
                        };
                        needed_of(core, group, table, hits, &encoder, is_admission)
                    }
                    Kind::Ring => i64::from(table.blocks.is_empty()),
                    Kind::Nothing => 0,
                    Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                        needed_of(core, group, table, hits, lengths, is_admission)
                    }
                }
            })
            .sum()
    }

    /// The number of blocks that the request takes although `needed` does not count them.
    fn uncounted(&self, core: &Core, request: &Request) -> i64 {
        let lengths = &self.lengths;
        let begins_with_blocks = !self.hits.is_empty() || self.need.num_external_tokens > 0;
        let adopts = begins_with_blocks && !request.is_tracked();
        let groups = core.groups.iter().zip(request.tables()).enumerate();
        groups
            .map(|(index, (group, table))| match group.kind {
                Kind::State { speculative } => {
                    let step = state_step(core, request, group, speculative, lengths);
                    let hits = self.hits.of(index);
                    if adopts && lengths.total > lengths.local {
                        state::uncounted(core, &step, table, hits)
                    } else {
                        // Blocks to spare in one group are none for another.
                        -state::needed(core, &step, table, hits).min(0)
                    }
                }
                Kind::Cross | Kind::Ring | Kind::Nothing => 0,
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } if adopts => 0,
                Kind::Full | Kind::Window { .. } | Kind::Chunk { .. } => {
                    let required = lengths.slots.div_ceil(group.block) as usize;
                    let taken = signed(required.saturating_sub(table.blocks.len()));
                    taken - needed_of(core, group, table, &[], lengths, false)
                }
            })
            .sum()
    }
}

fn state_step<'a>(
    core: &Core,
    request: &Request,
    group: &'a Group,
    speculative: u32,
    lengths: &'a Lengths,
) -> StateStep<'a> {
    let table = &request.tables()[usize::from(group.index)];
    StateStep {
        group,
        speculative,
        lengths,
        saves: SavedState::of_step(core, request, group, table, lengths).is_some(),
    }
}

/// The value of `needed` for a group that keeps all tokens or the last ones.
///
/// ```text
/// position   0      1      2      3      4      5
///            null   null   hit    hit    new    new     `skipped` is 2, `required` is 6
/// ```
fn needed_of(
    core: &Core,
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
    signed(new + core.num_evictable(kept) + usize::from(has_shared_tail))
}
