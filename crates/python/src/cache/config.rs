//! A cache's configuration, as Python hands it over.

use kvbraid_core::cache::{
    ByValue, CacheConfig, GroupOptions, HashFunction, PrefillCost, Retention,
};
use kvbraid_core::hash::Digest;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::errors::to_python;
use crate::hash::algorithm;
use crate::topology::TopologyTuple;

/// speculative blocks, extra retained tokens, needs zeroing, is a ring, checkpoint alignment.
type OptionsTuple = (u32, u32, bool, bool, Option<u32>);

/// By value: checkpoint interval, cost per token and per pair.
type ByValueTuple = (u32, f64, f64);

/// topology, options per group, blocks, caching, events, retention (none: dense; a number: interval).
#[derive(FromPyObject)]
pub(super) struct ConfigTuple(
    TopologyTuple,
    Vec<OptionsTuple>,
    u32,
    bool,
    bool,
    Option<RetentionArg>,
);

#[derive(FromPyObject)]
enum RetentionArg {
    Interval(u32),
    ByValue(ByValueTuple),
}

impl RetentionArg {
    fn decode(self) -> Retention {
        match self {
            Self::Interval(tokens) => Retention::Interval(tokens),
            Self::ByValue((interval, per_token, per_pair)) => Retention::ByValue(ByValue {
                interval,
                cost: PrefillCost {
                    per_token,
                    per_pair,
                },
            }),
        }
    }
}

/// model length, tokens in flight, watermark blocks, re-prefillable tokens, frees skipped when full,
/// partial junctions.
pub(super) type LimitsTuple = (u32, Option<u32>, u32, u32, bool, bool);

/// Algorithm and seed hash.
pub(super) type HashTuple = (String, PyBackedBytes);

impl ConfigTuple {
    pub(super) fn decode(
        self,
        limits: LimitsTuple,
        hash: Option<HashTuple>,
    ) -> PyResult<CacheConfig> {
        let Self(topology, options, num_blocks, caching, events, retention) = self;
        let option = |(speculative, retained, zeroing, ring, checkpoint)| GroupOptions {
            num_speculative_blocks: speculative,
            extra_retained_tokens: retained,
            needs_zeroing: zeroing,
            is_ring: ring,
            checkpoint_alignment: checkpoint,
        };
        let function = |(algo, none_hash): HashTuple| -> PyResult<HashFunction> {
            Ok(HashFunction {
                algo: algorithm(&algo)?,
                none_hash: Digest::from_bytes(&none_hash).map_err(to_python)?,
            })
        };
        Ok(CacheConfig {
            topology: topology.decode().map_err(to_python)?,
            options: options.into_iter().map(option).collect(),
            num_blocks,
            caching,
            events,
            retention: retention.map_or(Retention::Dense, RetentionArg::decode),
            max_model_len: limits.0,
            max_in_flight_tokens: limits.1,
            watermark_blocks: limits.2,
            num_reprefillable_tokens: limits.3,
            frees_skipped_when_full: limits.4,
            partial_junctions: limits.5,
            hash: hash.map(function).transpose()?,
        })
    }
}
