//! Why an answer is what it is: what each group holds along the request, and what it accepts.

use super::model::Class;
use super::query::Search;
use super::rank::Rank;
use crate::rule::{self, Query, Unknown};
use crate::spec::GroupSpec;

/// One group of one rank along a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStrip {
    /// Wire index; `None` for events without one.
    pub group: Option<u16>,
    /// Kind, block size, window.
    pub spec: GroupSpec,
    /// Whether the block that ends at `(j + 1) * block_size` is held.
    pub held: Vec<bool>,
    /// Boundaries in tokens, above 0, that the group accepts; `None` if it never restricts.
    pub accepted: Option<Vec<u32>>,
}

/// All groups of one rank along a request, in the engine's order.
pub type Strip = Vec<GroupStrip>;

/// The strips of every rank asked for, in that order.
pub(super) fn strips(search: &mut Search<'_, '_>, scratch: &mut rule::Scratch) -> Vec<Strip> {
    let classes = search.model.classes();
    let columns = search.ask.columns.clone();
    columns
        .into_iter()
        .map(|column| {
            let class = classes
                .iter()
                .find(|class| class.columns().any(|c| c == column));
            class.map_or_else(Vec::new, |class| {
                group_strips(search, class, column, scratch)
            })
        })
        .collect()
}

fn group_strips(
    search: &mut Search<'_, '_>,
    class: &Class,
    column: usize,
    scratch: &mut rule::Scratch,
) -> Vec<GroupStrip> {
    let at = search.climb(class);
    let unit = search.unit(at);
    let words = search.words(class, at, search.ask.tiers, false);
    let bit = u32::try_from(column % 64).unwrap_or(0);
    let num_tokens = u32::try_from(search.ask.prompt.tokens.len()).unwrap_or(u32::MAX);
    let query = Query {
        num_tokens,
        mask: 1 << bit,
        unknown: Unknown::Strict,
    };
    let topology = &class.view.topology;
    (0..topology.groups.len())
        .map(|group| {
            let spec = topology.groups[group];
            let (whole, _) = words.of(group);
            let step = (spec.block_size / unit) as usize;
            let held = (0..(num_tokens / spec.block_size) as usize)
                .map(|j| {
                    whole
                        .get((j + 1) * step - 1)
                        .is_some_and(|w| w & (1 << bit) != 0)
                })
                .collect();
            let accepted = words.with_held(unit, |held| {
                rule::accepted(topology, held, query, (group, bit), scratch)
            });
            GroupStrip {
                group: Rank::group_name(class.view.groups[group]),
                spec,
                held,
                accepted,
            }
        })
        .collect()
}
