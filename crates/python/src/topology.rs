//! Groups, topologies and dialects, read from Python objects by attribute name.

use kvbraid_core::Error;
use kvbraid_core::spec::{EngineDialect, GroupSpec, SpecKind, Topology};
use pyo3::prelude::*;

use crate::enums::EnumArg;

/// `kvbraid.spec.GroupSpec`.
#[derive(FromPyObject)]
pub(crate) struct GroupArg {
    kind: EnumArg,
    block_size: u32,
    window: Option<u32>,
    chunk: Option<u32>,
    eagle: bool,
    prefix_cacheable: bool,
    variant: u32,
}

impl GroupArg {
    /// The group, which is not validated yet.
    pub(crate) fn decode(self) -> Result<GroupSpec, Error> {
        Ok(GroupSpec {
            kind: kind(&self.kind)?,
            block_size: self.block_size,
            window: self.window,
            chunk: self.chunk,
            eagle: self.eagle,
            prefix_cacheable: self.prefix_cacheable,
            variant: self.variant,
        })
    }
}

/// `kvbraid.spec.Topology`.
#[derive(FromPyObject)]
pub(crate) struct TopologyArg {
    groups: Vec<GroupArg>,
    alignment: Option<u32>,
    hash_block_size: Option<u32>,
    pub(crate) partial_hits: Option<bool>,
    replay_tokens: u32,
    hash_lookahead: u32,
}

impl TopologyArg {
    /// The validated topology, with its defaults filled in.
    pub(crate) fn decode(self, dialect: EngineDialect) -> Result<Topology, Error> {
        let groups = self.groups.into_iter().map(GroupArg::decode);
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let hash_block_size = self.hash_block_size;
        let topology = Topology {
            alignment: self
                .alignment
                .unwrap_or_else(|| Topology::default_alignment(&groups)),
            hash_block_size: hash_block_size
                .unwrap_or_else(|| Topology::default_hash_block_size(&groups)),
            groups,
            partial_hits: self.partial_hits.unwrap_or(false),
            replay_tokens: self.replay_tokens,
            hash_lookahead: self.hash_lookahead,
            dialect,
        };
        topology.validate()?;
        Ok(topology)
    }
}

/// The kind with this name.
pub(crate) fn kind(kind: &EnumArg) -> Result<SpecKind, Error> {
    let name = kind.name();
    SpecKind::from_name(name).ok_or_else(|| {
        Error::InvalidValue(format!("kind {name:?} is not known; name it \"unknown\""))
    })
}

/// The union of the dialects and single flags with these names.
pub(crate) fn dialect(names: impl IntoIterator<Item: AsRef<str>>) -> Result<EngineDialect, Error> {
    let mut names = names.into_iter();
    names.try_fold(EngineDialect::PURE, |all, name| {
        let name = name.as_ref();
        let known = EngineDialect::from_name(name).ok_or_else(|| {
            let names = EngineDialect::NAMES.map(|(name, _)| name).join(", ");
            Error::InvalidValue(format!("dialect {name:?} is not one of: {names}"))
        })?;
        Ok(all.with(known))
    })
}
