//! What a rank will be able to reuse once it holds what was promised to it (`promised`).
//!
//! The rule is evaluated over what is held and what is promised together. Of a prompt on its way, full
//! attention will hold each block; states, and the windows of an engine that keeps them sparsely, will
//! be had only where it is resumed when it comes again and where it leaves what was there before.

use smallvec::SmallVec;

use super::by_column::RowsByColumn;
use super::prompt_keys::RequestKeys;
use super::search::{ClassQuery, RequestSearch};
use super::words::Words;
use crate::divisors::lcm;
use crate::fleet::promised::{Coming, Promise};
use crate::prefix::PrefixKey;
use crate::rule::{self, Unknown};
use crate::spec::{GroupSpec, SpecKind, Topology};

/// Fills in what was promised to the ranks of a class, after their bounds were filled in from these
/// words.
pub(in crate::fleet) fn fill_coming(
    search: &RequestSearch<'_, '_>,
    class_query: ClassQuery<'_>,
    mut words: Words,
    scratch: &mut rule::Scratch,
    rows: &mut RowsByColumn<'_>,
) {
    let likely = class_query.class.silent().map(|(_, likely)| likely);
    let class = likely.as_ref().unwrap_or(class_query.class);
    let class_query = ClassQuery {
        class,
        keys: class_query.keys,
    };
    let (promises, unit) = (&search.model.promises, search.unit(class_query.keys));
    let keys = search.node_keys(class_query.keys);
    let Some(coming) = keys.and_then(|keys| promises.along(unit, keys, &class.lanes)) else {
        return;
    };
    let sparse = promises.sparse_of(&class.lanes);
    if likely.is_some() {
        words = search.words(class_query, search.request.tiers, false);
    }
    for (words, spec) in words.whole.iter_mut().zip(&class.view.topology.groups) {
        add(words, &coming, spec, unit, sparse);
    }
    read_coming(search, class_query, &words, scratch, rows);
}

/// What the request promises to a rank. A rank of which no group is known yet is promised nothing.
/// Keys are made where none are known.
pub(in crate::fleet) fn promise(
    search: &mut RequestSearch<'_, '_>,
    known: &RequestKeys,
    column: usize,
    junction: u32,
    is_sparse: bool,
) -> Option<Promise> {
    let classes = search.model.classes();
    let class = classes
        .iter()
        .find(|class| class.lanes.lane(column).is_some())?;
    let step = search.step_of(class);
    let known = known.0.iter().find(|keys| keys.step() == step);
    let keys: Vec<PrefixKey> = if let Some(known) = known {
        let salt = search.salt_of(step)?;
        known.node_keys(search.model.nodes.term(salt)).collect()
    } else {
        let at = search.keys(step);
        search.node_keys(at)?.collect()
    };
    let topology = &class.view.topology;
    let grid = grid(topology);
    let last = last_kept(topology, search.last_token(), is_sparse);
    let junction = junction.saturating_sub(dropped(topology));
    let mut kept: SmallVec<[u32; 2]> = SmallVec::new();
    for tokens in [junction.min(last), last] {
        let end = tokens / grid * grid / step.unit;
        if end > 0 && end as usize <= keys.len() && kept.last() != Some(&end) {
            kept.push(end);
        }
    }
    Some(Promise {
        column,
        unit: step.unit,
        keys,
        kept,
    })
}

fn read_coming(
    search: &RequestSearch<'_, '_>,
    class_query: ClassQuery<'_>,
    words: &Words,
    scratch: &mut rule::Scratch,
    rows: &mut RowsByColumn<'_>,
) {
    let ClassQuery { class, keys } = class_query;
    let query = search.query(class.lanes.mask(), Unknown::Strict);
    let (tokens, present) = words.with_held(search.unit(keys), |held| {
        (
            rule::resume(&class.view.topology, held, query, scratch),
            rule::present(&class.view.topology, held, query, scratch),
        )
    });
    for (column, lane) in class.lanes.ranks() {
        let row = rows.row(column);
        row.coming = tokens[lane];
        row.present_soon = row.present.max(present[lane]);
    }
}

/// The tokens between two boundaries at which every group has a whole block.
fn grid(topology: &Topology) -> u32 {
    let groups = topology.groups.iter().filter(|g| g.prefix_cacheable);
    lcm(groups
        .map(|g| g.block_size)
        .chain([topology.alignment.max(1)]))
}

/// The last boundary of a prompt at which its engine keeps states. A sparse engine keeps what the same
/// prompt needs when it comes again, and that computes its last token anew. Of a prompt that goes on, a
/// draft head drops the last unit.
fn last_kept(topology: &Topology, last_token: u32, is_sparse: bool) -> u32 {
    let grid = grid(topology);
    let end = |tokens: u32| tokens / grid * grid;
    if drafted(topology).next().is_some() {
        end(last_token.saturating_add(1)).saturating_sub(grid)
    } else {
        end(last_token.saturating_add(u32::from(!is_sparse)))
    }
}

/// The tokens that a draft head drops of what full attention has.
fn dropped(topology: &Topology) -> u32 {
    let full = drafted(topology).filter(|g| g.kind.is_full());
    full.map(|g| g.block_size).max().unwrap_or(0)
}

/// The groups that a draft head reads.
fn drafted(topology: &Topology) -> impl Iterator<Item = &GroupSpec> {
    let groups = topology.groups.iter();
    groups.filter(|g| g.prefix_cacheable && g.eagle)
}

/// Adds what is promised to what a group holds.
fn add(words: &mut Vec<u64>, coming: &Coming, spec: &GroupSpec, unit: u32, sparse: u64) {
    if !spec.prefix_cacheable {
        return; // Its blocks need not be multiples of the unit, and nobody asks for them.
    }
    if words.len() < coming.dense.len() {
        words.resize(coming.dense.len(), 0);
    }
    let step = (spec.block_size / unit).max(1) as usize;
    let sparse = if spec.kind == SpecKind::Mamba {
        u64::MAX
    } else if spec.kind.is_window() {
        sparse
    } else {
        0
    };
    for at in (step - 1..coming.dense.len()).step_by(step) {
        words[at] |= coming.dense[at] & !sparse;
        let kept = coming.kept[at] & sparse;
        if kept == 0 {
            continue;
        }
        let boundary = u32::try_from(at + 1)
            .unwrap_or(u32::MAX)
            .saturating_mul(unit);
        for position in rule::needed(spec, boundary) {
            let at = (position as usize + 1) * step - 1;
            // The request may end, or leave the prompt, before what a draft head needs.
            if let Some(dense) = coming.dense.get(at) {
                words[at] |= kept & dense;
            }
        }
    }
}
