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

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use super::held::{Held, Hit};
use super::resume_point::{Refusal, ResumePoint, Search};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet, count};
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
struct Owners {
    /// The index of the run that owns the block.
    owner: Vec<u32>,
    is_shared: Vec<bool>,
    is_any: bool,
}

/// A run that goes on and holds or has read garbage.
struct Affected<'a> {
    /// The index of the run.
    run: usize,
    /// Its entries of tainted blocks.
    hits: &'a [Hit],
    /// For each of them, the rank of its block.
    ranks: &'a [u32],
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
        let ranks = self.taint.blocks.ranks();
        let ranks: Vec<u32> = self.hits.iter().map(|hit| ranks.of(hit.block)).collect();
        let affected = self.affected(&ranks);
        let mut owners = Owners::new(self.taint.blocks.len(), &affected);
        // What is being written is not there yet.
        let mut bad = self.taint.blocks.clone();
        for block in self.busy.iter() {
            bad.insert(block);
        }
        // What runs that give their blocks back may use, and what the others may.
        let found = Search::new(self.topology, bad, false, self.max_refusals);
        let mut held = Cow::Borrowed(&found);
        let verdict = |run: &Affected<'_>| {
            let verdict = self.verdict(run, &owners, (&found, &held));
            owners.own(&verdict.owner_of, run);
            for &block in &verdict.owner_of {
                held.to_mut().trust(block);
            }
            verdict
        };
        affected.iter().map(verdict).collect()
    }

    fn affected<'a>(&'a self, ranks: &'a [u32]) -> Vec<Affected<'a>> {
        let mut rest = (self.hits, ranks);
        let with_hits = self.all.iter().enumerate().map(|(run, held)| {
            let end = rest.0.partition_point(|hit| hit.run as usize <= run);
            let (hits, hits_after) = rest.0.split_at(end);
            let (ranks, ranks_after) = rest.1.split_at(end);
            rest = (hits_after, ranks_after);
            (held, Affected { run, hits, ranks })
        });
        let is_affected = |held: &Held<'_>, &Affected { run, hits, .. }: &Affected<'_>| {
            let is_computed = |hit: &Hit| {
                let spec = &self.topology.groups[usize::from(hit.group)];
                hit.position < held.run.num_computed_tokens.div_ceil(spec.block_size)
            };
            !held.has_ended() && (self.taint.first[run].is_some() || hits.iter().any(is_computed))
        };
        with_hits
            .filter(|(held, run)| is_affected(held, run))
            .map(|(_, run)| run)
            .collect()
    }

    fn verdict(
        &self,
        affected: &Affected<'_>,
        owners: &Owners,
        (found, in_tables): (&Search, &Search),
    ) -> Verdict {
        let held = &self.all[affected.run];
        let run = held.run;
        let first_tainted = self.taint.first[affected.run];
        let handed_out = first_tainted.is_some_and(|first| {
            run.num_tokens > run.num_known_tokens.max(first.saturating_add(1))
        });
        let mut own = held.own.clone();
        let limit = first_tainted
            .unwrap_or(u32::MAX)
            .min(run.num_processed_tokens);
        own.num_computed_tokens = limit;
        let is_bad = |rank| owners.owner_of(rank).is_none();
        let mut point = in_tables.resume_point_after(&own, &self.clean(affected, is_bad));
        let mut back = self.go_back(affected, owners, point.num_tokens);
        if handed_out || !back.is_possible {
            back = Back::default();
            if owners.is_any {
                point = found.resume_point_after(&own, &self.clean(affected, |_| true));
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
    fn clean(&self, run: &Affected<'_>, is_bad: impl Fn(u32) -> bool) -> SmallVec<[u32; 8]> {
        let held = &self.all[run.run];
        let written = self.taint.first[run.run].unwrap_or(u32::MAX);
        let groups = self.topology.groups.iter().enumerate();
        let mut clean: SmallVec<[u32; 8]> = groups
            .map(|(group, spec)| {
                let is_known = !self.is_any_busy && held.whole_from[group] == 0;
                let length = count(held.own.groups[group].blocks.len());
                length.min(written / spec.block_size) * u32::from(is_known)
            })
            .collect();
        for (hit, &rank) in run.hits.iter().zip(run.ranks) {
            let clean = &mut clean[usize::from(hit.group)];
            if hit.position < *clean && is_bad(rank) {
                *clean = hit.position;
            }
        }
        clean
    }

    /// How a run goes back to a boundary with the blocks that it has, if it can.
    fn go_back(&self, run: &Affected<'_>, owners: &Owners, boundary: u32) -> Back {
        let held = &self.all[run.run];
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
        for (hit, &rank) in run.hits.iter().zip(run.ranks) {
            let group = usize::from(hit.group);
            let is_written = hit.position >= written[group];
            match owners.owner_of(rank) {
                Some(owner) if !is_written && read[group].contains(&hit.position) => {
                    let owner = self.all[owner as usize].run.request;
                    if back.waits_for.is_empty() {
                        back.waits_for.reserve(run.hits.len());
                    }
                    back.waits_for.push((hit.block, owner));
                }
                None if is_written => {
                    if owners.is_shared(rank) {
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

impl Owners {
    fn new(num_tainted: usize, affected: &[Affected<'_>]) -> Self {
        let mut is_shared = vec![false; num_tainted];
        let mut holder = vec![NOBODY; num_tainted];
        for &Affected { run, ranks, .. } in affected {
            for &rank in ranks {
                let holder = &mut holder[rank as usize];
                if *holder == NOBODY {
                    *holder = count(run);
                }
                is_shared[rank as usize] |= *holder != count(run);
            }
        }
        holder.fill(NOBODY);
        Self {
            owner: holder,
            is_shared,
            is_any: false,
        }
    }

    fn is_shared(&self, rank: u32) -> bool {
        self.is_shared[rank as usize]
    }

    fn owner_of(&self, rank: u32) -> Option<u32> {
        let owner = self.owner[rank as usize];
        (owner != NOBODY).then_some(owner)
    }

    /// Lets a run own some of the blocks that it holds, given in ascending order.
    fn own(&mut self, blocks: &[BlockId], run: &Affected<'_>) {
        if blocks.is_empty() {
            return;
        }
        for (hit, &rank) in run.hits.iter().zip(run.ranks) {
            if blocks.binary_search(&hit.block).is_ok() {
                self.owner[rank as usize] = count(run.run);
            }
        }
        self.is_any = true;
    }
}
