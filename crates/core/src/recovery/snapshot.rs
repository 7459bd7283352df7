//! The tables of runs as plain data: what there is to ask when the cache is gone.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::held::check_tables;
use super::resume_point::{OwnTable, OwnTables, State};
use super::run::{Gap, Tables};
use crate::blocks::{BlockId, NULL_BLOCK};
use crate::error::{Error, Result};
use crate::spec::Topology;

/// What one run holds.
#[derive(Debug, Clone, Default)]
pub struct RunTables {
    /// The tables, one for each group.
    pub blocks: Vec<Vec<BlockId>>,
    /// The states that the tables have, by group.
    pub states: Vec<Vec<State>>,
    /// What the request has written or read where its tables have nothing now, and what is still
    /// findable: group, position and block, in any order. See [`Gap`].
    pub findable: Vec<(u32, u32, BlockId)>,
}

/// The tables of all runs that go on.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The groups.
    pub topology: Topology,
    /// The number of blocks, the null block included.
    pub num_blocks: usize,
    /// What each request holds.
    pub tables: HashMap<u64, RunTables>,
}

impl Tables for Snapshot {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    fn own(&self, request: u64) -> Result<OwnTables<'_>> {
        let tables = self
            .tables
            .get(&request)
            .ok_or(Error::UnknownRequest(request))?;
        let num_groups = self.topology.groups.len();
        check_tables(request, &tables.blocks, num_groups, self.num_blocks)?;
        let groups = tables
            .blocks
            .iter()
            .enumerate()
            .map(|(group, blocks)| OwnTable {
                blocks,
                num_null: 0,
                is_whole: false,
                states: tables
                    .states
                    .get(group)
                    .map_or_else(SmallVec::new, |s| s.iter().copied().collect()),
            });
        Ok(OwnTables {
            groups: groups.collect(),
            num_tokens: 0,
            num_computed_tokens: 0,
        })
    }

    fn may_be_shared(&self, _: BlockId) -> bool {
        true
    }

    fn find(&self, request: u64, gap: &Gap<'_>, found: &mut Vec<(u32, BlockId)>) {
        let findable = self
            .tables
            .get(&request)
            .map_or(&[][..], |tables| &tables.findable);
        let is_found = |&&(group, position, block): &&(u32, u32, BlockId)| {
            group as usize == gap.group
                && gap.positions.contains(&position)
                && block != NULL_BLOCK
                && block.index() < self.num_blocks
        };
        let blocks = findable.iter().filter(is_found);
        found.extend(blocks.map(|&(_, position, block)| (position, block)));
    }
}
