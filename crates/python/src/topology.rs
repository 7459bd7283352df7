//! A topology as it crosses the boundary: plain tuples in, `spec::Topology` out.

use kvbraid_core::Error;
use kvbraid_core::spec::{EngineDialect, GroupSpec, SpecKind, Topology};
use pyo3::prelude::*;

/// kind, `block_size`, window, chunk, eagle, `prefix_cacheable`, variant.
pub(crate) type GroupTuple = (String, u32, Option<u32>, Option<u32>, bool, bool, u32);

/// groups, alignment, `hash_block_size`, `partial_hits`, `replay_tokens`, `hash_lookahead`, and the
/// names of the dialect or of its flags.
#[derive(FromPyObject)]
pub(crate) struct TopologyTuple(Vec<GroupTuple>, u32, u32, bool, u32, u32, Vec<String>);

impl TopologyTuple {
    /// The validated topology.
    pub(crate) fn decode(self) -> Result<Topology, Error> {
        let Self(groups, alignment, hash_block_size, partial_hits, replay, lookahead, names) = self;
        let groups = groups
            .into_iter()
            .map(decode_group)
            .collect::<Result<_, _>>()?;
        let topology = Topology {
            groups,
            alignment,
            hash_block_size,
            partial_hits,
            replay_tokens: replay,
            hash_lookahead: lookahead,
            dialect: decode_dialect(&names)?,
        };
        topology.validate()?;
        Ok(topology)
    }
}

pub(crate) fn decode_group(group: GroupTuple) -> Result<GroupSpec, Error> {
    let (name, block_size, window, chunk, eagle, prefix_cacheable, variant) = group;
    Ok(GroupSpec {
        kind: decode_kind(&name)?,
        block_size,
        window,
        chunk,
        eagle,
        prefix_cacheable,
        variant,
    })
}

pub(crate) fn decode_kind(name: &str) -> Result<SpecKind, Error> {
    SpecKind::from_name(name).ok_or_else(|| {
        Error::InvalidValue(format!("kind {name:?} is not known; name it \"unknown\""))
    })
}

fn decode_dialect(names: &[String]) -> Result<EngineDialect, Error> {
    names.iter().try_fold(EngineDialect::PURE, |all, name| {
        let known = EngineDialect::from_name(name).ok_or_else(|| {
            let names = EngineDialect::NAMES.map(|(name, _)| name).join(", ");
            Error::InvalidValue(format!("dialect {name:?} is not one of: {names}"))
        })?;
        Ok(all.with(known))
    })
}
