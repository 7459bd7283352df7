//! Which parts of a report count: those that name what a load of some run fills, or has filled.
//!
//! ```text
//! place, request   looked up in the run's own tables; their blocks are wanted, too
//! block, pair      wanted in all tables; counts where the entry is in a run's load
//! ```
//! Everything else is counted by the reason why it does not count, once however often it is told.

use super::held::Held;
use super::hits::Hits;
use super::run::{FailedPlace, Failures, Tables};
use super::taint::Taint;
use crate::blocks::{BlockId, BlockSet, NULL_BLOCK};

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
    /// Blocks with their groups, in ascending order, and whether a run loads them there.
    pairs: Vec<(BlockId, u32)>,
    is_loaded: Vec<bool>,
}

/// What a report is held against.
pub(super) struct Judge<'a, 'b, T> {
    tables: &'a T,
    all: &'a [Held<'b>],
    taint: &'a mut Taint,
    ignored: &'a mut IgnoredCounts,
}

impl<'a, 'b, T: Tables> Judge<'a, 'b, T> {
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

    fn index_of(&self, request: u64) -> Option<usize> {
        let find = |held: &Held<'_>| held.run.request.cmp(&request);
        self.all.binary_search_by(find).ok()
    }

    /// Taints what places and requests name.
    pub(super) fn fail_places(&mut self, failures: &Failures) {
        for place in distinct(&failures.places) {
            let why = match self.index_of(place.request) {
                Some(run) => self.fail_place(run, place),
                None => Some(Ignored::UnknownRequest),
            };
            if let Some(why) = why {
                self.ignore(why);
            }
        }
        for request in distinct(&failures.requests) {
            match self.index_of(request) {
                Some(run) if self.fail_request(run) => {}
                Some(_) => self.ignore(Ignored::NotLoaded),
                None => self.ignore(Ignored::UnknownRequest),
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
        let gone = held.run.given_back.iter();
        let mut is_lost = false;
        for &gone in gone.filter(|gone| (gone.group, gone.position) == (place.group, position)) {
            self.taint.lose(self.tables, run, held, gone);
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

    /// Taints all that a run loads, and returns whether there is anything.
    fn fail_request(&mut self, run: usize) -> bool {
        let held = &self.all[run];
        let mut is_any = !held.run.given_back.is_empty();
        for &gone in &held.run.given_back {
            self.taint.lose(self.tables, run, held, gone);
        }
        for (group, spec) in self.tables.topology().groups.iter().enumerate() {
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
        let (num_blocks, num_groups) = (
            self.tables.num_blocks(),
            self.tables.topology().groups.len(),
        );
        let mut is_block = |block: BlockId, group: u32| {
            let is_there = block.index() < num_blocks && (group as usize) < num_groups;
            if !is_there {
                self.ignore(Ignored::OutOfRange);
            } else if block == NULL_BLOCK {
                self.ignore(Ignored::NullBlock);
            }
            is_there && block != NULL_BLOCK
        };
        let mut blocks = distinct(&failures.blocks);
        blocks.retain(|&block| is_block(block, 0));
        let mut pairs = distinct(&failures.group_blocks);
        pairs.retain(|&(block, group)| is_block(block, group));
        let set = BlockSet::new(num_blocks, &blocks);
        Reported {
            num_blocks: blocks.len() as u64,
            loaded: BlockSet::with_room_of(&set),
            blocks: set,
            is_loaded: vec![false; pairs.len()],
            pairs,
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
                for entry in hits.within(table, &loaded) {
                    if reported.finds(entry.block, group) {
                        self.taint.add(entry.block);
                    }
                }
            }
        }
        for (run, held) in self.all.iter().enumerate() {
            for &gone in &held.run.given_back {
                if reported.finds(gone.block, gone.group) {
                    self.taint.lose(self.tables, run, held, gone);
                }
            }
        }
        let found = reported.loaded.len() as u64;
        let pairs = reported.is_loaded.iter().filter(|found| !**found).count() as u64;
        self.ignored[Ignored::NotLoaded as usize] += reported.num_blocks - found + pairs;
    }
}

impl Reported {
    /// Adds all blocks that have to be looked for.
    pub(super) fn want(&self, wanted: &mut BlockSet) {
        wanted.insert_all(&self.blocks);
        for &(block, _) in &self.pairs {
            wanted.insert(block);
        }
    }

    /// Whether a loaded block of a group was reported. It is noted as loaded.
    fn finds(&mut self, block: BlockId, group: u32) -> bool {
        let is_reported = self.blocks.has(block);
        if is_reported {
            self.loaded.insert(block);
        }
        let pair = self.pairs.binary_search(&(block, group));
        if let Ok(at) = pair {
            self.is_loaded[at] = true;
        }
        is_reported || pair.is_ok()
    }
}

fn distinct<V: Copy + Ord>(values: &[V]) -> Vec<V> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}
