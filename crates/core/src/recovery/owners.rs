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

use smallvec::SmallVec;

use super::held::{Held, Hit};
use super::resume_point::{Refusal, ResumePoint, Search};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet, Ranks, count};
use crate::rule::{first_read, needed};
use crate::spec::{GroupSpec, SpecKind, Topology};

/// What happens to one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The request.
    pub request: u64,
    /// The first token that was computed from tainted blocks.
    pub first_tainted: Option<u32>,
    /// Whether a token that was sampled from a tainted one has been handed out.
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

const NOBODY: u32 = u32::MAX;

/// Who holds and who owns tainted blocks, each of them known by its rank among them.
struct Owners<'a> {
    ranks: Ranks<'a>,
    /// The index of the run that owns the block.
    owner: Vec<u32>,
    is_shared: Vec<bool>,
    is_any: bool,
}

/// A search for verdicts, run by run.
pub(super) struct Court<'a, 'b> {
    pub topology: &'a Topology,
    pub all: &'a [Held<'b>],
    pub taint: &'a Taint,
    /// All entries of tainted blocks that two tables may have, and maybe others; ordered by run.
    pub hits: &'a [Hit],
    pub busy: &'a BlockSet,
    pub is_any_busy: bool,
    pub max_refusals: usize,
}

impl Court<'_, '_> {
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let affected = self.affected();
        let mut owners = Owners::new(&self.taint.blocks, &affected);
        // What is being written is not there yet.
        let mut bad = self.taint.blocks.clone();
        for block in self.busy.iter() {
            bad.insert(block);
        }
        // What runs that give their blocks back may use, and what the others may.
        let found = Search::new(self.topology, bad, false, self.max_refusals);
        let mut held = found.clone();
        let verdict = |&(run, hits): &(usize, &[Hit])| {
            let verdict = self.verdict(run, hits, &owners, (&found, &held));
            for &block in &verdict.owner_of {
                owners.own(block, count(run));
                held.trust(block);
            }
            verdict
        };
        affected.iter().map(verdict).collect()
    }

    /// The runs that go on and hold or have read garbage, each with its entries of tainted blocks.
    fn affected(&self) -> Vec<(usize, &[Hit])> {
        let mut rest = self.hits;
        let with_hits = self.all.iter().enumerate().map(|(run, held)| {
            let end = rest.partition_point(|hit| hit.run as usize <= run);
            let (own, after) = rest.split_at(end);
            rest = after;
            (run, held, own)
        });
        let is_affected = |run: usize, held: &Held<'_>, hits: &[Hit]| {
            let is_computed = |hit: &Hit| {
                let spec = &self.topology.groups[usize::from(hit.group)];
                hit.position < held.run.num_computed_tokens.div_ceil(spec.block_size)
            };
            !held.has_ended() && (self.taint.first[run].is_some() || hits.iter().any(is_computed))
        };
        with_hits
            .filter(|(run, held, hits)| is_affected(*run, held, hits))
            .map(|(run, _, hits)| (run, hits))
            .collect()
    }

    fn verdict(
        &self,
        index: usize,
        hits: &[Hit],
        owners: &Owners<'_>,
        (found, in_tables): (&Search, &Search),
    ) -> Verdict {
        let held = &self.all[index];
        let run = held.run;
        let first_tainted = self.taint.first[index];
        let handed_out = first_tainted.is_some_and(|first| {
            run.num_tokens > run.num_known_tokens.max(first.saturating_add(1))
        });
        let mut own = held.own.clone();
        let limit = first_tainted
            .unwrap_or(u32::MAX)
            .min(run.num_processed_tokens);
        own.num_computed_tokens = limit;
        let mut point = in_tables.resume_point_after(&own, &self.clean(index, hits, in_tables));
        let mut back = self.go_back(held, hits, owners, point.num_tokens);
        if handed_out || !back.is_possible {
            back = Back::default();
            if owners.is_any {
                point = found.resume_point_after(&own, &self.clean(index, hits, found));
            }
        }
        let ResumePoint {
            num_tokens,
            refused,
        } = point;
        Verdict {
            request: run.request,
            first_tainted,
            handed_out,
            resume: num_tokens,
            in_place: back.is_possible,
            owner_of: back.rewrites,
            waits_for: back.waits_for,
            busy: self.busy_blocks(held),
            refused,
        }
    }

    /// How many leading positions of each table are known to have no hole, as far as the run has not
    /// written tainted blocks itself: it need not share those, and `hits` lack them.
    fn clean(&self, index: usize, hits: &[Hit], search: &Search) -> SmallVec<[u32; 8]> {
        let held = &self.all[index];
        let written = self.taint.first[index].unwrap_or(u32::MAX);
        let groups = self.topology.groups.iter().enumerate();
        let mut clean: SmallVec<[u32; 8]> = groups
            .map(|(group, spec)| {
                let is_known = !self.is_any_busy && held.whole_from[group] == 0;
                let length = count(held.own.groups[group].blocks.len());
                length.min(written / spec.block_size) * u32::from(is_known)
            })
            .collect();
        for hit in hits {
            let clean = &mut clean[usize::from(hit.group)];
            if hit.position < *clean && search.is_hole(hit.block) {
                *clean = hit.position;
            }
        }
        clean
    }

    /// How a run goes back to a boundary with the blocks that it has, if it can.
    fn go_back(&self, held: &Held<'_>, hits: &[Hit], owners: &Owners<'_>, boundary: u32) -> Back {
        let mut groups = (0..).zip(&self.topology.groups);
        if !groups.all(|(group, spec)| self.keeps(held, group, spec, boundary)) {
            return Back::default();
        }
        let mut back = Back {
            is_possible: true,
            ..Back::default()
        };
        let groups = self.topology.groups.iter();
        let read: SmallVec<[Range<u32>; 8]> = groups.map(|spec| reads(spec, boundary)).collect();
        let groups = self.topology.groups.iter();
        let written: SmallVec<[u32; 8]> = groups.map(|spec| boundary / spec.block_size).collect();
        for hit in hits {
            let group = usize::from(hit.group);
            let is_written = hit.position >= written[group];
            match owners.owner_of(hit.block) {
                Some(owner) if !is_written && read[group].contains(&hit.position) => {
                    let owner = self.all[owner as usize].run.request;
                    back.waits_for.push((hit.block, owner));
                }
                None if is_written => {
                    if owners.is_shared(hit.block) {
                        back.rewrites.push(hit.block);
                    }
                }
                // Another run writes it at the same time, or it would stay as it is.
                _ => return Back::default(),
            }
        }
        back.rewrites.sort_unstable();
        back.rewrites.dedup();
        back
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
    fn new(tainted: &'a BlockSet, affected: &[(usize, &[Hit])]) -> Self {
        let ranks = tainted.ranks();
        let num_tainted = tainted.iter().count();
        let mut is_shared = vec![false; num_tainted];
        let mut holder = vec![NOBODY; num_tainted];
        for &(run, hits) in affected {
            for hit in hits {
                let rank = ranks.of(hit.block) as usize;
                if holder[rank] == NOBODY {
                    holder[rank] = count(run);
                }
                is_shared[rank] |= holder[rank] != count(run);
            }
        }
        holder.fill(NOBODY);
        Self {
            ranks,
            owner: holder,
            is_shared,
            is_any: false,
        }
    }

    fn is_shared(&self, block: BlockId) -> bool {
        self.is_shared[self.ranks.of(block) as usize]
    }

    fn owner_of(&self, block: BlockId) -> Option<u32> {
        let owner = self.owner[self.ranks.of(block) as usize];
        (owner != NOBODY).then_some(owner)
    }

    fn own(&mut self, block: BlockId, run: u32) {
        self.owner[self.ranks.of(block) as usize] = run;
        self.is_any = true;
    }
}
