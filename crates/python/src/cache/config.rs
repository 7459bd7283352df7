//! The configuration of a cache, read from `kvbraid.cache.CacheConfig` by attribute name.

use kvbraid_core::cache::{
    ByValue, CacheConfig, EvictionPolicy, GroupOptions, HashFunction, PrefillCost, Retention,
};
use kvbraid_core::hash::none_hash;
use kvbraid_core::spec::EngineDialect;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::enums::EnumArg;
use crate::errors::to_python;
use crate::hash::algorithm;
use crate::topology::{TopologyArg, dialect};

/// `kvbraid.cache.CacheConfig`.
#[derive(FromPyObject)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each an engine's own"
)]
pub(super) struct ConfigArg {
    topology: TopologyArg,
    num_blocks: u32,
    dialect: EnumArg,
    hash_algo: EnumArg,
    hash_seed: Option<PyBackedStr>,
    group_options: Vec<GroupOptionsArg>,
    caching: bool,
    events: bool,
    findable: bool,
    medium: String,
    retention: RetentionArg,
    max_model_len: u32,
    max_in_flight_tokens: Option<u32>,
    watermark_blocks: u32,
    num_reprefillable_tokens: u32,
    partial_junctions: bool,
}

/// `kvbraid.cache.GroupOptions`.
#[derive(FromPyObject)]
struct GroupOptionsArg {
    num_speculative_blocks: u32,
    extra_retained_tokens: u32,
    needs_zeroing: bool,
    is_ring: bool,
    checkpoint_alignment: Option<u32>,
}

/// `kvbraid.models.PrefillCost`.
#[derive(FromPyObject)]
struct CostArg {
    per_token: f64,
    per_pair: f64,
}

/// `kvbraid.cache.Retention`: its classes are distinguished by the attributes that they have.
struct RetentionArg(Retention);

impl<'py> FromPyObject<'_, 'py> for RetentionArg {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Some(tokens) = object.getattr_opt(intern!(py, "tokens"))? {
            return Ok(Self(Retention::Interval(tokens.extract()?)));
        }
        let Some(cost) = object.getattr_opt(intern!(py, "cost"))? else {
            return Ok(Self(Retention::Dense));
        };
        let CostArg {
            per_token,
            per_pair,
        } = cost.extract()?;
        Ok(Self(Retention::ByValue(ByValue {
            policy: policy(object.getattr(intern!(py, "policy"))?.extract()?)?,
            interval: object.getattr(intern!(py, "interval"))?.extract()?,
            cost: PrefillCost {
                per_token,
                per_pair,
            },
        })))
    }
}

/// A member of `kvbraid.cache.EvictionPolicy`, or `None`.
fn policy(given: Option<EnumArg>) -> PyResult<Option<EvictionPolicy>> {
    let Some(given) = given else {
        return Ok(None);
    };
    let policy = EvictionPolicy::named(given.name()).map_err(to_python)?;
    Ok(Some(policy))
}

impl GroupOptionsArg {
    fn decode(&self) -> GroupOptions {
        GroupOptions {
            num_speculative_blocks: self.num_speculative_blocks,
            extra_retained_tokens: self.extra_retained_tokens,
            needs_zeroing: self.needs_zeroing,
            is_ring: self.is_ring,
            checkpoint_alignment: self.checkpoint_alignment,
        }
    }
}

impl ConfigArg {
    /// The configuration. Without options, each group has the defaults.
    pub(super) fn decode(self) -> PyResult<CacheConfig> {
        let dialect = dialect([self.dialect.name()]).map_err(to_python)?;
        let topology = self.topology.decode(dialect).map_err(to_python)?;
        let mut options: Vec<_> = self
            .group_options
            .iter()
            .map(GroupOptionsArg::decode)
            .collect();
        if options.is_empty() {
            options.resize(topology.groups.len(), GroupOptions::default());
        }
        let algo = algorithm(self.hash_algo.name())?;
        let root = none_hash(algo, self.hash_seed.as_deref());
        Ok(CacheConfig {
            topology,
            options,
            num_blocks: self.num_blocks,
            caching: self.caching,
            events: self.events,
            findable: self.findable,
            medium: self.medium,
            retention: self.retention.0,
            max_model_len: self.max_model_len,
            max_in_flight_tokens: self.max_in_flight_tokens,
            watermark_blocks: self.watermark_blocks,
            num_reprefillable_tokens: self.num_reprefillable_tokens,
            follows_vllm: dialect == EngineDialect::VLLM,
            partial_junctions: self.partial_junctions,
            // An engine that draws its seed at random brings the hashes itself.
            hash: root.map(|none_hash| HashFunction { algo, none_hash }),
        })
    }
}
