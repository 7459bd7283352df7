//! The groups of a pod whose events tell of full attention alone, if the operator's model says which
//! others there are. All have pages of one size, which the first store shows; from then on the pod is
//! like one whose operator listed its groups.

use crate::divisors::lcm;
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// A group that no event tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOfModel {
    /// Its kind.
    pub kind: SpecKind,
    /// Its window in tokens, if it is of a window kind.
    pub window: Option<u32>,
    /// It can be resumed at multiples of this only, unless a page is a single token.
    pub grid: u32,
}

/// The groups of a pod with pages of this size: full attention, and those that are silent. What else
/// the operator gave of its topology stays.
pub(in crate::fleet) fn groups_of_page(
    silent: &[GroupOfModel],
    page: u32,
    given: Option<&Topology>,
) -> Option<Topology> {
    let grids = silent.iter().map(|group| group.grid);
    let grid = if page > 1 { lcm(grids) } else { 1 };
    let group = |kind, window| GroupSpec {
        window,
        ..GroupSpec::new(kind, page)
    };
    let full = group(SpecKind::FullAttention, None);
    let silent = silent.iter().map(|other| group(other.kind, other.window));
    let topology = Topology {
        alignment: lcm([given.map_or(1, |t| t.alignment), page, grid].into_iter()),
        hash_lookahead: given.map_or(0, |t| t.hash_lookahead),
        dialect: given.map_or(EngineDialect::SGLANG, |t| t.dialect),
        ..Topology::new([full].into_iter().chain(silent).collect())
    };
    topology.validate().is_ok().then_some(topology)
}
