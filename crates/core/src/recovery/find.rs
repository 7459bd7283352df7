//! Finding blocks in the tables of all runs.
//!
//! ```text
//! block    registered by    at          references    is looked for in
//!  30      request 0        (1, 2)      1             the table of request 0: nobody else has it
//!   9      request 0        (0, 2)      2             group 0, up to position 2; then everywhere,
//!                                                     unless two tables have been found
//!  41      nobody                                     everything
//! ```
//! Whoever keeps the tables may know where a block should stand, and how many references there are.
//! Each entry of a table is one of them, so nothing has to be read once all are accounted for.

use super::held::{Held, runs_of};
use super::hits::{Hit, Hits, scan};
use super::run::{Clue, Tables};
use crate::blocks::{BlockId, BlockSet, count};

/// With more blocks that have several references, most tables are read far anyway: to ask for each
/// block takes longer than it saves.
const MAX_SHARED: u32 = 16;

/// What is known of blocks before tables are read.
struct Known {
    /// Entries of blocks that nobody else has.
    alone: Vec<Hit>,
    /// The other blocks.
    rest: BlockSet,
    /// How many references there are to them.
    num_refs: usize,
    /// For each group, the positions before which they should stand.
    reach: Vec<u32>,
}

/// Finds every entry of every table that is one of these blocks.
pub(super) fn find(tables: &impl Tables, all: &[Held<'_>], wanted: &BlockSet) -> Hits {
    let known = Known::of(tables, all, wanted);
    let mut hits = scan(all, &known.rest, &known.reach);
    let is_complete = hits.num_found() == known.num_refs;
    let mut more = known.alone;
    for (run, held) in (0..).zip(all) {
        for (group, &reach) in (0u16..).zip(&known.reach) {
            // A table of a run that has ended has no references: it may have any block anywhere.
            let (wanted, start) = if held.has_ended() {
                (wanted, 0)
            } else if is_complete {
                continue;
            } else {
                (&known.rest, reach)
            };
            let blocks = held.own.groups[usize::from(group)].from(start);
            more.extend(wanted.found_in(blocks).map(|at| Hit {
                run,
                group,
                position: start + count(at),
                block: blocks[at],
            }));
        }
    }
    hits.add(more);
    hits
}

impl Known {
    fn of(tables: &impl Tables, all: &[Held<'_>], wanted: &BlockSet) -> Self {
        let num_groups = tables.topology().groups.len();
        let mut num_shared = 0;
        let clues = wanted.iter().map(|block| {
            let clue = tables.clue(block)?;
            num_shared += u32::from(clue.num_refs > 1);
            (num_shared <= MAX_SHARED).then_some((block, clue))
        });
        let Some(clues) = clues.collect::<Option<Vec<(BlockId, Clue)>>>() else {
            return Self {
                alone: Vec::new(),
                rest: wanted.clone(),
                num_refs: 0,
                reach: vec![u32::MAX; num_groups],
            };
        };
        let (mut alone, mut rest, mut num_refs) = (Vec::new(), Vec::new(), 0);
        let mut reach = vec![0; num_groups];
        for (block, clue) in clues {
            let Clue {
                group, position, ..
            } = clue;
            match author(all, &clue, block) {
                Some(run) if clue.num_refs == 1 => alone.push(Hit {
                    run,
                    group,
                    position,
                    block,
                }),
                _ => {
                    rest.push(block);
                    num_refs += clue.num_refs as usize;
                    let reach = &mut reach[usize::from(group)];
                    *reach = (*reach).max(position + 1);
                }
            }
        }
        Self {
            alone,
            rest: BlockSet::new(tables.num_blocks(), &rest),
            num_refs,
            reach,
        }
    }
}

/// The run of the request that registered a block, if it goes on and its table has the block.
fn author(all: &[Held<'_>], clue: &Clue, block: BlockId) -> Option<u32> {
    let run = runs_of(all, clue.request).find(|&run| !all[run].has_ended())?;
    let is_there = all[run].block_at(usize::from(clue.group), clue.position) == block;
    is_there.then(|| count(run))
}

#[cfg(test)]
mod tests {
    use std::iter::zip;

    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::held::hold;
    use super::super::tests::{FULL, snapshot};
    use super::super::{Gap, OwnTables, Run, RunTables, Snapshot};
    use super::*;
    use crate::error::Result;
    use crate::spec::Topology;

    const NUM_BLOCKS: u32 = 12;

    /// Tables with what is said of blocks. Nothing of it need be true, but that every entry of a
    /// table is a reference.
    #[derive(Debug)]
    struct Rumours {
        tables: Snapshot,
        clues: Vec<Option<Clue>>,
    }

    impl Tables for Rumours {
        fn topology(&self) -> &Topology {
            self.tables.topology()
        }

        fn num_blocks(&self) -> usize {
            self.tables.num_blocks()
        }

        fn own(&self, request: u64) -> Result<OwnTables<'_>> {
            self.tables.own(request)
        }

        fn may_be_shared(&self, _: BlockId) -> bool {
            true
        }

        fn clue(&self, block: BlockId) -> Option<Clue> {
            self.clues[block.index()]
        }

        fn find(&self, _: u64, _: &Gap<'_>, _: &mut Vec<(u32, BlockId)>) {}
    }

    type Table = Vec<BlockId>;

    /// Two tables for each request, and whether it has ended.
    fn requests() -> impl Strategy<Value = Vec<(Vec<Table>, bool)>> {
        let block = prop_oneof![1 => Just(0), 3 => 1..NUM_BLOCKS].prop_map(BlockId);
        let table = prop::collection::vec(block, 0..5);
        let tables = prop::collection::vec(table, 2);
        prop::collection::vec((tables, prop::bool::weighted(0.2)), 0..4)
    }

    /// What is said of a block, and how many others hold it. Mostly it stands somewhere in a table.
    type Rumour = Option<(Option<Index>, (u64, u16, u32), u32)>;

    fn rumour() -> impl Strategy<Value = Rumour> {
        let entry = prop::option::weighted(0.8, any::<Index>());
        let held = prop_oneof![4 => Just(0u32), 1 => Just(1)];
        prop::option::weighted(0.95, (entry, (0..4u64, 0..2u16, 0..5u32), held))
    }

    fn clue(requests: &[(Vec<Table>, bool)], block: BlockId, said: &Rumour) -> Option<Clue> {
        let (entry, mut place, held) = (*said)?;
        let (mut places, mut num_refs) = (Vec::new(), held);
        for (request, (tables, has_ended)) in zip(0.., requests) {
            for (group, table) in zip(0.., tables) {
                for (position, _) in zip(0.., table).filter(|(_, entry)| **entry == block) {
                    places.push((request, group, position));
                    num_refs += u32::from(!has_ended);
                }
            }
        }
        if let Some(entry) = entry.filter(|_| !places.is_empty()) {
            place = *entry.get(&places);
        }
        let (request, group, position) = place;
        Some(Clue {
            request,
            group,
            position,
            num_refs,
        })
    }

    fn rumours(requests: &[(Vec<Table>, bool)], said: &[Rumour]) -> (Rumours, Vec<Run>) {
        let clues = zip(0.., said).map(|(block, said)| clue(requests, BlockId(block), said));
        let run = |(request, (tables, has_ended)): (u64, &(Vec<Table>, bool))| Run {
            request,
            ended_tables: has_ended.then(|| tables.clone()),
            ..Run::default()
        };
        let own = zip(0.., requests).map(|(request, (tables, _))| {
            let blocks = tables.clone();
            (
                request,
                RunTables {
                    blocks,
                    ..RunTables::default()
                },
            )
        });
        let tables = Snapshot {
            tables: own.collect(),
            ..snapshot(&[FULL, FULL], &[])
        };
        let runs = zip(0.., requests).map(run).collect();
        (
            Rumours {
                tables,
                clues: clues.collect(),
            },
            runs,
        )
    }

    proptest! {
        #[test]
        fn every_entry_is_found_whatever_is_said_of_blocks(
            requests in requests(),
            said in prop::collection::vec(rumour(), NUM_BLOCKS as usize),
            wanted in prop::collection::vec((1..NUM_BLOCKS).prop_map(BlockId), 0..6),
        ) {
            let (tables, runs) = rumours(&requests, &said);
            let all = hold(&tables, &runs).unwrap();
            let hits = find(&tables, &all, &BlockSet::new(NUM_BLOCKS as usize, &wanted));
            let mut expected = Vec::new();
            for (run, (tables, _)) in zip(0.., &requests) {
                for (group, table) in zip(0.., tables) {
                    let entries = zip(0.., table).filter(|(_, block)| wanted.contains(block));
                    expected.extend(entries.map(|(position, &block)| Hit {
                        run,
                        group,
                        position,
                        block,
                    }));
                }
            }
            let found: Vec<Hit> = (0..all.len()).flat_map(|run| hits.of(run)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
