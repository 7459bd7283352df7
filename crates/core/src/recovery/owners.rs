//! Where each affected run resumes, and who writes the blocks again that several runs share.
//!
//! ```text
//! shared, tainted     !  !                      request 0 goes back before them, and owns both
//! request 0           !  !  x  x                request 1 resumes after them: it waits for both
//! request 1           !  !  y  y                request 2 has to give its blocks back: it neither
//! request 2           !  !  .  z                owns a block nor waits for one
//! ```
//! The runs are taken in the order of their requests, so no other order changes anything. A run may
//! use what an earlier one writes again, unless it gives its blocks back: then it finds them by
//! hashes, and no hash finds a tainted block.

use std::ops::Range;

use super::held::Held;
use super::hits::{Entry, Hit, Hits};
use super::resume_point::{Refusal, Search};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet, Ranks};
use crate::rule::{first_read, needed};
use crate::spec::{GroupSpec, SpecKind, Topology};

/// What happens to one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The request.
    pub request: u64,
    /// The first token that was computed from tainted blocks.
    pub first_tainted: Option<u32>,
    /// Whether a token that was sampled from a tainted one has been handed out, by this run or by an
    /// earlier one of its request.
    pub handed_out: bool,
    /// The largest boundary that every group accepts without the tainted blocks, except those that
    /// the run waits for.
    pub resume: u32,
    /// Whether it can go back without giving its blocks up.
    pub in_place: bool,
    /// The tainted blocks that it shares and that it alone writes again, in ascending order.
    pub owner_of: Vec<BlockId>,
    /// The tainted blocks that it reads at the boundary, each with the request that owns it.
    pub waits_for: Vec<(BlockId, u64)>,
    /// The blocks of its tables that a transfer may still write, in ascending order.
    pub busy: Vec<BlockId>,
    /// Larger boundaries that a group refuses, as many as were asked for.
    pub refused: Vec<Refusal>,
}

/// Who holds and who owns tainted blocks, each of them known by its rank among them.
struct Owners<'a> {
    ranks: Ranks<'a>,
    /// The request that owns the block.
    owner: Vec<Option<u64>>,
    is_shared: Vec<bool>,
}

/// A search for verdicts, run by run.
pub(super) struct VerdictSearch<'a, 'b> {
    pub topology: &'a Topology,
    pub all: &'a [Held<'b>],
    pub taint: &'a Taint,
    /// The requests that were told garbage by runs that have ended.
    pub told: &'a [u64],
    /// All entries of tainted blocks that two tables may have, and maybe of other tainted ones.
    pub hits: &'a Hits,
    pub busy: &'a BlockSet,
    pub is_any_busy: bool,
    pub max_refusals: usize,
}

impl VerdictSearch<'_, '_> {
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let affected = self.affected();
        let mut owners = Owners::new(&self.taint.blocks, self.hits, &affected);
        // What is being written is not there yet.
        let mut bad = self.taint.blocks.clone();
        for block in self.busy.iter() {
            bad.insert(block);
        }
        // What runs that give their blocks back may use, and what the others may.
        let found = Search::new(self.topology, bad, false, self.max_refusals);
        let mut held = found.clone();
        let verdict = |run: usize| {
            let verdict = self.verdict(run, &owners, (&found, &held));
            owners.own(&verdict.owner_of, verdict.request);
            for &block in &verdict.owner_of {
                held.trust(block);
            }
            verdict
        };
        affected.into_iter().map(verdict).collect()
    }

    /// The runs that go on and hold or have read garbage.
    fn affected(&self) -> Vec<usize> {
        let is_affected = |&run: &usize| {
            let held = &self.all[run];
            let is_computed = |hit: Hit| {
                let spec = &self.topology.groups[usize::from(hit.group)];
                hit.position < held.run.num_computed_tokens.div_ceil(spec.block_size)
            };
            let is_read = self.taint.first[run].is_some();
            !held.has_ended() && (is_read || self.hits.of(run).any(is_computed))
        };
        (0..self.all.len()).filter(is_affected).collect()
    }

    fn verdict(
        &self,
        run: usize,
        owners: &Owners<'_>,
        (found, in_tables): (&Search, &Search),
    ) -> Verdict {
        let held = &self.all[run];
        let first_tainted = self.taint.first[run];
        let handed_out = self.told.contains(&held.run.request)
            || first_tainted.is_some_and(|first| held.run.has_told(first));
        let mut own = held.own.clone();
        own.num_computed_tokens = first_tainted
            .unwrap_or(u32::MAX)
            .min(held.run.num_processed_tokens);
        let mut point = in_tables.resume_point(&own);
        let mut back = self.go_back(run, owners, point.num_tokens);
        if handed_out || !back.is_possible {
            back = Back::default();
            point = found.resume_point(&own);
        }
        Verdict {
            request: held.run.request,
            first_tainted,
            handed_out,
            resume: point.num_tokens,
            in_place: back.is_possible,
            owner_of: back.rewrites,
            waits_for: back.waits_for,
            busy: self.busy_blocks(held),
            refused: point.refused,
        }
    }

    /// How a run goes back to a boundary with the blocks that it has, if it can.
    fn go_back(&self, run: usize, owners: &Owners<'_>, boundary: u32) -> Back {
        let held = &self.all[run];
        let mut groups = (0..).zip(&self.topology.groups);
        if !groups.all(|(group, spec)| self.keeps(held, group, spec, boundary)) {
            return Back::default();
        }
        let mut waits_for = Vec::new();
        let mut rewrites = Vec::new();
        for (table, spec) in self.hits.tables(run).iter().zip(&self.topology.groups) {
            let (read, written) = (reads(spec, boundary), boundary / spec.block_size);
            for &Entry { position, block } in table {
                let is_written = position >= written;
                match owners.of(block) {
                    Some(owner) if !is_written && read.contains(&position) => {
                        waits_for.push((block, owner));
                    }
                    None if is_written => rewrites.extend(owners.is_shared(block).then_some(block)),
                    // Another run writes it at the same time, or it would stay as it is.
                    _ => return Back::default(),
                }
            }
        }
        rewrites.sort_unstable();
        rewrites.dedup();
        Back {
            is_possible: true,
            rewrites,
            waits_for,
        }
    }

    /// Whether a table still has all blocks that are read at a boundary or written after it, and no
    /// transfer writes into the latter.
    fn keeps(&self, held: &Held<'_>, group: usize, spec: &GroupSpec, boundary: u32) -> bool {
        let read = first_read(spec, boundary).min(boundary) / spec.block_size;
        let blocks = held.own.groups[group].blocks;
        let written = blocks.get((boundary / spec.block_size) as usize..);
        let is_free = |blocks| !self.is_any_busy || self.busy.found_in(blocks).next().is_none();
        spec.kind != SpecKind::Mamba
            && held.whole_from[group] <= read
            && written.is_none_or(is_free)
    }

    fn busy_blocks(&self, held: &Held<'_>) -> Vec<BlockId> {
        let mut busy = Vec::new();
        if self.is_any_busy {
            for table in &held.own.groups {
                let found = self.busy.found_in(table.blocks);
                busy.extend(found.map(|at| table.blocks[at]));
            }
        }
        busy.sort_unstable();
        busy.dedup();
        busy
    }
}

/// A way back in place, if there is one.
#[derive(Debug, Default)]
struct Back {
    is_possible: bool,
    /// The shared tainted blocks that are written again.
    rewrites: Vec<BlockId>,
    waits_for: Vec<(BlockId, u64)>,
}

/// The positions that a token at a boundary reads. What a draft head needs was there when the
/// request got its blocks.
fn reads(spec: &GroupSpec, boundary: u32) -> Range<u32> {
    let spec = GroupSpec {
        eagle: false,
        ..*spec
    };
    needed(&spec, boundary)
}

impl<'a> Owners<'a> {
    fn new(tainted: &'a BlockSet, hits: &Hits, affected: &[usize]) -> Self {
        let ranks = tainted.ranks();
        let mut is_shared = vec![false; tainted.len()];
        let mut holder = vec![None; tainted.len()];
        for &run in affected {
            for hit in hits.of(run) {
                let rank = ranks.of(hit.block) as usize;
                is_shared[rank] |= *holder[rank].get_or_insert(run) != run;
            }
        }
        Self {
            ranks,
            owner: vec![None; tainted.len()],
            is_shared,
        }
    }

    /// Whether two affected runs have the block.
    fn is_shared(&self, block: BlockId) -> bool {
        self.is_shared[self.ranks.of(block) as usize]
    }

    /// The request that owns the block.
    fn of(&self, block: BlockId) -> Option<u64> {
        self.owner[self.ranks.of(block) as usize]
    }

    /// Lets a request own some of the blocks that it holds.
    fn own(&mut self, blocks: &[BlockId], request: u64) {
        for &block in blocks {
            self.owner[self.ranks.of(block) as usize] = Some(request);
        }
    }
}
