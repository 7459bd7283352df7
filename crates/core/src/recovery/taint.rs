//! What is garbage: the failed blocks, and all that was computed from them.
//!
//! ```text
//! request 0   | loaded |  !  | loaded | computed from token 12 on ...
//!                          failed        ^ its first step reads all loaded blocks: tainted from here on
//! request 1   | ........ hit ........... | tainted block of request 0 | computed: tainted, too
//! ```
//! A step reads what the rule says that its tokens read, and writes every block from its first token
//! on, in every group. A run is looked at again only if its first tainted token moved forward, and
//! each entry of a table is tainted once, so the work is linear in the entries.

use std::ops::Range;

use smallvec::SmallVec;

use super::held::{Held, runs_of};
use super::hits::{Hit, Hits, Occurrences};
use super::run::{Gap, GivenBack, Tables};
use crate::blocks::{BlockId, BlockSet, NULL_BLOCK};
use crate::rule::first_read;
use crate::spec::{GroupSpec, SpecKind};

/// The tainted blocks, and the first tainted token of each run.
#[derive(Debug)]
pub(super) struct Taint {
    pub blocks: BlockSet,
    pub first: Vec<Option<u32>>,
}

/// What is needed to follow taint from run to run.
struct Spread<'a, 'b, T> {
    tables: &'a T,
    all: &'a [Held<'b>],
    /// The blocks that tables of ended runs have: the cache counts no references of theirs.
    ended: BlockSet,
    gone: &'a Gone,
    /// For each run and group, the position from which on all blocks are tainted already.
    written: Vec<SmallVec<[u32; 8]>>,
    /// Made when the first shared block is tainted.
    occurrences: Option<Occurrences>,
}

/// What runs have read and given back: in no table any more, and yet what they computed is garbage if
/// it is.
struct Gone {
    blocks: BlockSet,
    /// Blocks with the runs that have read them, in ascending order.
    readers: Vec<(BlockId, usize)>,
}

impl Gone {
    fn of(all: &[Held<'_>], groups: &[GroupSpec], num_blocks: usize) -> Self {
        let readers = all.iter().enumerate().flat_map(|(run, held)| {
            let start = held.run.start();
            let read = held.run.given_back.iter();
            let read = read.filter(move |gone| gone.was_read(groups, start));
            read.map(move |gone| (gone.block, run))
        });
        let mut readers: Vec<(BlockId, usize)> = readers.collect();
        readers.sort_unstable();
        let blocks: Vec<BlockId> = readers.iter().map(|&(block, _)| block).collect();
        Self {
            blocks: BlockSet::new(num_blocks, &blocks),
            readers,
        }
    }

    fn readers(&self, block: BlockId) -> impl Iterator<Item = usize> + '_ {
        let start = self.readers.partition_point(|&(other, _)| other < block);
        let own = self.readers[start..].iter();
        own.take_while(move |&&(other, _)| other == block)
            .map(|&(_, run)| run)
    }
}

impl Taint {
    pub(super) fn new(num_blocks: usize, num_runs: usize) -> Self {
        Self {
            blocks: BlockSet::new(num_blocks, &[]),
            first: vec![None; num_runs],
        }
    }

    /// Taints a block, and returns whether it was not tainted.
    pub(super) fn add(&mut self, block: BlockId) -> bool {
        self.blocks.insert(block)
    }

    /// Notes that a run has read garbage to compute a token. Returns whether that is news.
    pub(super) fn read(
        &mut self,
        run: usize,
        held: &Held<'_>,
        groups: &[GroupSpec],
        token: u32,
    ) -> bool {
        let first = &mut self.first[run];
        let is_news =
            token < held.run.num_computed_tokens && first.is_none_or(|first| token < first);
        if is_news {
            *first = Some(first_of_its_blocks(held, groups, token));
        }
        is_news
    }

    /// Whether the first token that a run computes is tainted. No token before it is computed, and
    /// most runs read their failed blocks there.
    fn reads_all(&self, all: &[Held<'_>], run: u32) -> bool {
        let run = run as usize;
        self.first[run] == Some(all[run].run.start())
    }

    /// Notes that all who have read a tainted block and given it back have read garbage; returns for
    /// whom that is news.
    fn read_gone(
        &mut self,
        all: &[Held<'_>],
        groups: &[GroupSpec],
        gone: &Gone,
        block: BlockId,
    ) -> Vec<usize> {
        let mut readers: Vec<usize> = gone.readers(block).collect();
        readers.retain(|&run| self.read(run, &all[run], groups, all[run].run.start()));
        readers
    }

    /// The requests that were told garbage by runs that have ended.
    pub(super) fn told(&self, all: &[Held<'_>]) -> Vec<u64> {
        let runs = all.iter().zip(&self.first);
        let told = runs.filter(|(held, first)| {
            held.has_ended() && first.is_some_and(|first| held.run.has_told(first))
        });
        let mut told: Vec<u64> = told.map(|(held, _)| held.run.request).collect();
        told.dedup();
        told
    }

    fn read_hit(&mut self, all: &[Held<'_>], groups: &[GroupSpec], hit: &Hit) -> bool {
        let (run, group) = (hit.run as usize, usize::from(hit.group));
        if self.reads_all(all, hit.run) {
            return false;
        }
        let reader = first_reader(&all[run], &groups[group], hit.position);
        reader.is_some_and(|token| self.read(run, &all[run], groups, token))
    }

    /// Notes who has read what is tainted so far.
    fn read_all(&mut self, all: &[Held<'_>], groups: &[GroupSpec], hits: &Hits, gone: &Gone) {
        for run in 0..all.len() {
            for hit in hits.of(run) {
                if self.blocks.has(hit.block) {
                    self.read_hit(all, groups, &hit);
                }
                if self.reads_all(all, hit.run) {
                    break;
                }
            }
        }
        for block in gone.blocks.iter() {
            if self.blocks.has(block) {
                self.read_gone(all, groups, gone, block);
            }
        }
    }

    /// Taints everything that was computed from what is tainted. `hits` are all entries of the
    /// blocks of `scanned`, which has all that is tainted so far; entries of other blocks are added
    /// if two tables may have them.
    pub(super) fn spread(
        &mut self,
        tables: &impl Tables,
        all: &[Held<'_>],
        hits: &mut Hits,
        scanned: &BlockSet,
    ) {
        let groups = &tables.topology().groups;
        let gone = Gone::of(all, groups, tables.num_blocks());
        self.read_all(all, groups, hits, &gone);
        let ended = all.iter().filter(|held| held.has_ended());
        let ended = ended.flat_map(|held| held.own.groups.iter().flat_map(|table| table.blocks));
        let ended: Vec<BlockId> = ended.copied().collect();
        let mut spread = Spread {
            tables,
            all,
            ended: BlockSet::new(tables.num_blocks(), &ended),
            gone: &gone,
            written: vec![SmallVec::from_elem(u32::MAX, groups.len()); all.len()],
            occurrences: None,
        };
        let mut changed: Vec<usize> = (0..all.len())
            .filter(|&run| self.first[run].is_some())
            .collect();
        let mut more = Vec::new();
        while let Some(run) = changed.pop() {
            for block in spread.write(self, run) {
                let here = spread.occurrences(block);
                if !scanned.has(block) {
                    more.extend_from_slice(here);
                }
                for hit in here {
                    if self.read_hit(all, groups, hit) {
                        changed.push(hit.run as usize);
                    }
                }
                changed.extend(self.read_gone(all, groups, &gone, block));
            }
        }
        if !self.blocks.has_all(scanned) {
            hits.retain(&self.blocks);
        }
        if !more.is_empty() {
            hits.add(&more);
        }
    }
}

impl<T: Tables> Spread<'_, '_, T> {
    /// Taints what a run wrote from its first tainted token on. Returns what other tables may have.
    fn write(&mut self, taint: &mut Taint, run: usize) -> Vec<BlockId> {
        let Some(first) = taint.first[run] else {
            return Vec::new();
        };
        let held = &self.all[run];
        let mut shared = Vec::new();
        let mut found = Vec::new();
        for (group, spec) in self.tables.topology().groups.iter().enumerate() {
            let blocks = held.own.groups[group].blocks;
            let start = first / spec.block_size;
            let before = std::mem::replace(&mut self.written[run][group], start);
            for &block in part(blocks, start..before) {
                if block != NULL_BLOCK && taint.add(block) && self.may_be_shared(block) {
                    shared.push(block);
                }
            }
            if held.run.delays_commit {
                continue;
            }
            let is_new = |gone: &&GivenBack| {
                let is_here = (start..before).contains(&gone.position) && !gone.copied;
                gone.group as usize == group && is_here
            };
            let blocks_found = held.run.given_back.iter().filter(is_new);
            let blocks_found = blocks_found.map(|gone| gone.block);
            shared.extend(blocks_found.filter(|&block| taint.add(block)));
            let computed = held.run.num_computed_tokens.div_ceil(spec.block_size);
            let gap = Gap {
                group,
                positions: start..computed.min(before),
                blocks,
                start: held.run.start(),
                read: &held.run.given_back,
            };
            self.tables.find(held.run.request, &gap, &mut found);
            let own = found.drain(..).filter(|&(position, block)| {
                !self.has_another_run_written(run, (group, position, block))
            });
            shared.extend(
                own.map(|(_, block)| block)
                    .filter(|&block| taint.add(block)),
            );
        }
        shared
    }

    /// Whether a block was registered by another run of the request, which has ended: a cache knows
    /// who has registered a block, and not in which run.
    fn has_another_run_written(
        &self,
        run: usize,
        (group, position, block): (usize, u32, BlockId),
    ) -> bool {
        let size = self.tables.topology().groups[group].block_size;
        self.ended.has(block)
            && runs_of(self.all, self.all[run].run.request)
                .filter(|&other| other != run && self.all[other].has_ended())
                .map(|other| &self.all[other])
                .any(|other| {
                    position >= other.run.start() / size && other.block_at(group, position) == block
                })
    }

    fn may_be_shared(&self, block: BlockId) -> bool {
        self.ended.has(block) || self.gone.blocks.has(block) || self.tables.may_be_shared(block)
    }

    /// Where a block stands in the tables.
    fn occurrences(&mut self, block: BlockId) -> &[Hit] {
        let all = self.all;
        let occurrences = &mut self.occurrences;
        occurrences
            .get_or_insert_with(|| Occurrences::new(all))
            .of(block)
    }
}

fn part(blocks: &[BlockId], positions: Range<u32>) -> &[BlockId] {
    let end = (positions.end as usize).min(blocks.len());
    blocks.get(positions.start as usize..end).unwrap_or(&[])
}

/// The first token that reads a block into which a token is written, or one into which that token is
/// written, and so on: a block is tainted as a whole, and the blocks of groups differ in size.
fn first_of_its_blocks(held: &Held<'_>, groups: &[GroupSpec], mut token: u32) -> u32 {
    loop {
        let blocks = groups.iter().enumerate().map(|(group, spec)| {
            let position = token / spec.block_size;
            let is_held = held.block_at(group, position) != NULL_BLOCK;
            let reader = is_held.then(|| first_reader(held, spec, position));
            reader.flatten().unwrap_or(token)
        });
        match blocks.min() {
            Some(lower) if lower < token => token = lower,
            _ => return token,
        }
    }
}

/// The first token that a run computes and that reads the block at a position; `None` if none does.
fn first_reader(held: &Held<'_>, spec: &GroupSpec, position: u32) -> Option<u32> {
    let start = held.run.start();
    if spec.kind == SpecKind::Mamba {
        return held.is_start_state(spec, position).then_some(start);
    }
    let size = u64::from(spec.block_size);
    let begins = u64::from(position) * size;
    let token = start.max(u32::try_from(begins).unwrap_or(u32::MAX));
    (u64::from(first_read(spec, token)) < begins + size).then_some(token)
}
