//! The common prefix of running requests: attention over it can be computed once for all of them.

use crate::blocks::{BlockId, NULL_BLOCK, count};

/// For each group, the number of leading blocks that the tables of all requests hold; `None` without
/// requests.
pub(super) fn num_common_blocks<'a, T: Iterator<Item = &'a [BlockId]>>(
    requests: impl Iterator<Item = T>,
) -> Option<Vec<u32>> {
    let mut common: Option<Vec<&[BlockId]>> = None;
    for tables in requests {
        common = Some(match common {
            None => tables.map(|table| common_prefix(table, table)).collect(),
            Some(common) => tables
                .zip(common)
                .map(|(table, common)| common_prefix(common, table))
                .collect(),
        });
    }
    Some(common?.into_iter().map(<[_]>::len).map(count).collect())
}

fn common_prefix<'a>(one: &'a [BlockId], other: &[BlockId]) -> &'a [BlockId] {
    let pairs = one.iter().zip(other);
    let is_shared = |&(one, other): &(&BlockId, &BlockId)| one == other && *one != NULL_BLOCK;
    &one[..pairs.take_while(is_shared).count()]
}
