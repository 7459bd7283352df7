//! Which parts of a report count: those that name what a load of some run fills, or has filled.
//!
//! ```text
//! place, request   looked up in the run's own tables; their blocks are wanted, too
//! block, pair      wanted in all tables; counts where the entry is in a run's load. Of a block that
//!                  was handed out again, what it held before counts as well: nobody knows which
//! content          that one alone
//! ```
//! Everything else is counted by the reason why it does not count, once however often it is told.

use super::held::{Held, runs_of};
use super::hits::{Hits, within};
use super::run::{FailedPlace, Failures, GivenBack, Tables};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet, NULL_BLOCK, count};

/// Why a part of a report does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignored {
    /// The null block.
    NullBlock,
    /// The request is not known, or has ended.
    UnknownRequest,
    /// The request has no such group or position, or the pool no such block.
    OutOfRange,
    /// No load of any run fills the block.
    NotLoaded,
}

/// How many parts of a report do not count, in the order of [`Ignored`].
pub type IgnoredCounts = [u64; 4];

/// Blocks of a report that count if some run loads them.
#[derive(Debug)]
pub(super) struct Reported {
    blocks: BlockSet,
    loaded: BlockSet,
    num_blocks: u64,
    pairs: Pairs,
    contents: Pairs,
    /// Contents from this number on are former ones.
    num_present: usize,
    former: Vec<BlockId>,
}

/// Blocks with their groups, in ascending order, and whether a run loads them there.
#[derive(Debug)]
struct Pairs {
    pairs: Vec<(BlockId, u32)>,
    is_loaded: Vec<bool>,
}

/// Says which parts of a report count.
pub(super) struct ReportFilter<'a, 'b, T> {
    tables: &'a T,
    all: &'a [Held<'b>],
    taint: &'a mut Taint,
    ignored: &'a mut IgnoredCounts,
}

impl<'a, 'b, T: Tables> ReportFilter<'a, 'b, T> {
    pub(super) fn new(
        tables: &'a T,
        all: &'a [Held<'b>],
        taint: &'a mut Taint,
        ignored: &'a mut IgnoredCounts,
    ) -> Self {
        Self {
            tables,
            all,
            taint,
            ignored,
        }
    }

    fn ignore(&mut self, why: Ignored) {
        self.ignored[why as usize] += 1;
    }

    /// Taints what places and requests name.
    pub(super) fn fail_places(&mut self, failures: &Failures) {
        for place in distinct(&failures.places) {
            let mut why = Some(Ignored::UnknownRequest);
            let mut counts = false;
            for run in runs_of(self.all, place.request) {
                why = self.fail_place(run, place);
                counts |= why.is_none();
            }
            if let Some(why) = why.filter(|_| !counts) {
                self.ignore(why);
            }
        }
        for request in distinct(&failures.requests) {
            let runs = runs_of(self.all, request);
            let is_known = !runs.is_empty();
            let num_failed = runs.filter(|&run| self.fail_request(run)).count();
            match (is_known, num_failed) {
                (false, _) => self.ignore(Ignored::UnknownRequest),
                (true, 0) => self.ignore(Ignored::NotLoaded),
                (true, _) => {}
            }
        }
    }

    /// Taints a place, or says why not.
    fn fail_place(&mut self, run: usize, place: FailedPlace) -> Option<Ignored> {
        let held = &self.all[run];
        let (group, position) = (place.group as usize, place.position);
        let Some(spec) = self.tables.topology().groups.get(group) else {
            return Some(Ignored::OutOfRange);
        };
        let block = held.block_at(group, position);
        let is_loaded = block != NULL_BLOCK && held.loaded(group, spec).contains(&position);
        if is_loaded {
            self.taint.add(block);
        }
        let groups = &self.tables.topology().groups;
        let is_here = |gone: &GivenBack| (gone.group, gone.position) == (place.group, position);
        let mut is_lost = false;
        for gone in held.lost(groups).filter(is_here) {
            self.lose(run, gone);
            is_lost = true;
        }
        if is_loaded || is_lost {
            None
        } else if position as usize >= held.own.groups[group].blocks.len() {
            Some(Ignored::OutOfRange)
        } else if block == NULL_BLOCK {
            Some(Ignored::NullBlock)
        } else {
            Some(Ignored::NotLoaded)
        }
    }

    /// Taints a content that a run has read and given back. The null block is none.
    fn lose(&mut self, run: usize, gone: GivenBack) {
        self.taint.add(gone.block);
        let groups = &self.tables.topology().groups;
        self.taint
            .read(run, &self.all[run], groups, self.all[run].run.start());
    }

    /// Taints all that a run loads, and returns whether there is anything.
    fn fail_request(&mut self, run: usize) -> bool {
        let held = &self.all[run];
        let groups = &self.tables.topology().groups;
        let mut is_any = false;
        for gone in held.lost(groups) {
            is_any = true;
            self.lose(run, gone);
        }
        for (group, spec) in groups.iter().enumerate() {
            for position in held.loaded(group, spec) {
                let block = held.block_at(group, position);
                if block != NULL_BLOCK {
                    is_any = true;
                    self.taint.add(block);
                }
            }
        }
        is_any
    }

    /// The blocks of a report, less those that cannot be.
    pub(super) fn blocks(&mut self, failures: &Failures) -> Reported {
        let former = self.tables.former();
        let num_contents = self.tables.num_blocks();
        let num_groups = self.tables.topology().groups.len();
        let mut is_block = |block: BlockId, group: u32, num_blocks: usize| {
            let is_there = block.index() < num_blocks && (group as usize) < num_groups;
            if !is_there {
                self.ignore(Ignored::OutOfRange);
            } else if block == NULL_BLOCK {
                self.ignore(Ignored::NullBlock);
            }
            is_there && block != NULL_BLOCK
        };
        let mut blocks = distinct(&failures.blocks);
        let num_blocks = num_contents - former.len();
        blocks.retain(|&block| is_block(block, 0, num_blocks));
        let mut pairs = distinct(&failures.group_blocks);
        pairs.retain(|&(block, group)| is_block(block, group, num_blocks));
        let mut contents = distinct(&failures.contents);
        contents.retain(|&(block, group)| is_block(block, group, num_contents));
        let set = BlockSet::new(num_contents, &blocks);
        Reported {
            num_blocks: blocks.len() as u64,
            loaded: BlockSet::with_room_of(&set),
            blocks: set,
            pairs: Pairs::new(pairs),
            contents: Pairs::new(contents),
            num_present: num_blocks,
            former: former.to_vec(),
        }
    }

    /// Taints the reported blocks that a run loads, and counts the others. `hits` are all their
    /// entries.
    pub(super) fn fail_blocks(&mut self, mut reported: Reported, hits: &Hits) {
        let groups = &self.tables.topology().groups;
        for (run, held) in self.all.iter().enumerate() {
            for (group, (spec, table)) in (0u32..).zip(groups.iter().zip(hits.tables(run))) {
                if table.is_empty() {
                    continue;
                }
                let loaded = held.loaded(group as usize, spec);
                for entry in within(table, &loaded) {
                    if reported.finds(entry.block, group) {
                        self.taint.add(entry.block);
                    }
                }
            }
        }
        for (run, held) in self.all.iter().enumerate() {
            for gone in held.lost(groups) {
                if reported.finds(gone.block, gone.group) {
                    self.lose(run, gone);
                }
            }
        }
        let found = reported.loaded.len() as u64;
        let pairs = reported.pairs.num_unloaded() + reported.contents.num_unloaded();
        self.ignored[Ignored::NotLoaded as usize] += reported.num_blocks - found + pairs;
    }
}

impl Reported {
    /// Adds all blocks that have to be looked for.
    pub(super) fn want(&self, wanted: &mut BlockSet) {
        wanted.insert_all(&self.blocks);
        for &(block, _) in self.pairs.pairs.iter().chain(&self.contents.pairs) {
            wanted.insert(block);
        }
        let told = wanted.clone();
        for (content, &block) in (count(self.num_present)..).zip(&self.former) {
            if told.has(block) {
                wanted.insert(BlockId(content));
            }
        }
    }

    /// Whether a loaded block of a group was reported. It is noted as loaded.
    fn finds(&mut self, content: BlockId, group: u32) -> bool {
        let before = content.index().checked_sub(self.num_present);
        let block = before.map_or(content, |at| self.former[at]);
        let is_reported = self.blocks.has(block);
        if is_reported {
            self.loaded.insert(block);
        }
        let is_pair = self.pairs.finds((block, group));
        self.contents.finds((content, group)) || is_pair || is_reported
    }
}

impl Pairs {
    fn new(pairs: Vec<(BlockId, u32)>) -> Self {
        let is_loaded = vec![false; pairs.len()];
        Self { pairs, is_loaded }
    }

    fn finds(&mut self, pair: (BlockId, u32)) -> bool {
        let at = self.pairs.binary_search(&pair);
        if let Ok(at) = at {
            self.is_loaded[at] = true;
        }
        at.is_ok()
    }

    fn num_unloaded(&self) -> u64 {
        self.is_loaded.iter().filter(|found| !**found).count() as u64
    }
}

fn distinct<V: Copy + Ord>(values: &[V]) -> Vec<V> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}
