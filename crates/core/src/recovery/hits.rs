//! Where some blocks stand in the tables of all runs.
//!
//! ```text
//! run   group    position  0   1   2   3   4   5
//!  0      0                7   8   9  10  11            one scan for the blocks 9 and 30 finds
//!  0      1                .   .  30  31  32            9 in (0, 0), 30 in (0, 1), and that (1, 0)
//!  1      0                7   8   9  20                begins as (0, 0) does, with that 9;
//!  1      1                .   .   .  41                and that (1, 1) has all blocks from 3 on
//! ```
//! Tables are read once, whatever the number of blocks. What they have in common at their beginning is
//! stored once, and can be judged once.

use std::ops::Range;

use super::held::Held;
use crate::blocks::{BlockId, BlockSet, NULL_BLOCK, count};

/// One entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hit {
    /// The index of the run.
    pub run: u32,
    pub group: u16,
    pub position: u32,
    pub block: BlockId,
}

/// One of the blocks that are looked for, in a table that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub position: u32,
    pub block: BlockId,
}

/// The entries of one table: ranges of all entries, each in the order of positions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TableHits {
    /// What the table of an earlier run begins with, too.
    pub shared: Range<usize>,
    /// What comes after that.
    pub own: Range<usize>,
}

impl TableHits {
    pub(super) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.own.is_empty()
    }

    /// Both parts, in the order of positions.
    pub(super) fn parts(&self) -> [Range<usize>; 2] {
        [self.shared.clone(), self.own.clone()]
    }
}

/// Where some blocks stand in all tables.
#[derive(Debug)]
pub(super) struct Hits {
    pub entries: Vec<Entry>,
    /// One for each run and group.
    tables: Vec<TableHits>,
    num_groups: usize,
}

impl Hits {
    fn new(num_runs: usize, num_groups: usize) -> Self {
        Self {
            entries: Vec::new(),
            tables: Vec::with_capacity(num_runs * num_groups),
            num_groups,
        }
    }

    /// The tables of a run, one for each group.
    pub(super) fn tables(&self, run: usize) -> &[TableHits] {
        &self.tables[run * self.num_groups..(run + 1) * self.num_groups]
    }

    /// The entries of a run, in the order of groups and positions.
    pub(super) fn of(&self, run: usize) -> impl Iterator<Item = Hit> {
        let tables = (0u16..).zip(self.tables(run));
        tables.flat_map(move |(group, table)| {
            let entries = table
                .parts()
                .into_iter()
                .flat_map(|part| &self.entries[part]);
            entries.map(move |&Entry { position, block }| Hit {
                run: count(run),
                group,
                position,
                block,
            })
        })
    }

    /// The entries of one table at some positions.
    pub(super) fn within(
        &self,
        table: &TableHits,
        positions: &Range<u32>,
    ) -> impl Iterator<Item = Entry> {
        table.parts().into_iter().flat_map(|part| {
            let entries = &self.entries[part];
            let start = entries.partition_point(|entry| entry.position < positions.start);
            let end = entries.partition_point(|entry| entry.position < positions.end);
            entries.get(start..end).unwrap_or(&[]).iter().copied()
        })
    }

    /// Leaves out all other blocks.
    pub(super) fn retain(&mut self, blocks: &BlockSet) {
        let mut ends = vec![0];
        let mut kept = Vec::new();
        for &entry in &self.entries {
            kept.extend(blocks.has(entry.block).then_some(entry));
            ends.push(kept.len());
        }
        self.entries = kept;
        for table in &mut self.tables {
            for part in [&mut table.shared, &mut table.own] {
                *part = ends[part.start]..ends[part.end];
            }
        }
    }

    /// Adds entries of other blocks. What a table shares stays so if all of its new ones are after it.
    pub(super) fn add(&mut self, mut more: Vec<Hit>) {
        more.sort_unstable();
        for of_table in more.chunk_by(|a, b| (a.run, a.group) == (b.run, b.group)) {
            let (run, group) = (of_table[0].run as usize, usize::from(of_table[0].group));
            let table = &mut self.tables[run * self.num_groups + group];
            let [shared, own] = table.parts();
            let start = self.entries.len();
            let last = self.entries[shared.clone()].last();
            if last.is_some_and(|last| of_table[0].position < last.position) {
                table.shared = 0..0;
                self.entries.extend_from_within(shared);
            }
            self.entries.extend_from_within(own);
            let entry = |hit: &Hit| Entry {
                position: hit.position,
                block: hit.block,
            };
            self.entries.extend(of_table.iter().map(entry));
            self.entries[start..].sort_unstable_by_key(|entry| entry.position);
            table.own = start..self.entries.len();
        }
    }

    /// Begins a table with the entries that the same group's table of the run before has before a
    /// position. They are copied only if they are in two parts there.
    fn begin_like_the_last(&mut self, end: u32) -> TableHits {
        let mut other = self.tables[self.tables.len() - self.num_groups].clone();
        for part in [&mut other.shared, &mut other.own] {
            let entries = &self.entries[part.clone()];
            part.end = part.start + entries.partition_point(|entry| entry.position < end);
        }
        if other.own.is_empty() {
            return other;
        }
        if other.shared.is_empty() {
            return TableHits {
                shared: other.own,
                ..TableHits::default()
            };
        }
        other
            .parts()
            .into_iter()
            .for_each(|part| self.entries.extend_from_within(part));
        TableHits::default()
    }

    /// Notes a table whose own entries are the last ones, from an index on.
    fn finish(&mut self, table: TableHits, start: usize) {
        let own = start..self.entries.len();
        self.tables.push(TableHits { own, ..table });
    }
}

/// Finds every entry that is one of these blocks.
pub(super) fn find(all: &[Held<'_>], wanted: &BlockSet, num_groups: usize) -> Hits {
    let mut hits = Hits::new(all.len(), num_groups);
    for (run, held) in all.iter().enumerate() {
        for group in 0..num_groups {
            let start = hits.entries.len();
            let (null, blocks) = part(held, group);
            // Requests with a common prefix often follow each other.
            let common = match run.checked_sub(1).map(|other| part(&all[other], group)) {
                Some((other_null, other)) if other_null == null => common_prefix(other, blocks),
                _ => 0,
            };
            let table = match common {
                0 => TableHits::default(),
                _ => hits.begin_like_the_last(null + count(common)),
            };
            let rest = &blocks[common..];
            let entry = |at: usize| Entry {
                position: null + count(common + at),
                block: rest[at],
            };
            hits.entries.extend(wanted.found_in(rest).map(entry));
            hits.finish(table, start);
        }
    }
    hits
}

/// The blocks of a table that are read, and how many null blocks come before them.
fn part<'a>(held: &Held<'a>, group: usize) -> (u32, &'a [BlockId]) {
    let table = &held.own.groups[group];
    (table.num_null, table.from(table.num_null))
}

/// How many entries two tables have in common at their beginning, rounded down.
fn common_prefix(a: &[BlockId], b: &[BlockId]) -> usize {
    const CHUNK: usize = 32;
    let chunks = a
        .as_chunks::<CHUNK>()
        .0
        .iter()
        .zip(b.as_chunks::<CHUNK>().0);
    let is_same = |(a, b): &(&[BlockId; CHUNK], &[BlockId; CHUNK])| {
        let pairs = a.iter().zip(*b);
        pairs.fold(0, |others, (a, b)| others | (a.0 ^ b.0)) == 0
    };
    chunks.take_while(is_same).count() * CHUNK
}

/// For each block, where it stands in all tables.
#[derive(Debug)]
pub(super) struct Occurrences {
    /// For each block, the index after its last hit.
    ends: Vec<usize>,
    hits: Vec<Hit>,
}

impl Occurrences {
    /// The memory follows the highest block of a table, not the pool, whose size a file may invent.
    pub(super) fn new(all: &[Held<'_>]) -> Self {
        let tables = all.iter().flat_map(|held| &held.own.groups);
        let blocks = tables.flat_map(|table| table.blocks);
        let num_blocks = 1 + blocks.clone().map(|block| block.index()).max().unwrap_or(0);
        // First the starts, which move to the ends as the hits are filled in.
        let mut ends = vec![0; num_blocks + 1];
        for block in blocks {
            ends[block.index() + 1] += 1;
        }
        ends[1] = 0; // The null block stands nowhere.
        for block in 1..ends.len() {
            ends[block] += ends[block - 1];
        }
        let none = Hit {
            run: 0,
            group: 0,
            position: 0,
            block: NULL_BLOCK,
        };
        let mut hits = vec![none; ends[num_blocks]];
        for (run, held) in (0u32..).zip(all) {
            for (group, table) in (0u16..).zip(&held.own.groups) {
                for (position, &block) in (0u32..).zip(table.blocks) {
                    if block != NULL_BLOCK {
                        hits[ends[block.index()]] = Hit {
                            run,
                            group,
                            position,
                            block,
                        };
                        ends[block.index()] += 1;
                    }
                }
            }
        }
        ends.truncate(num_blocks);
        Self { ends, hits }
    }

    pub(super) fn of(&self, block: BlockId) -> &[Hit] {
        let ends = self.ends.get(block.index() - 1..=block.index());
        ends.map_or(&[], |ends| &self.hits[ends[0]..ends[1]])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::SmallVec;

    use super::super::resume_point::{OwnTable, OwnTables};
    use super::super::run::Run;
    use super::*;

    /// Blocks in one order or another, after some null blocks.
    fn tables() -> impl Strategy<Value = Vec<(u32, Vec<BlockId>)>> {
        let table = (0..3u32, 0..200u32, 0..200usize, 0..3u32, 0..200usize);
        let blocks = |(null, first, length, step, hole): (u32, u32, usize, u32, usize)| {
            let ids = (0..length).scan(1000 + first, |id, _| {
                *id = (*id + step).wrapping_sub(1); // Down, everywhere the same, or up.
                Some(BlockId(*id))
            });
            let nulls = std::iter::repeat_n(NULL_BLOCK, null as usize * 70);
            let mut blocks: Vec<BlockId> = nulls.chain(ids).collect();
            if let Some(block) = blocks.get_mut(hole) {
                *block = NULL_BLOCK;
            }
            (null * 70, blocks)
        };
        let common = prop::collection::vec((table.prop_map(blocks), 0..300usize), 1..5);
        common.prop_map(|tables| {
            let mut all: Vec<(u32, Vec<BlockId>)> = Vec::new();
            for ((null, mut blocks), common) in tables {
                if let Some((other, before)) = all.last() {
                    let theirs = before.get(*other as usize..).unwrap_or(&[]);
                    let own = blocks.get_mut(null as usize..).unwrap_or(&mut []);
                    let common = common.min(theirs.len()).min(own.len());
                    own[..common].copy_from_slice(&theirs[..common]);
                }
                all.push((null, blocks));
            }
            all
        })
    }

    #[test]
    fn where_blocks_stand_takes_memory_by_the_highest_that_stands_anywhere() {
        let blocks = [5, 0, 9, 5].map(BlockId);
        let run = Run::default();
        let table = OwnTable {
            blocks: &blocks,
            ..OwnTable::default()
        };
        let own = OwnTables {
            groups: SmallVec::from_iter([table]),
            num_tokens: 0,
            num_computed_tokens: 0,
        };
        let held = Held {
            run: &run,
            own,
            whole_from: SmallVec::from_elem(0, 1),
        };
        let occurrences = Occurrences::new(&[held]);
        assert_eq!(occurrences.ends.len(), 10);
        let at = |block| {
            let hits = occurrences.of(BlockId(block)).iter();
            hits.map(|hit| hit.position).collect::<Vec<_>>()
        };
        assert_eq!([at(5), at(9), at(8)], [vec![0, 3], vec![2], vec![]]);
        assert!(at(10).is_empty() && at(4_000_000_000).is_empty());
        assert!(Occurrences::new(&[]).of(BlockId(1)).is_empty());
    }

    proptest! {
        #[test]
        fn every_entry_is_found_and_entries_go_and_come(
            tables in tables(),
            wanted in prop::collection::vec(800..1400u32, 0..60),
        ) {
            let wanted: Vec<BlockId> = wanted.into_iter().map(BlockId).collect();
            let run = Run::default();
            let all: Vec<Held<'_>> = tables.iter().map(|(num_null, blocks)| {
                let table = OwnTable { blocks, num_null: *num_null, ..OwnTable::default() };
                let own = OwnTables {
                    groups: SmallVec::from_iter([table]), num_tokens: 0, num_computed_tokens: 0
                };
                Held { run: &run, own, whole_from: SmallVec::from_elem(*num_null, 1) }
            }).collect();
            let mut hits = find(&all, &BlockSet::new(2000, &wanted), 1);
            let mut expected = Vec::new();
            for (run, (_, blocks)) in (0..).zip(&tables) {
                let entries = (0u32..).zip(blocks).filter(|(_, block)| wanted.contains(block));
                expected.extend(entries.map(|(position, &block)| (run, position, block)));
            }
            let found = |hits: &Hits| -> Vec<_> {
                let hits = (0..all.len()).flat_map(|run| hits.of(run));
                hits.map(|hit| (hit.run, hit.position, hit.block)).collect()
            };
            prop_assert_eq!(found(&hits), expected.clone());
            let others = |hit: &Hit| hit.block.0 % 2 == 1;
            let others: Vec<Hit> = (0..all.len()).flat_map(|run| hits.of(run)).filter(others).collect();
            let even = wanted.into_iter().filter(|block| block.0 % 2 == 0);
            hits.retain(&BlockSet::new(2000, &even.collect::<Vec<_>>()));
            let is_even = |&&(_, _, block): &&(u32, u32, BlockId)| block.0 % 2 == 0;
            let kept: Vec<_> = expected.iter().filter(is_even).copied().collect();
            prop_assert_eq!(found(&hits), kept);
            hits.add(others);
            prop_assert_eq!(found(&hits), expected);
        }
    }
}
