//! The second strategy, `weighted_blocks`: the score that existing gateways expect.
//!
//! Invariant: it is the resume rule over *canonical* blocks, whose size may differ from every engine's. A
//! canonical block counts for a group when held blocks of that group cover all of its tokens. The
//! main groups count as one full group, and a block in any of them suffices. A window group needs
//! the canonical blocks that its window touches. Groups of any other kind restrict nothing. The
//! strategy ignores alignment and dialect, and no token has to be left to compute. A score is the
//! number of blocks, each times the weight of its tier.
//!
//! A copy counts if its place is known and no clear put it in doubt; an entry smaller than its
//! group's block never counts. If the groups of a pod do not tell how to score it, the pod has no
//! score, and its row says that it is unknown.

use super::request::CanonicalBlocks;
use super::search::{ClassQuery, RequestSearch};
use crate::fleet::pod::catalog::UNGROUPED;
use crate::fleet::pod::view::View;
use crate::fleet::tier::{Tier, TierSet};
use crate::rule::{self, HOLDERS, Holdings, Query, Unknown};
use crate::spec::{GroupSpec, SpecKind, Topology};

/// The weight of a block that the windows have passed, for a pod without main attention.
const NULL_BLOCK_WEIGHT: f64 = 1.0;

/// The role of each group of a view in this strategy, by the group's index in the view.
#[derive(Debug, PartialEq, Eq)]
struct Roles {
    /// The main attention groups; empty for pods whose groups are all windows.
    main: Vec<usize>,
    /// The groups with a window, each with the number of canonical blocks that it asks for.
    windows: Vec<(usize, u32)>,
}

fn is_main(view: &View, index: usize) -> bool {
    let group = view.groups[index];
    group == UNGROUPED
        || Some(group) == view.undeclared
        || view.topology.groups[index].kind.is_full()
}

impl Roles {
    /// `None` if the groups do not tell how to score: either this strategy knows the kind of none
    /// of them, or the first group, which may be the main one, has not appeared yet.
    fn of(view: &View, block_size: u32) -> Option<Self> {
        let groups = &view.topology.groups;
        let cacheable = || (0..groups.len()).filter(|&i| groups[i].prefix_cacheable);
        let main: Vec<usize> = cacheable().filter(|&i| is_main(view, i)).collect();
        let windows: Vec<(usize, u32)> = cacheable()
            .filter(|&i| !is_main(view, i) && groups[i].kind.is_window())
            .filter_map(|i| Some((i, groups[i].window?.saturating_sub(1).div_ceil(block_size))))
            .filter(|&(_, need)| need > 0)
            .collect();
        let is_windows_only = view.groups.contains(&0) && !windows.is_empty();
        (!main.is_empty() || is_windows_only).then_some(Self { main, windows })
    }
}

/// The units of a request and the canonical blocks over them.
///
/// ```text
/// unit 16       |  0 |  1 |  2 |  3 |  4 |  5 |      canonical 24: block 1 = tokens 24..48
/// canonical 24  |   0   |   1   |   2   |   3  |     needs units 1 and 2
/// ```
#[derive(Debug, Clone, Copy)]
struct Grid {
    unit: usize,
    block: usize,
    num_tokens: usize,
}

impl Grid {
    fn no_units(&self) -> Vec<u64> {
        vec![0; self.num_tokens / self.unit]
    }

    fn num_blocks(&self) -> usize {
        self.num_tokens / self.block
    }

    /// Marks every engine block at each unit that the block covers.
    fn spread(&self, held: &[u64], block_size: u32, units: &mut [u64]) {
        let step = block_size as usize / self.unit;
        for (block, units) in held.chunks_exact(step).zip(units.chunks_mut(step)) {
            let word = block[step - 1];
            for unit in units {
                *unit |= word;
            }
        }
    }

    /// The holders of every canonical block: those that hold all units that the block overlaps.
    fn fold(&self, units: &[u64]) -> Vec<u64> {
        if self.unit == self.block {
            return units.to_vec();
        }
        (0..self.num_blocks())
            .map(|k| {
                let range = k * self.block / self.unit..((k + 1) * self.block).div_ceil(self.unit);
                units
                    .get(range)
                    .map_or(0, |units| units.iter().fold(u64::MAX, |a, b| a & b))
            })
            .collect()
    }
}

/// The canonical blocks that one class holds along a request.
#[derive(Debug)]
struct Coverage {
    /// The blocks that each tier adds, best tier first: main blocks or, without main attention,
    /// blocks of any group.
    worth: Vec<Vec<u64>>,
    /// The blocks of each window group on any tier.
    windows: Vec<Vec<u64>>,
}

impl Coverage {
    fn of(
        search: &RequestSearch<'_, '_>,
        class_query: ClassQuery<'_>,
        roles: &Roles,
        grid: Grid,
        tiers: &[Tier],
    ) -> Self {
        let groups = &class_query.class.view.topology.groups;
        let every: Vec<usize> = (0..groups.len())
            .filter(|&i| groups[i].prefix_cacheable)
            .collect();
        let counted = if roles.main.is_empty() {
            &every
        } else {
            &roles.main
        };
        let mut counted_units = grid.no_units();
        let mut window_units = vec![grid.no_units(); roles.windows.len()];
        let mut worth = Vec::with_capacity(tiers.len());
        for &tier in tiers {
            let words = search.words(class_query, TierSet::from_iter([tier]), false);
            for &group in counted {
                grid.spread(
                    words.of(group).0,
                    groups[group].block_size,
                    &mut counted_units,
                );
            }
            for (&(group, _), units) in roles.windows.iter().zip(&mut window_units) {
                grid.spread(words.of(group).0, groups[group].block_size, units);
            }
            worth.push(grid.fold(&counted_units));
        }
        let windows = window_units.iter().map(|units| grid.fold(units)).collect();
        Self { worth, windows }
    }

    /// How many canonical blocks each holder can reuse: the resume rule, counted in blocks instead
    /// of tokens.
    fn hits(
        &self,
        roles: &Roles,
        grid: Grid,
        mask: u64,
        scratch: &mut rule::Scratch,
    ) -> [u32; HOLDERS] {
        let mut groups = Vec::with_capacity(1 + self.windows.len());
        let mut whole: Vec<&[u64]> = Vec::with_capacity(groups.capacity());
        if !roles.main.is_empty() {
            groups.push(GroupSpec::new(SpecKind::FullAttention, 1));
            whole.push(self.worth.last().map_or(&[], Vec::as_slice));
        }
        for (words, (_, need)) in self.windows.iter().zip(&roles.windows) {
            groups.push(GroupSpec {
                window: Some(need + 1),
                ..GroupSpec::new(SpecKind::SlidingWindow, 1)
            });
            whole.push(words);
        }
        // The rule leaves one block to compute, so it is told one more than there are.
        let num_tokens = u32::try_from(grid.num_blocks() + 1).unwrap_or(u32::MAX);
        let query = Query {
            num_tokens,
            mask,
            unknown: Unknown::Strict,
        };
        rule::resume(
            &Topology::new(groups),
            &Holdings {
                unit: 1,
                whole: &whole,
                partial: &[],
            },
            query,
            scratch,
        )
    }

    /// For each holder, the value of its first `hits` blocks: each block has the weight of the best
    /// tiers that cover it. `weights` is in the order of `worth`.
    fn value(&self, hits: &[u32; HOLDERS], weights: &[f64]) -> [f64; HOLDERS] {
        // Blocks that the best tier does not cover are rare, so only those are visited.
        let mut elsewhere = vec![[0_u32; HOLDERS]; weights.len()];
        for (k, reaching) in reaching(hits).into_iter().enumerate() {
            let mut missing = reaching;
            for (tier, covered) in self.worth.iter().enumerate() {
                let left = missing & !covered.get(k).copied().unwrap_or(0);
                if tier > 0 {
                    count(missing & !left, &mut elsewhere[tier - 1]);
                }
                missing = left;
            }
            count(missing, &mut elsewhere[weights.len() - 1]);
        }
        let mut values = [0.0; HOLDERS];
        for (bit, value) in values.iter_mut().enumerate() {
            let others: u32 = elsewhere.iter().map(|counts| counts[bit]).sum();
            *value = f64::from(hits[bit] - others) * weights[0];
            for (counts, weight) in elsewhere
                .iter()
                .zip(weights[1..].iter().chain(&[NULL_BLOCK_WEIGHT]))
            {
                *value += f64::from(counts[bit]) * weight;
            }
        }
        values
    }
}

/// For every block, the holders whose hit goes beyond the block's first token.
fn reaching(hits: &[u32; HOLDERS]) -> Vec<u64> {
    let mut words = vec![0; hits.iter().copied().max().unwrap_or(0) as usize];
    for (bit, &hit) in hits.iter().enumerate().filter(|(_, hit)| **hit > 0) {
        words[hit as usize - 1] |= 1 << bit;
    }
    let mut reaching = 0;
    for word in words.iter_mut().rev() {
        reaching |= *word;
        *word = reaching;
    }
    words
}

/// Adds one to the count of every holder in `word`.
fn count(mut word: u64, counts: &mut [u32; HOLDERS]) {
    while word != 0 {
        counts[word.trailing_zeros() as usize] += 1;
        word &= word - 1;
    }
}

/// The scores of the ranks of a class, by bit; `None` if their groups do not tell how to score.
pub(in crate::fleet) fn scores(
    search: &RequestSearch<'_, '_>,
    class_query: ClassQuery<'_>,
    canonical: CanonicalBlocks,
    scratch: &mut rule::Scratch,
) -> Option<[f64; HOLDERS]> {
    let roles = Roles::of(&class_query.class.view, canonical.block_size)?;
    let mut tiers: Vec<Tier> = canonical
        .tiers
        .iter()
        .filter(|t| search.model.planes.tiers.contains(*t))
        .collect();
    let all = search.request.weights;
    tiers.sort_by(|a, b| all[*b as usize].total_cmp(&all[*a as usize]));
    let grid = Grid {
        unit: search.unit(class_query.keys) as usize,
        block: canonical.block_size as usize,
        num_tokens: search.request.prompt.tokens.len(),
    };
    if tiers.is_empty() {
        return Some([0.0; HOLDERS]);
    }
    let coverage = Coverage::of(search, class_query, &roles, grid, &tiers);
    let hits = coverage.hits(&roles, grid, class_query.class.lanes.mask(), scratch);
    let weights: Vec<f64> = tiers.iter().map(|tier| all[*tier as usize]).collect();
    Some(coverage.value(&hits, &weights))
}

#[cfg(test)]
mod tests {
    use super::Grid;

    fn fold(unit: usize, block: usize, units: &[u64]) -> Vec<u64> {
        Grid {
            unit,
            block,
            num_tokens: units.len() * unit,
        }
        .fold(units)
    }

    #[test]
    fn a_canonical_block_has_the_holders_of_every_unit_that_it_overlaps() {
        assert_eq!(fold(16, 32, &[3, 1, 2, 2]), [1, 2]);
        assert_eq!(fold(32, 16, &[3, 1]), [3, 3, 1, 1]);
        assert_eq!(fold(16, 24, &[1, 1, 1, 0]), [1, 1]);
        assert_eq!(fold(16, 24, &[1, 1, 0]), [1, 0]);
    }

    #[test]
    fn a_canonical_block_beyond_the_whole_units_is_held_by_nobody() {
        let grid = Grid {
            unit: 32,
            block: 16,
            num_tokens: 48,
        };
        assert_eq!(grid.fold(&[1]), [1, 1, 0]);
    }

    #[test]
    fn an_engine_block_counts_for_each_of_its_units_and_only_when_it_is_whole() {
        let grid = Grid {
            unit: 16,
            block: 16,
            num_tokens: 80,
        };
        let mut units = grid.no_units();
        grid.spread(&[0, 5, 7], 32, &mut units);
        assert_eq!(units, [5, 5, 0, 0, 0]);
    }
}
