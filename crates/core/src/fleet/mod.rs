//! What every pod of a fleet holds, from the engines' own events, and what a request can reuse.
//!
//! [`Index`] owns everything; it takes bytes and tokens in and gives numbers out. Nothing here does
//! I/O or reads a clock. The folders' flow: `apply` (a batch) -> `naming` (places of hashes, with
//! `limbo` for what is undecided) -> `slots`, `nodes`, `planes` (copies, boundaries, bits);
//! `query` (a request) -> `walk` (keys and nodes) -> the rule -> `answer`.

pub mod answer;
mod apply;
mod bounds;
pub mod catalog;
mod engine_chain;
mod explain;
mod json;
mod limbo;
mod model;
mod naming;
mod nodes;
mod planes;
mod probe;
mod query;
mod rank;
mod request;
mod slots;
mod texts;
mod tier;
mod walk;
mod weight;
mod weighted;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

pub use answer::{Bounds, Row, TierSet};
pub use apply::Applied;
pub use catalog::PodConfig;
pub use explain::{GroupStrip, Strip};
pub use rank::{Placed, State};
pub use request::{Request, Strategy};
pub use tier::Tier;
pub use walk::Prompt;

use crate::error::{Error, Result};
use crate::hash::HashAlgo;
use crate::rule;
use crate::wire::{Decoder, Limits};
use catalog::Catalog;
use engine_chain::EngineChain;
use model::Model;
use query::{Ask, Search};
use rank::Rank;
use weighted::Canonical;

/// How an index works, fixed for its life.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// The engines' hash functions may be used (`false`: placing by tokens and joins alone).
    pub use_hash_functions: bool,
    /// Presence is a count of copies; `false` is a shortcut for comparison.
    pub counts_copies: bool,
    /// All groups are evaluated; `false` (full attention only) is a shortcut for comparison.
    pub all_groups: bool,
    /// Forget the least recently matched boundaries above this many bytes; 0 = no limit.
    pub memory_limit_bytes: usize,
    /// Forget what is undecided of a rank above this many bytes.
    pub limbo_limit_bytes: usize,
    /// What a token is worth on each tier, in the order of `Tier::ALL`.
    pub weights: [f64; 3],
    /// Tokens per block of the `weighted_blocks` strategy.
    pub canonical_block_size: NonZeroU32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            use_hash_functions: true,
            counts_copies: true,
            all_groups: true,
            memory_limit_bytes: 0,
            limbo_limit_bytes: 64 << 20,
            weights: [1.0, 0.8, 0.5],
            canonical_block_size: const { NonZeroU32::new(16).unwrap() },
        }
    }
}

/// How a pod is registered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSpec {
    /// The model it serves.
    pub model: String,
    /// Data-parallel ranks.
    pub dp_size: u32,
    /// Groups and engine.
    pub config: PodConfig,
    /// The engine's hash algorithm, where configured.
    pub algo: Option<HashAlgo>,
    /// The engine's hash seed, where configured.
    pub seed: Option<String>,
    /// Paths of LoRA adapters by name.
    pub loras: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Pod {
    name: Arc<str>,
    spec: PodSpec,
    /// Column of each rank.
    columns: BTreeMap<u32, usize>,
}

impl Pod {
    fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.columns.iter().map(|(&dp_rank, &column)| Member {
            pod: Arc::clone(&self.name),
            dp_rank,
            column: Some(column),
        })
    }
}

/// What is known of one rank, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct RankInfo {
    /// Name of the pod.
    pub pod: String,
    /// The rank.
    pub dp_rank: u32,
    /// Its model.
    pub model: String,
    /// State.
    pub state: State,
    /// Why the state is not exact.
    pub reason: String,
    /// Batches taken in.
    pub messages: u64,
    /// Group by group: wire index, kind, block size, window, chunk.
    pub groups: Vec<GroupInfo>,
    /// Hashes placed by each means, and those not placed.
    pub placed: Placed,
    /// Listings that wait for their place.
    pub unplaced: u64,
    /// Refusals and notes by reason.
    pub refused: BTreeMap<String, u64>,
    /// How much the engine's hash function is trusted.
    pub hash_function: &'static str,
    /// Hashes named.
    pub blocks: usize,
}

/// One group as known now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupInfo {
    /// Wire index; `None` for events without one.
    pub group: Option<u16>,
    /// Kind, window, block size and so on.
    pub spec: crate::spec::GroupSpec,
}

/// One rank of a roster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Name of the pod.
    pub pod: Arc<str>,
    /// The rank.
    pub dp_rank: u32,
    /// `None` for a pod that does not serve the model.
    column: Option<usize>,
}

/// An answer: `rows[i]` is that of `roster[i]`, in the order of pod names, then ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The ranks asked for.
    pub roster: Arc<[Member]>,
    /// One row per rank.
    pub rows: Vec<Row>,
}

/// The index of a fleet.
#[derive(Debug)]
pub struct Index {
    options: Options,
    models: BTreeMap<String, Model>,
    pods: BTreeMap<String, Pod>,
    decoder: Decoder,
    scratch: rule::Scratch,
    batches_to_check: u32,
}

/// Memory is compared with its limit once in so many batches: measuring walks every rank.
const CHECK_EVERY: u32 = 256;

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            models: BTreeMap::new(),
            pods: BTreeMap::new(),
            decoder: Decoder::new(Limits::default()),
            scratch: rule::Scratch::default(),
            batches_to_check: CHECK_EVERY,
        }
    }

    /// Registers a pod; the same registration again changes nothing, another one starts anew.
    ///
    /// # Errors
    /// `InvalidValue` for a topology that no engine can have, or no rank.
    pub fn register(&mut self, name: &str, spec: PodSpec) -> Result<bool> {
        if self.pods.get(name).is_some_and(|pod| pod.spec == spec) {
            return Ok(false);
        }
        if spec.dp_size == 0 {
            let text = format!("pod {name:?}: dp_size 0; a pod has at least one rank");
            return Err(Error::InvalidValue(text));
        }
        Catalog::new(spec.config.clone())?;
        if self.pods.contains_key(name) {
            self.remove(name)?;
        }
        let dp_size = spec.dp_size;
        self.models.entry(spec.model.clone()).or_default();
        self.pods.insert(
            name.to_owned(),
            Pod {
                name: name.into(),
                spec,
                columns: BTreeMap::new(),
            },
        );
        for dp_rank in 0..dp_size {
            self.add_rank(name, dp_rank)?;
        }
        Ok(true)
    }

    fn add_rank(&mut self, name: &str, dp_rank: u32) -> Result<usize> {
        let pod = self.pods.get_mut(name).ok_or_else(|| unknown_pod(name))?;
        let model = self.models.entry(pod.spec.model.clone()).or_default();
        let (index, column) = model.free_column();
        let spec = &pod.spec;
        let chain = if self.options.use_hash_functions {
            EngineChain::new(spec.algo, spec.seed.as_deref())
        } else {
            EngineChain::off()
        };
        let catalog = Catalog::new(spec.config.clone())?;
        let rank = Rank::new(dp_rank, column, catalog, chain, self.options.counts_copies);
        model.ranks[index] = Some(Rank {
            loras: spec.loras.clone(),
            ..rank
        });
        model.invalidate();
        pod.columns.insert(dp_rank, index);
        Ok(index)
    }

    /// Removes a pod, all of its ranks and all they hold.
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
            self.models.remove(&pod.spec.model);
        }
        Ok(())
    }

    fn locate(&mut self, name: &str, dp_rank: u32) -> Result<(&mut Model, usize)> {
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

    /// Takes in one published payload. Bad bytes are refused and counted, never an error.
    ///
    /// A batch that names another data-parallel rank than the feed's is that rank's.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered.
    pub fn apply(&mut self, name: &str, dp_rank: u32, payload: &[u8]) -> Result<Applied> {
        let mut decoder = std::mem::take(&mut self.decoder);
        let batch = decoder.decode(payload);
        let rank = batch.dp_rank.unwrap_or(dp_rank);
        let result = self
            .column_for(name, rank, dp_rank)
            .map(|(model, column)| model.apply(column, batch));
        self.decoder = decoder;
        self.batches_to_check -= 1;
        if self.batches_to_check == 0 {
            self.batches_to_check = CHECK_EVERY;
            self.enforce_limits();
        }
        result
    }

    fn column_for(
        &mut self,
        name: &str,
        dp_rank: u32,
        feed_rank: u32,
    ) -> Result<(&mut Model, usize)> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        if !pod.columns.contains_key(&dp_rank) && dp_rank < MAX_RANKS {
            // A rank nobody registered shows itself: it gets a row of its own.
            let (state, reason) = self.state_of(name, feed_rank);
            self.add_rank(name, dp_rank)?;
            self.set_state(name, dp_rank, state, reason)?;
        }
        self.locate(name, dp_rank)
    }

    fn state_of(&mut self, name: &str, dp_rank: u32) -> (State, String) {
        self.locate(name, dp_rank)
            .ok()
            .and_then(|(model, column)| model.ranks[column].as_ref())
            .map_or((State::Exact, String::new()), |r| {
                (r.feed_state, r.feed_reason.clone())
            })
    }

    /// The engine of a rank restarted: its GPU tier is gone, other tiers are in doubt.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn reset(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        let (use_hash, pod) = (self.options.use_hash_functions, self.pods.get(name));
        let chain = match pod {
            Some(pod) if use_hash => EngineChain::new(pod.spec.algo, pod.spec.seed.as_deref()),
            Some(_) | None => EngineChain::off(),
        };
        let (model, column) = self.locate(name, dp_rank)?;
        model.with_rank(column, |rank, shared| rank.restart(shared, chain));
        Ok(())
    }

    /// Messages of a rank were lost for good: what it holds is no longer known.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn lose(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        model.with_rank(column, Rank::lose);
        Ok(())
    }

    /// How far the feed knows a rank's history.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn set_state(
        &mut self,
        name: &str,
        dp_rank: u32,
        state: State,
        reason: String,
    ) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        if let Some(rank) = &mut model.ranks[column] {
            rank.feed_state = state;
            rank.feed_reason = reason;
        }
        Ok(())
    }

    /// Counts a refusal that the feed saw.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn note_refused(&mut self, name: &str, dp_rank: u32, reason: &str) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        if let Some(rank) = &mut model.ranks[column] {
            *rank.refused_outside.entry(reason.to_owned()).or_insert(0) += 1;
        }
        Ok(())
    }

    /// Bounds and a score for every rank of the model.
    ///
    /// # Errors
    /// `Unknown` for a model that is not registered, and for a pod that is not; the weighted
    /// strategy answers for such a pod with a row that has no score.
    pub fn score(&mut self, request: &Request<'_>) -> Result<Answer> {
        let roster = self.roster(request)?;
        let ask = self.ask(request, &roster);
        let model = self
            .models
            .get_mut(request.model)
            .ok_or_else(|| unknown_model(request))?;
        let mut rows = Search::new(model, &ask).rows(&mut self.scratch);
        for (at, member) in roster
            .iter()
            .enumerate()
            .filter(|(_, m)| m.column.is_none())
        {
            debug_assert!(at <= rows.len(), "no row for a member before {member:?}");
            rows.insert(at, Row::of_stranger(request.prompt.last_token(), ask.tiers));
        }
        Ok(Answer { roster, rows })
    }

    /// What every rank holds along the request, group by group, and what each group accepts.
    ///
    /// What is explained is the exact answer, whatever strategy the request names.
    ///
    /// # Errors
    /// As `score` by the exact strategy.
    pub fn explain(&mut self, request: &Request<'_>) -> Result<(Answer, Vec<Strip>)> {
        let request = &Request {
            strategy: Strategy::Exact,
            ..request.clone()
        };
        let answer = self.score(request)?;
        let ask = self.ask(request, &answer.roster);
        let model = self
            .models
            .get_mut(request.model)
            .ok_or_else(|| unknown_model(request))?;
        let strips = explain::strips(&mut Search::new(model, &ask), &mut self.scratch);
        Ok((answer, strips))
    }

    fn ask<'p>(&self, request: &Request<'p>, roster: &[Member]) -> Ask<'p> {
        let (tiers, counted) = if request.tiers.is_empty() {
            (TierSet::GPU, Tier::ALL.into_iter().collect())
        } else {
            (request.tiers, request.tiers)
        };
        let canonical = Canonical {
            block_size: self.options.canonical_block_size.get(),
            tiers: counted,
        };
        Ask {
            prompt: request.prompt,
            columns: roster.iter().filter_map(|member| member.column).collect(),
            tiers,
            weighted: (request.strategy == Strategy::WeightedBlocks).then_some(canonical),
            only_full: !self.options.all_groups,
            touch: self.options.memory_limit_bytes > 0,
            weights: self.options.weights,
        }
    }

    /// Every rank asked for. That of all pods is made once per model. Only the weighted strategy
    /// has an answer for pods that do not serve the model.
    fn roster(&mut self, request: &Request<'_>) -> Result<Arc<[Member]>> {
        let Some(model) = self.models.get_mut(request.model) else {
            return Err(unknown_model(request));
        };
        if let Some(names) = request.pods {
            let mut members = Vec::with_capacity(names.len());
            for name in names {
                let pod = self.pods.get(name);
                match (
                    pod.filter(|p| p.spec.model == request.model),
                    request.strategy,
                ) {
                    (Some(pod), _) => members.extend(pod.members()),
                    (None, Strategy::WeightedBlocks) => members.push(Member {
                        pod: name.as_str().into(),
                        dp_rank: 0,
                        column: None,
                    }),
                    (None, Strategy::Exact) => {
                        let text = format!("pod {name:?} does not serve model {:?}", request.model);
                        return Err(Error::Unknown(text));
                    }
                }
            }
            return Ok(members.into());
        }
        let pods = self.pods.values().filter(|p| p.spec.model == request.model);
        let roster = model
            .roster
            .get_or_insert_with(|| pods.flat_map(Pod::members).collect());
        Ok(Arc::clone(roster))
    }

    /// What is known of every rank.
    #[must_use]
    pub fn pods(&self) -> Vec<RankInfo> {
        let ranks = self.pods.iter().flat_map(|(name, pod)| {
            let model = self.models.get(&pod.spec.model);
            pod.columns.values().filter_map(move |&column| {
                Some(info(name, &pod.spec.model, model?.ranks[column].as_ref()?))
            })
        });
        ranks.collect()
    }

    /// The models that have pods.
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        self.models.keys().cloned().collect()
    }

    /// Bytes held, by capacity and estimate.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.models.values().map(Model::bytes).sum::<usize>() + self.decoder.arena_bytes()
    }

    /// Brings memory under its limits now (it happens by itself from time to time).
    pub fn enforce_limits(&mut self) {
        let limit = self.options.limbo_limit_bytes;
        for model in self.models.values_mut() {
            for column in 0..model.ranks.len() {
                model.with_rank(column, |rank, shared| {
                    if rank.limbo.bytes() > limit {
                        rank.evict_limbo(shared);
                        rank.refuse("forgotten_undecided", 1);
                    }
                });
            }
        }
        if self.options.memory_limit_bytes > 0 && self.bytes() > self.options.memory_limit_bytes {
            self.models.values_mut().for_each(Model::forget_oldest);
        }
    }

    /// Panics unless every structure agrees with every other.
    pub fn check_integrity(&self) {
        for model in self.models.values() {
            model.check_integrity();
        }
    }
}

/// No engine has more data-parallel ranks than this.
const MAX_RANKS: u32 = 4096;

fn unknown_pod(name: &str) -> Error {
    Error::Unknown(format!("pod {name:?} is not registered; register it first"))
}

fn unknown_model(request: &Request<'_>) -> Error {
    Error::Unknown(format!(
        "no pod serves model {:?}; register one first",
        request.model
    ))
}

fn info(pod: &str, model: &str, rank: &Rank) -> RankInfo {
    let groups = rank.catalog.view().map_or_else(Vec::new, |view| {
        let pairs = view.groups.iter().zip(view.topology.groups);
        pairs
            .map(|(&group, spec)| GroupInfo {
                group: Rank::group_name(group),
                spec,
            })
            .collect()
    });
    let mut refused: BTreeMap<String, u64> = rank
        .refused
        .iter()
        .map(|(&reason, &count)| (reason.to_owned(), count))
        .collect();
    for (reason, count) in &rank.refused_outside {
        *refused.entry(reason.clone()).or_insert(0) += count;
    }
    RankInfo {
        pod: pod.to_owned(),
        dp_rank: rank.dp_rank,
        model: model.to_owned(),
        state: rank.state(),
        reason: rank.reason(),
        messages: rank.messages,
        groups,
        placed: rank.placed,
        unplaced: rank.limbo.unplaced(&rank.slots),
        refused,
        hash_function: rank.chain.standing().name(),
        blocks: rank.slots.len(),
    }
}
