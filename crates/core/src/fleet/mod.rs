//! What every pod of a fleet holds, from the engines' own events, and what a request can reuse.
//!
//! [`Index`] owns everything; it takes bytes and tokens in and gives numbers out. Nothing here does
//! I/O or reads a clock. The folders' flow: `apply` (a batch) -> `naming` (places of hashes, with
//! `limbo` for what is undecided) -> `slots`, `nodes`, `planes` (copies, boundaries, bits);
//! `query` (a request) -> `walk` (keys and nodes) -> the rule -> `answer`.

mod ahead;
pub mod answer;
mod apply;
mod bounds;
pub mod catalog;
mod copies;
mod effort;
mod engine_chain;
mod explain;
mod feed;
mod idle;
mod info;
mod intake;
mod json;
mod limbo;
mod limits;
mod loss;
mod model;
mod naming;
mod nodes;
mod oldest;
mod planes;
mod probe;
mod query;
mod rank;
mod registration;
mod request;
mod shown;
mod slots;
mod texts;
mod tier;
mod undecided;
mod units;
mod walk;
mod weight;
mod weighted;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

pub use answer::{Bounds, Row, TierSet};
pub use apply::Applied;
pub use catalog::PodConfig;
pub use explain::{Explained, GroupStrip, Strip};
pub use info::{GroupInfo, RankInfo};
pub use intake::{Intake, SLICE};
pub use rank::{Placed, State};
pub use registration::{Member, PodSpec};
pub use request::{Request, Strategy};
pub use tier::Tier;
pub use walk::Prompt;

use crate::error::{Error, Result};
use crate::rule;
use crate::secret::Secret;
use model::Model;
use query::{Ask, Search};
use registration::Pod;
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
    /// Above this many bytes the pod that holds most forgets; 0 = no limit.
    pub memory_limit_bytes: usize,
    /// Forget what is undecided of a rank above this many bytes.
    pub limbo_limit_bytes: usize,
    /// What a token is worth on each tier, in the order of `Tier::ALL`.
    pub weights: [f64; 3],
    /// Tokens per block of the `weighted_blocks` strategy.
    pub canonical_block_size: NonZeroU32,
    /// Ranks of all pods: registering more is refused, and so are further ranks that payloads name.
    pub max_ranks: usize,
    /// What keys and tables are made with: random bytes that nobody outside knows.
    pub secret: Secret,
}

impl Options {
    /// The defaults, with a secret.
    #[must_use]
    pub const fn new(secret: Secret) -> Self {
        Self {
            use_hash_functions: true,
            counts_copies: true,
            all_groups: true,
            memory_limit_bytes: 0,
            limbo_limit_bytes: 64 << 20,
            weights: [1.0, 0.8, 0.5],
            canonical_block_size: const { NonZeroU32::new(16).unwrap() },
            max_ranks: 65_536,
            secret,
        }
    }

    /// Bytes that what is undecided of one rank may take: half of all at most.
    fn limbo_limit(&self) -> usize {
        match self.memory_limit_bytes {
            0 => self.limbo_limit_bytes,
            all => self.limbo_limit_bytes.min(all / 2),
        }
    }
}

/// An answer: `rows[i]` is that of `roster[i]`, in the order of pod names, then ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The ranks asked for.
    pub roster: Arc<[Member]>,
    /// One row per rank.
    pub rows: Vec<Row>,
    /// Units of work on what is undecided and on what lies after each boundary: grows with the
    /// request and with what is undecided along it, hardly faster.
    pub effort: u64,
}

/// The index of a fleet.
#[derive(Debug)]
pub struct Index {
    options: Options,
    models: BTreeMap<String, Model>,
    pods: BTreeMap<String, Pod>,
    /// Arenas and buffers between two batches; away while one is taken in.
    intake: Option<Intake>,
    scratch: rule::Scratch,
    /// What was taken in since memory was last compared with its limits.
    unchecked: usize,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            models: BTreeMap::new(),
            pods: BTreeMap::new(),
            intake: None,
            scratch: rule::Scratch::default(),
            unchecked: 0,
        }
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
        let mut search = Search::new(model, &ask);
        let mut rows = search.rows(&mut self.scratch);
        let effort = search.effort.spent();
        for (at, member) in roster
            .iter()
            .enumerate()
            .filter(|(_, m)| m.column.is_none())
        {
            debug_assert!(at <= rows.len(), "no row for a member before {member:?}");
            rows.insert(at, Row::of_stranger(request.prompt.last_token(), ask.tiers));
        }
        Ok(Answer {
            roster,
            rows,
            effort,
        })
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

    /// Panics unless every structure agrees with every other.
    pub fn check_integrity(&self) {
        for model in self.models.values() {
            model.check_integrity();
        }
    }
}

fn unknown_model(request: &Request<'_>) -> Error {
    Error::Unknown(format!(
        "no pod serves model {:?}; register one first",
        request.model
    ))
}
