//! A pod as it is registered, and the ranks of a model by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::catalog::PodConfig;
use super::state::State;
use crate::hash::HashAlgo;

/// How a pod is registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSpec {
    /// The model it serves.
    pub model: String,
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// What the operator says of its groups and its engine.
    pub config: PodConfig,
    /// The engine's hash algorithm, where configured.
    pub algo: Option<HashAlgo>,
    /// The engine's hash seed, where configured.
    pub seed: Option<String>,
    /// Paths of LoRA adapters by name.
    pub loras: BTreeMap<String, String>,
}

/// A registered pod.
#[derive(Debug)]
pub(super) struct Pod {
    /// Its name.
    pub(super) name: Arc<str>,
    /// How it was registered.
    pub(super) spec: PodSpec,
    /// Column of each rank.
    pub(super) columns: BTreeMap<u32, usize>,
    /// How far each feed knows the history of what it tells, where it said so.
    pub(super) feeds: BTreeMap<u32, (State, String)>,
}

impl Pod {
    /// Its ranks, in their order.
    pub(super) fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.columns.iter().map(|(&dp_rank, &column)| Member {
            pod: Arc::clone(&self.name),
            dp_rank,
            column: Some(column),
        })
    }
}

/// One rank of a roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name of the pod.
    pub pod: Arc<str>,
    /// The number of the rank within its pod.
    pub dp_rank: u32,
    /// `None` for a pod that does not serve the model.
    pub(super) column: Option<usize>,
}
