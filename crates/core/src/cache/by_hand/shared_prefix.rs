//! The common prefix of running requests: attention over it can be computed once for all of them.

use crate::blocks::{BlockId, NULL_BLOCK, count};
use crate::cache::Cache;
use crate::error::Result;

impl Cache {
    /// For each group, the number of leading blocks that all of these requests hold. The count ends
    /// at a block that was given back, because that block is no longer read.
    ///
    /// # Errors
    /// `UnknownRequest` or `GivenTwice`.
    pub fn num_common_prefix_blocks(&self, ids: &[u64]) -> Result<Vec<u32>> {
        self.check_distinct(ids.iter().copied())?;
        let mut common: Option<Vec<&[BlockId]>> = None;
        for &id in ids {
            let tables = self.tables(id)?;
            common = Some(match common {
                None => tables.map(|table| common_prefix(table, table)).collect(),
                Some(common) => tables
                    .zip(common)
                    .map(|(table, common)| common_prefix(common, table))
                    .collect(),
            });
        }
        let none = || vec![&[][..]; self.num_groups()];
        let common = common.unwrap_or_else(none);
        Ok(common.into_iter().map(<[_]>::len).map(count).collect())
    }
}

fn common_prefix<'a>(one: &'a [BlockId], other: &[BlockId]) -> &'a [BlockId] {
    let pairs = one.iter().zip(other);
    let is_shared = |&(one, other): &(&BlockId, &BlockId)| one == other && *one != NULL_BLOCK;
    &one[..pairs.take_while(is_shared).count()]
}
