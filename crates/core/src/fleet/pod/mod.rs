//! A pod as it is registered, and the ranks of a model by name.
//!
//! In reading order:
//! - `view`: the groups that the rule is evaluated with;
//! - `catalog`: the groups as configured or learned;
//! - `sizes`: whether stores contradict the configured sizes;
//! - `reach`: how long a prompt the stores have shown;
//! - `page`: the groups of a model whose events show full attention only;
//! - `publisher`: what sets the engines' events apart;
//! - `engine_chain`: the engine's hash function;
//! - `pods`: all pods, by name;
//! - `adapters`: adapters that were loaded again under their names.

pub(in crate::fleet) mod adapters;
pub(in crate::fleet) mod catalog;
pub(in crate::fleet) mod engine_chain;
pub(in crate::fleet) mod page;
pub(in crate::fleet) mod pods;
pub(in crate::fleet) mod publisher;
pub(in crate::fleet) mod reach;
pub(in crate::fleet) mod sizes;
pub(in crate::fleet) mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Result;
use crate::fleet::state::State;
use crate::hash::HashAlgo;
use catalog::{Catalog, PodConfig};

/// How a pod is registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSpec {
    /// The model it serves.
    pub model: String,
    /// The number of data-parallel ranks.
    pub dp_size: u32,
    /// What the operator says about its groups and its engine.
    pub config: PodConfig,
    /// The engine's hash algorithm, if it is configured.
    pub algo: Option<HashAlgo>,
    /// The engine's hash seed, if it is configured.
    pub seed: Option<String>,
    /// The paths of LoRA adapters, by name.
    pub loras: BTreeMap<String, String>,
}

impl PodSpec {
    /// Refuses groups and an engine that no index takes, whatever else is registered.
    ///
    /// # Errors
    /// `InvalidValue` for a topology that no engine can have.
    pub fn check(&self) -> Result<()> {
        Catalog::new(self.config.clone()).map(drop)
    }
}

/// A registered pod.
#[derive(Debug)]
pub(in crate::fleet) struct Pod {
    /// Its name.
    pub(in crate::fleet) name: Arc<str>,
    /// How it was registered.
    pub(in crate::fleet) spec: PodSpec,
    /// The column of each rank.
    pub(in crate::fleet) columns: BTreeMap<u32, usize>,
    /// The state and reason of each feed that has said how completely it knows its history.
    pub(in crate::fleet) feeds: BTreeMap<u32, (State, String)>,
}

impl Pod {
    /// Its ranks, in order of rank.
    pub(in crate::fleet) fn members(&self) -> impl Iterator<Item = Member> + '_ {
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
    /// The name of the pod.
    pub pod: Arc<str>,
    /// The number of the rank within its pod.
    pub dp_rank: u32,
    /// The rank's column; `None` for a pod that does not serve the model.
    pub(in crate::fleet) column: Option<usize>,
}
