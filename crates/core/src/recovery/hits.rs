//! Where some blocks stand in the tables of all runs.
//!
//! ```text
//! run   group    position  0   1   2   3   4   5
//!  0      0                7   8   9  10  11            one scan for the blocks 9 and 30 finds
//!  0      1                .   .  30  31  32            9 in (0, 0) and (1, 0), 30 in (0, 1)
//!  1      0                7   8   9  20
//!  1      1                .   .   .  41
//! ```
//! Tables are read once, whatever the number of blocks.

use std::ops::Range;

use super::held::Held;
use crate::blocks::{BlockId, BlockSet, NULL_BLOCK, count};

/// One entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// The entries of one table, in the order of positions.
pub(super) type TableHits = Vec<Entry>;

/// Where some blocks stand in all tables.
#[derive(Debug)]
pub(super) struct Hits {
    /// One for each run and group.
    tables: Vec<TableHits>,
    num_groups: usize,
}

impl Hits {
    /// The tables of a run, one for each group.
    pub(super) fn tables(&self, run: usize) -> &[TableHits] {
        &self.tables[run * self.num_groups..(run + 1) * self.num_groups]
    }

    /// The entries of a run, in the order of groups and positions.
    pub(super) fn of(&self, run: usize) -> impl Iterator<Item = Hit> {
        let tables = (0u16..).zip(self.tables(run));
        tables.flat_map(move |(group, table)| {
            table.iter().map(move |&Entry { position, block }| Hit {
                run: count(run),
                group,
                position,
                block,
            })
        })
    }

    /// Leaves out all other blocks.
    pub(super) fn retain(&mut self, blocks: &BlockSet) {
        for table in &mut self.tables {
            table.retain(|entry| blocks.has(entry.block));
        }
    }

    /// Adds entries of other blocks.
    pub(super) fn add(&mut self, more: &[Hit]) {
        for hit in more {
            let table = &mut self.tables[hit.run as usize * self.num_groups..][hit.group as usize];
            table.push(Entry {
                position: hit.position,
                block: hit.block,
            });
        }
        for table in &mut self.tables {
            table.sort_unstable_by_key(|entry| entry.position);
        }
    }
}

/// The entries of one table at some positions.
pub(super) fn within<'a>(table: &'a [Entry], positions: &Range<u32>) -> &'a [Entry] {
    let start = table.partition_point(|entry| entry.position < positions.start);
    let end = table.partition_point(|entry| entry.position < positions.end);
    table.get(start..end).unwrap_or(&[])
}

/// Finds every entry that is one of these blocks.
pub(super) fn find(all: &[Held<'_>], wanted: &BlockSet, num_groups: usize) -> Hits {
    let tables = all.iter().flat_map(|held| &held.own.groups);
    let found = tables.map(|table| {
        let entry = |at: usize| Entry {
            position: count(at),
            block: table.blocks[at],
        };
        wanted.found_in(table.blocks).map(entry).collect()
    });
    Hits {
        tables: found.collect(),
        num_groups,
    }
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
            hits.add(&others);
            prop_assert_eq!(found(&hits), expected);
        }
    }
}
