//! The arguments of the fleet index's methods, read from Python objects by attribute name.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use kvbraid_core::Error;
use kvbraid_core::fleet::{
    GroupOfModel, Hidden, Options, PodConfig, PodSpec, Prompt, Publisher, ScoreRequest,
    SilentPools, Strategy, Tier, TierSet,
};
use kvbraid_core::hash::MediaItem;
use kvbraid_core::secret::Secret;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::enums::EnumArg;
use crate::errors::to_python;
use crate::extra_keys::MediaArg;
use crate::hash::algorithm;
use crate::secret;
use crate::tokens::PromptArg;
use crate::topology::{self, TopologyArg};

/// `kvbraid.fleet.IndexOptions`.
#[derive(FromPyObject)]
pub(super) struct OptionsArg {
    keys: PyBackedStr,
    presence: PyBackedStr,
    narrows: bool,
    memory_limit_bytes: Option<usize>,
    limbo_limit_bytes: usize,
    promise_limit_bytes: usize,
    seen_limit_bytes: usize,
    weights: [f64; 3],
    canonical_block_size: NonZeroU32,
    max_ranks: usize,
    secret: Option<[u8; 32]>,
}

impl OptionsArg {
    /// The options. A secret is drawn if none is given.
    pub(super) fn decode(self) -> Options {
        Options {
            use_hash_functions: &*self.keys == "auto",
            counts_copies: &*self.presence != "set",
            all_groups: &*self.presence != "full-only",
            narrows: self.narrows,
            memory_limit_bytes: self.memory_limit_bytes.unwrap_or(0),
            limbo_limit_bytes: self.limbo_limit_bytes,
            promise_limit_bytes: self.promise_limit_bytes,
            seen_limit_bytes: self.seen_limit_bytes,
            weights: self.weights,
            canonical_block_size: self.canonical_block_size,
            max_ranks: self.max_ranks,
            secret: self.secret.map_or_else(secret::draw, Secret::new),
        }
    }
}

/// `kvbraid.fleet.index.Registration`.
#[derive(FromPyObject)]
pub(super) struct RegistrationArg {
    model: String,
    dp_size: u32,
    topology: TopologyArg,
    engine: EngineArg,
    loras: BTreeMap<String, String>,
}

/// `kvbraid.engine.EngineProfile`.
#[derive(FromPyObject)]
struct EngineArg {
    dialect: EnumArg,
    hash_algo: Option<EnumArg>,
    hash_seed: Option<String>,
    report_mode: PyBackedStr,
    retention: Option<u64>,
    num_gpu_blocks: Option<NonZeroU32>,
    extra_keys: bool,
    adapter_reloads: bool,
    event_format: PyBackedStr,
    unsent_tokens: Vec<(EnumArg, u32)>,
    model_groups: Vec<(EnumArg, Option<u32>)>,
    silent_pools_never_short: bool,
    window_pool_tokens: Option<u32>,
    state_slots: Option<u32>,
    chunked_prefill_size: Option<u32>,
    silent_groups: Option<Vec<SilentGroupArg>>,
}

/// `kvbraid.spec.SilentGroup`.
#[derive(FromPyObject)]
struct SilentGroupArg {
    kind: EnumArg,
    window: Option<u32>,
    grid: u32,
}

impl RegistrationArg {
    pub(super) fn decode(self) -> PyResult<PodSpec> {
        Ok(PodSpec {
            config: self.engine.config(self.topology).map_err(to_python)?,
            algo: self
                .engine
                .hash_algo
                .map(|algo| algorithm(algo.name()))
                .transpose()?,
            seed: self.engine.hash_seed,
            model: self.model,
            dp_size: self.dp_size,
            loras: self.loras,
        })
    }
}

impl EngineArg {
    fn config(&self, topology: TopologyArg) -> Result<PodConfig, Error> {
        let dialect = topology::dialect([self.dialect.name()])?;
        let unsent = self.unsent_tokens.iter();
        let told = self.model_groups.iter();
        let silent = self.silent_groups.as_ref().map(|groups| groups.iter());
        Ok(PodConfig {
            may_hit_inside: topology.partial_hits.is_none(),
            topology: Some(topology.decode(dialect)?),
            publisher: match self.dialect.name() {
                "sglang" => Publisher::Sglang,
                _ => Publisher::Vllm,
            },
            full_reports: &*self.report_mode == "full",
            keeps_whole_windows: self.retention.is_some(),
            num_gpu_blocks: self.num_gpu_blocks,
            hidden: Hidden {
                extra_keys: self.extra_keys,
                adapter_reloads: self.adapter_reloads,
                dynamo_format: &*self.event_format == "dynamo",
            },
            unsent: unsent
                .map(|(kind, tokens)| Ok((topology::kind(kind)?, *tokens)))
                .collect::<Result<_, _>>()?,
            model_groups: told
                .map(|(kind, window)| Ok((topology::kind(kind)?, *window)))
                .collect::<Result<_, _>>()?,
            silent: SilentPools {
                never_short: self.silent_pools_never_short,
                window_tokens: self.window_pool_tokens,
                state_slots: self.state_slots,
                chunked_prefill: self.chunked_prefill_size,
            },
            silent_groups: silent
                .map(|groups| groups.map(SilentGroupArg::decode).collect())
                .transpose()?,
        })
    }
}

impl SilentGroupArg {
    fn decode(&self) -> Result<GroupOfModel, Error> {
        Ok(GroupOfModel {
            kind: topology::kind(&self.kind)?,
            window: self.window,
            grid: self.grid,
        })
    }
}

/// `kvbraid.fleet.Request` without its tokens, which are an argument of their own with its own
/// error messages.
#[derive(FromPyObject)]
pub(super) struct RequestArg {
    pub model: String,
    lora: Option<PyBackedStr>,
    cache_salt: Option<PyBackedStr>,
    extra_key: Option<PyBackedStr>,
    extra_keys: Option<Vec<MediaArg>>,
    pods: Option<Vec<String>>,
    tiers: Option<Vec<PyBackedStr>>,
    strategy: PyBackedStr,
    weights: Option<[Option<f64>; 3]>,
}

impl RequestArg {
    /// Calls `run` with the request in the form that the index takes.
    pub(super) fn with<T>(
        &self,
        tokens: &PromptArg,
        run: impl FnOnce(&ScoreRequest<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let media = self.extra_keys.iter().flatten();
        let mut media: Vec<MediaItem<'_>> = media.map(MediaArg::item).collect();
        media.sort_by_key(|item| item.offset);
        run(&ScoreRequest {
            model: &self.model,
            prompt: Prompt {
                tokens: tokens.tokens(),
                wide: tokens.wide(),
                lora: self.lora.as_deref(),
                salt: self.cache_salt.as_deref(),
                extra_key: self.extra_key.as_deref(),
                media: &media,
            },
            pods: self.pods.as_deref(),
            tiers: tiers(self.tiers.as_deref().unwrap_or_default())?,
            strategy: strategy(&self.strategy)?,
            weights: self.weights.unwrap_or_default(),
        })
    }
}

fn tiers(names: &[PyBackedStr]) -> Result<TierSet, Error> {
    let find = |name: &PyBackedStr| {
        let mut tiers = Tier::ALL.into_iter();
        tiers.find(|tier| tier.name() == &**name).ok_or_else(|| {
            let known = Tier::ALL.map(Tier::name).join(", ");
            Error::InvalidValue(format!("tier {:?} is not one of: {known}", &**name))
        })
    };
    names.iter().map(find).collect()
}

fn strategy(name: &str) -> Result<Strategy, Error> {
    Strategy::from_name(name).ok_or_else(|| {
        let names = Strategy::NAMES.map(|(name, _)| name).join(", ");
        Error::InvalidValue(format!("strategy {name:?} is not one of: {names}"))
    })
}
