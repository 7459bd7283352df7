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
use std::sync::Arc;

use smallvec::SmallVec;

use super::held::Held;
use super::hits::{Entry, Hit, Hits, TableHits};
use super::resume_point::{Refusal, ResumePoint, Search};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet, Ranks, count};
use crate::rule::{first_read, needed};
use crate::spec::{GroupSpec, SpecKind, Topology};

/// Blocks with the requests that own them. Runs that wait for the same often share one list.
pub type Waits = Arc<[(BlockId, u64)]>;

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
    pub waits_for: Waits,
    /// The blocks of its tables that a transfer may still write, in ascending order.
    pub busy: Vec<BlockId>,
    /// Larger boundaries that a group refuses, as many as were asked for.
    pub refused: Vec<Refusal>,
}

const NOBODY: u32 = u32::MAX;

/// Who holds and who owns tainted blocks, each of them known by its rank among them.
struct Owners<'a> {
    ranks: Ranks<'a>,
    /// For each entry of the hits, the rank of its block.
    of_entry: Vec<u32>,
    /// The index of the run that owns the block.
    owner: Vec<u32>,
    is_shared: Vec<bool>,
    num_owned: usize,
}

/// A run that goes on and holds or has read garbage.
struct Affected<'a> {
    /// The index of the run.
    run: usize,
    /// Its entries of tainted blocks, by group.
    tables: &'a [TableHits],
}

/// What the tables of a run begin with as those of an earlier run do. Many runs may begin alike; then
/// they are judged once.
#[derive(Default)]
struct Prefix {
    shared: SmallVec<[Range<usize>; 8]>,
    /// For each group, the first position whose block nobody owns.
    unowned: SmallVec<[Option<u32>; 8]>,
    /// All blocks with their owners, if each has one. Then it stays.
    waits: Option<Waits>,
    num_owned: usize,
}

/// A search for verdicts, run by run.
pub(super) struct VerdictSearch<'a, 'b> {
    pub topology: &'a Topology,
    pub all: &'a [Held<'b>],
    pub taint: &'a Taint,
    /// All entries of tainted blocks that two tables may have, and maybe of other tainted ones.
    pub hits: &'a Hits,
    pub busy: &'a BlockSet,
    pub is_any_busy: bool,
    pub max_refusals: usize,
}

impl VerdictSearch<'_, '_> {
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let affected = self.affected();
        let mut owners = Owners::new(&self.taint.blocks, &self.hits.entries, &affected);
        let mut prefix = Prefix::default();
        // What is being written is not there yet.
        let mut bad = self.taint.blocks.clone();
        for block in self.busy.iter() {
            bad.insert(block);
        }
        // What runs that give their blocks back may use, and what the others may.
        let found = Search::new(self.topology, bad, false, self.max_refusals);
        let mut held = Cow::Borrowed(&found);
        let verdict = |run: &Affected<'_>| {
            if !prefix.is_of(run, &owners) {
                prefix = self.prefix(run, &owners);
            }
            let verdict = self.verdict(run, &owners, &prefix, (&found, &held));
            owners.own(&verdict.owner_of, run.run);
            for &block in &verdict.owner_of {
                held.to_mut().trust(block);
            }
            verdict
        };
        affected.iter().map(verdict).collect()
    }

    fn affected(&self) -> Vec<Affected<'_>> {
        let is_affected = |&(run, held): &(usize, &Held<'_>)| {
            let is_computed = |hit: Hit| {
                let spec = &self.topology.groups[usize::from(hit.group)];
                hit.position < held.run.num_computed_tokens.div_ceil(spec.block_size)
            };
            let is_read = self.taint.first[run].is_some();
            !held.has_ended() && (is_read || self.hits.of(run).any(is_computed))
        };
        let runs = self.all.iter().enumerate().filter(is_affected);
        let affected = |(run, _)| Affected {
            run,
            tables: self.hits.tables(run),
        };
        runs.map(affected).collect()
    }

    fn prefix(&self, run: &Affected<'_>, owners: &Owners<'_>) -> Prefix {
        let shared = || run.tables.iter().map(|table| table.shared.clone());
        let unowned: SmallVec<_> = shared().map(|part| self.unowned(part, owners)).collect();
        let waits = unowned.iter().all(Option::is_none).then(|| {
            let owned = shared().flatten().filter_map(|at| self.wait(at, owners));
            owned.collect()
        });
        Prefix {
            shared: shared().collect(),
            unowned,
            waits,
            num_owned: owners.num_owned,
        }
    }

    /// The first position of a part of a table whose block nobody owns.
    fn unowned(&self, mut part: Range<usize>, owners: &Owners<'_>) -> Option<u32> {
        let at = part.find(|&at| owners.owner_of(at).is_none())?;
        Some(self.hits.entries[at].position)
    }

    /// The block of an entry with the request that owns it, if one does.
    fn wait(&self, at: usize, owners: &Owners<'_>) -> Option<(BlockId, u64)> {
        let owner = owners.owner_of(at)?;
        let request = self.all[owner as usize].run.request;
        Some((self.hits.entries[at].block, request))
    }

    fn verdict(
        &self,
        affected: &Affected<'_>,
        owners: &Owners<'_>,
        prefix: &Prefix,
        (found, in_tables): (&Search, &Search),
    ) -> Verdict {
        let held = &self.all[affected.run];
        let run = held.run;
        let first_tainted = self.taint.first[affected.run];
        let handed_out = first_tainted.is_some_and(|first| run.has_told(first));
        let mut own = held.own.clone();
        let limit = first_tainted
            .unwrap_or(u32::MAX)
            .min(run.num_processed_tokens);
        own.num_computed_tokens = limit;
        let unowned = |group: usize, table: &TableHits| {
            prefix.unowned[group].or_else(|| self.unowned(table.own.clone(), owners))
        };
        let mut point = in_tables.resume_point_after(&own, &self.clean(affected, unowned));
        let mut back = self.go_back(affected, owners, prefix, point.num_tokens);
        if handed_out || !back.is_possible {
            back = Back::default();
            if owners.num_owned > 0 {
                let any = |_, table: &TableHits| {
                    let at = table.parts().into_iter().flatten().next()?;
                    Some(self.hits.entries[at].position)
                };
                point = found.resume_point_after(&own, &self.clean(affected, any));
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
    fn clean(
        &self,
        run: &Affected<'_>,
        first_bad: impl Fn(usize, &TableHits) -> Option<u32>,
    ) -> SmallVec<[u32; 8]> {
        let held = &self.all[run.run];
        let written = self.taint.first[run.run].unwrap_or(u32::MAX);
        let groups = self.topology.groups.iter().zip(run.tables).enumerate();
        let clean = groups.map(|(group, (spec, table))| {
            if self.is_any_busy || held.whole_from[group] != 0 {
                return 0;
            }
            let length = count(held.own.groups[group].blocks.len());
            let bad = first_bad(group, table).unwrap_or(u32::MAX);
            length.min(written / spec.block_size).min(bad)
        });
        clean.collect()
    }

    /// How a run goes back to a boundary with the blocks that it has, if it can.
    fn go_back(
        &self,
        run: &Affected<'_>,
        owners: &Owners<'_>,
        prefix: &Prefix,
        boundary: u32,
    ) -> Back {
        let held = &self.all[run.run];
        let mut groups = (0..).zip(&self.topology.groups);
        if !groups.all(|(group, spec)| self.keeps(held, group, spec, boundary)) {
            return Back::default();
        }
        let known = self.waits_of_prefix(prefix, boundary);
        let mut waits = Vec::new();
        let mut rewrites = Vec::new();
        for (table, spec) in run.tables.iter().zip(&self.topology.groups) {
            let (read, written) = (reads(spec, boundary), boundary / spec.block_size);
            let [shared, own] = table.parts();
            for at in shared.filter(|_| known.is_none()).chain(own) {
                let Entry { position, block } = self.hits.entries[at];
                let is_written = position >= written;
                match self.wait(at, owners) {
                    Some(wait) if !is_written && read.contains(&position) => waits.push(wait),
                    None if is_written => rewrites.extend(owners.is_shared(at).then_some(block)),
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
            waits_for: join(known, waits),
        }
    }

    /// The blocks that the tables have in common with an earlier run, if all of them are waited for.
    fn waits_of_prefix<'p>(&self, prefix: &'p Prefix, boundary: u32) -> Option<&'p Waits> {
        let mut groups = self.topology.groups.iter().zip(&prefix.shared);
        let are_read = groups.all(|(spec, part)| {
            let entries = &self.hits.entries[part.clone()];
            let read = reads(spec, boundary);
            let end = read.end.min(boundary / spec.block_size);
            entries
                .first()
                .is_none_or(|first| first.position >= read.start)
                && entries.last().is_none_or(|last| last.position < end)
        });
        prefix.waits.as_ref().filter(|_| are_read)
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
    waits_for: Waits,
}

/// What is waited for, known before or found after it.
fn join(known: Option<&Waits>, found: Vec<(BlockId, u64)>) -> Waits {
    match known {
        Some(known) if found.is_empty() => Arc::clone(known),
        Some(known) => known.iter().copied().chain(found).collect(),
        None => found.into(),
    }
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

impl Prefix {
    /// Whether this is what the tables of a run begin with, and still true.
    fn is_of(&self, run: &Affected<'_>, owners: &Owners<'_>) -> bool {
        let is_true = self.waits.is_some() || self.num_owned == owners.num_owned;
        let shared = run.tables.iter().map(|table| &table.shared);
        is_true && self.shared.iter().eq(shared)
    }
}

impl<'a> Owners<'a> {
    fn new(tainted: &'a BlockSet, entries: &[Entry], affected: &[Affected<'_>]) -> Self {
        let ranks = tainted.ranks();
        let of_entry: Vec<u32> = entries.iter().map(|entry| ranks.of(entry.block)).collect();
        let mut is_shared = vec![false; tainted.len()];
        let mut holder = vec![NOBODY; tainted.len()];
        let mut hold = |run: usize, part: Range<usize>| {
            for &rank in &of_entry[part] {
                let holder = &mut holder[rank as usize];
                if *holder == NOBODY {
                    *holder = count(run);
                }
                is_shared[rank as usize] |= *holder != count(run);
            }
        };
        for (at, &Affected { run, tables }) in affected.iter().enumerate() {
            let before = at
                .checked_sub(2)
                .map_or(&[][..], |at| &affected[at..at + 2]);
            for (group, table) in tables.iter().enumerate() {
                hold(run, table.own.clone());
                // After two runs that begin so, a third one changes nothing.
                let is_alike = |run: &Affected<'_>| run.tables[group].shared == table.shared;
                if before.is_empty() || !before.iter().all(is_alike) {
                    hold(run, table.shared.clone());
                }
            }
        }
        holder.fill(NOBODY);
        Self {
            ranks,
            of_entry,
            owner: holder,
            is_shared,
            num_owned: 0,
        }
    }

    /// Whether two affected runs have the block of an entry.
    fn is_shared(&self, at: usize) -> bool {
        self.is_shared[self.of_entry[at] as usize]
    }

    /// The index of the run that owns the block of an entry.
    fn owner_of(&self, at: usize) -> Option<u32> {
        let owner = self.owner[self.of_entry[at] as usize];
        (owner != NOBODY).then_some(owner)
    }

    /// Lets a run own some of the blocks that it holds.
    fn own(&mut self, blocks: &[BlockId], run: usize) {
        for &block in blocks {
            self.owner[self.ranks.of(block) as usize] = count(run);
        }
        self.num_owned += blocks.len();
    }
}
