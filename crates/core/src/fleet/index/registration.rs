//! Which pods are registered, and which column of its model each of their ranks has.
//!
//! A registration is checked before anything changes, so a refused one leaves everything as it was.

use std::collections::BTreeMap;

use super::{Index, Options};
use crate::error::{Error, Result};
use crate::fleet::model::Model;
use crate::fleet::pod::catalog::Catalog;
use crate::fleet::pod::engine_chain::EngineChain;
use crate::fleet::pod::{Pod, PodSpec};
use crate::fleet::presence::planes::Column;
use crate::fleet::rank::Rank;
use crate::prefix::plus;
use crate::wire::MAX_RANKS;

impl Index {
    /// Registers a pod. The same registration again changes nothing; a different one starts the pod
    /// anew.
    ///
    /// # Errors
    /// `InvalidValue` for a topology that no engine can have, for no rank, and for more ranks than
    /// an engine or this index can have.
    pub fn register(&mut self, name: &str, spec: PodSpec) -> Result<bool> {
        if self.pods.get(name).is_some_and(|pod| pod.spec == spec) {
            return Ok(false);
        }
        if spec.dp_size == 0 {
            let text = format!("pod {name:?}: dp_size 0; a pod has at least one rank");
            return Err(Error::InvalidValue(text));
        }
        if spec.dp_size > MAX_RANKS {
            let dp_size = spec.dp_size;
            let text = format!("pod {name:?}: dp_size {dp_size}; a pod has at most {MAX_RANKS}");
            return Err(Error::InvalidValue(text));
        }
        self.check_room(name, spec.dp_size as usize)?;
        spec.check()?;
        if self.pods.get(name).is_some() {
            self.remove(name)?;
        }
        let dp_size = spec.dp_size;
        let secret = &self.options.secret;
        self.models
            .entry(spec.model.clone())
            .or_insert_with_key(|name| Model::new(name, secret));
        self.pods.insert(Pod {
            name: name.into(),
            spec,
            columns: BTreeMap::new(),
            feeds: BTreeMap::new(),
        });
        for dp_rank in 0..dp_size {
            self.add_rank(name, dp_rank)?;
        }
        Ok(true)
    }

    /// Only registered ranks are counted: ranks that payloads named never keep a pod out.
    fn check_room(&self, name: &str, dp_size: usize) -> Result<()> {
        let others = (self.pods.in_any_order()).filter(|pod| *pod.name != *name);
        let ranks = dp_size + others.map(|p| p.spec.dp_size as usize).sum::<usize>();
        if ranks > self.options.max_ranks {
            let limit = self.options.max_ranks;
            let text = format!("pod {name:?}: {ranks} ranks would be registered; at most {limit}");
            return Err(Error::InvalidValue(text));
        }
        Ok(())
    }

    /// The number of ranks of all pods, whether registered or named by payloads.
    pub(in crate::fleet) fn num_ranks(&self) -> usize {
        (self.pods.in_any_order())
            .map(|pod| pod.columns.len())
            .sum()
    }

    pub(in crate::fleet) fn add_rank(&mut self, name: &str, dp_rank: u32) -> Result<usize> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        let rank = new_rank(&self.options, &pod.spec, dp_rank)?;
        let pod = self.pods.get_mut(name).ok_or_else(|| unknown_pod(name))?;
        let secret = &self.options.secret;
        let model = self
            .models
            .entry(pod.spec.model.clone())
            .or_insert_with_key(|name| Model::new(name, secret));
        let (index, column) = model.free_column();
        model.ranks[index] = Some(Rank { column, ..rank });
        model.invalidate(index);
        pod.columns.insert(dp_rank, index);
        Ok(index)
    }

    /// Removes a pod, with all its ranks and everything they hold.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let pod = self.pods.remove(name).ok_or_else(|| unknown_pod(name))?;
        let Some(model) = self.models.get_mut(&pod.spec.model) else {
            return Ok(());
        };
        for &column in pod.columns.values() {
            model.remove(column);
        }
        if model.ranks.iter().all(Option::is_none) {
            self.remove_model(&pod.spec.model);
        }
        Ok(())
    }

    /// Removes a model without pods, after all that it names was noted. At which boundaries its hashes
    /// stood is forgotten, and a later model of this name may have others.
    fn remove_model(&mut self, name: &str) {
        self.note_gone();
        if let Some(model) = self.models.remove(name) {
            for key in model.nodes.named() {
                self.seen.note(plus(key, model.term));
            }
            self.seen.lose(model.steps.num_lost());
        }
    }

    /// Refuses a pod that does not serve the model.
    pub(in crate::fleet) fn check_serves(&self, name: &str, model: &str) -> Result<()> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        if pod.spec.model == model {
            return Ok(());
        }
        let text = format!("pod {name:?} does not serve model {model:?}");
        Err(Error::Unknown(text))
    }

    pub(in crate::fleet) fn locate(
        &mut self,
        name: &str,
        dp_rank: u32,
    ) -> Result<(&mut Model, usize)> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        let column = *pod.columns.get(&dp_rank).ok_or_else(|| {
            let ranks = pod.columns.len();
            Error::Unknown(format!(
                "pod {name:?} has no rank {dp_rank}; it has {ranks}"
            ))
        })?;
        let model = self
            .models
            .get_mut(&pod.spec.model)
            .ok_or_else(|| unknown_pod(name))?;
        Ok((model, column))
    }
}

/// A rank of a pod about which nothing is known; it has no column yet.
pub(super) fn new_rank(options: &Options, spec: &PodSpec, dp_rank: u32) -> Result<Rank> {
    let chain = if options.use_hash_functions {
        EngineChain::new(spec.algo, spec.seed.as_deref())
    } else {
        EngineChain::off()
    };
    let catalog = Catalog::new(spec.config.clone())?;
    let mut rank = Rank::new(
        dp_rank,
        Column { word: 0, bit: 0 },
        catalog,
        chain,
        options.counts_copies,
        &options.secret,
    );
    rank.limbo.narrows = options.narrows;
    Ok(Rank {
        loras: spec.loras.clone(),
        limbo_limit: options.limbo_limit(),
        ..rank
    })
}

pub(in crate::fleet) fn unknown_pod(name: &str) -> Error {
    Error::Unknown(format!("pod {name:?} is not registered; register it first"))
}
