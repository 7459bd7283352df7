//! The index itself, and how it answers a request.
//!
//! In reading order:
//! - `feed`: what feeds report: payloads, losses, restarts;
//! - `routed`: what a gateway reports that it is sending and has sent to a pod;
//! - `snapshots`: a pod to bytes and back;
//! - `registration`: pods come and go;
//! - `info`: what is known of each rank, for people;
//! - `explain`: why an answer is what it is;
//! - `limits`: how much memory is held, and what is forgotten above that;
//! - `idle`: spare capacity of tables is given back.

pub(in crate::fleet) mod explain;
pub(in crate::fleet) mod feed;
pub(in crate::fleet) mod idle;
pub(in crate::fleet) mod info;
pub(in crate::fleet) mod limits;
pub(in crate::fleet) mod registration;
pub(in crate::fleet) mod routed;
pub(in crate::fleet) mod snapshots;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fleet::ingest::intake::Intake;
use crate::fleet::model::Model;
use crate::fleet::pod::pods::Pods;
use crate::fleet::pod::{Member, Pod};
use crate::fleet::query::answer::{Answer, Row};
use crate::fleet::query::prompt_keys::RequestKeys;
use crate::fleet::query::request::{CanonicalBlocks, ResolvedRequest, ScoreRequest, Strategy};
use crate::fleet::query::search::RequestSearch;
use crate::fleet::query::seen::{SeenBefore, seen_before};
use crate::fleet::seen::Seen;
use crate::fleet::state::State;
use crate::fleet::tier::{Tier, TierSet};
use crate::rule;
use crate::secret::Secret;

/// How an index works; the options stay the same for its whole life.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches: what a comparison leaves out"
)]
pub struct Options {
    /// Whether the engines' hash functions may be used. With `false`, hashes are placed by tokens
    /// and joins only.
    pub use_hash_functions: bool,
    /// Whether presence is a count of copies. `false` is a shortcut for comparison.
    pub counts_copies: bool,
    /// Whether all groups are evaluated. `false` (full attention only) is a shortcut for
    /// comparison.
    pub all_groups: bool,
    /// Whether the blocks of sparse stores are narrowed. `false` is a shortcut for comparison: a
    /// hash may then stand at each block that the length of its list leaves, until its place is known.
    pub narrows: bool,
    /// Above this many bytes, the pod that holds the most forgets; 0 means no limit.
    pub memory_limit_bytes: usize,
    /// Above this many bytes, what is undecided of a rank is forgotten.
    pub limbo_limit_bytes: usize,
    /// Above this many bytes, the oldest promise is withdrawn.
    pub promise_limit_bytes: usize,
    /// The bytes of the table of what was seen before; 0 means that there is none.
    pub seen_limit_bytes: usize,
    /// The weight of a token on each tier, in the order of `Tier::ALL`.
    pub weights: [f64; 3],
    /// Tokens per block of the `weighted_blocks` strategy.
    pub canonical_block_size: NonZeroU32,
    /// The largest number of ranks of all pods. Registering more is refused, and so are further
    /// ranks that payloads name.
    pub max_ranks: usize,
    /// The secret that keys and tables are made with: random bytes that no outsider knows.
    pub secret: Secret,
}

impl Options {
    /// The default options, with a secret.
    #[must_use]
    pub const fn new(secret: Secret) -> Self {
        Self {
            use_hash_functions: true,
            counts_copies: true,
            all_groups: true,
            narrows: true,
            memory_limit_bytes: 0,
            limbo_limit_bytes: 64 << 20,
            promise_limit_bytes: 64 << 20,
            seen_limit_bytes: 32 << 20,
            weights: [1.0, 0.8, 0.5],
            canonical_block_size: const { NonZeroU32::new(16).unwrap() },
            max_ranks: 65_536,
            secret,
        }
    }

    /// The bytes that the undecided hashes of one rank may take: at most half of all.
    pub(in crate::fleet) fn limbo_limit(&self) -> usize {
        match self.memory_limit_bytes {
            0 => self.limbo_limit_bytes,
            all => self.limbo_limit_bytes.min(all / 2),
        }
    }

    /// The bytes that the table of what was seen before takes: at most a sixteenth of all.
    fn seen_limit(&self) -> usize {
        match self.memory_limit_bytes {
            0 => self.seen_limit_bytes,
            all => self.seen_limit_bytes.min(all / 16),
        }
    }
}

/// An answer, and what is kept of its request.
#[derive(Debug)]
pub struct Asked {
    /// What each rank can reuse.
    pub answer: Answer,
    /// What was ever shown of the prompt, if that was asked.
    pub seen: Option<SeenBefore>,
    /// The keys that the answer was made with.
    pub keys: RequestKeys,
}

/// The index of a fleet.
#[derive(Debug)]
pub struct Index {
    pub(in crate::fleet) options: Options,
    pub(in crate::fleet) models: BTreeMap<String, Model>,
    pub(in crate::fleet) pods: Pods,
    /// The arenas and buffers that are kept between two batches; a batch that is being applied has
    /// them.
    pub(in crate::fleet) intake: Option<Intake>,
    pub(in crate::fleet) scratch: rule::Scratch,
    /// What was there once, of all models.
    pub(in crate::fleet) seen: Seen,
    /// How many promises were made.
    pub(in crate::fleet) num_promises: u64,
    /// The work taken in since memory was last compared with its limits.
    pub(in crate::fleet) unchecked: usize,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            models: BTreeMap::new(),
            pods: Pods::default(),
            intake: None,
            scratch: rule::Scratch::default(),
            seen: Seen::new(&options.secret, options.seen_limit()),
            num_promises: 0,
            unchecked: 0,
        }
    }

    /// Bounds and a score for every rank of the model.
    ///
    /// # Errors
    /// `Unknown` for a model that is not registered, and for a pod that is not. For such a pod, the
    /// weighted strategy answers with a row without a score instead.
    pub fn score(&mut self, request: &ScoreRequest<'_>) -> Result<Answer> {
        Ok(self.ask(request, false)?.answer)
    }

    /// The answer of `score` and, if it is asked for, that of `seen`, with the keys made for both.
    ///
    /// # Errors
    /// The same as for `score`.
    pub fn ask(&mut self, request: &ScoreRequest<'_>, with_seen: bool) -> Result<Asked> {
        let roster = self.roster(request)?;
        let resolved = self.resolve(request, &roster);
        if with_seen {
            self.settle_seen(usize::MAX);
        }
        let model = self
            .models
            .get_mut(request.model)
            .ok_or_else(|| unknown_model(request))?;
        let mut search = RequestSearch::new(model, &resolved);
        let mut rows = search.rows(&mut self.scratch);
        let is_whole = request.pods.is_none();
        let shown = (with_seen && is_whole).then(|| seen_before(&mut search, &self.seen));
        let effort = search.effort.spent();
        let keys = RequestKeys(search.prompt_keys);
        for (at, member) in roster
            .iter()
            .enumerate()
            .filter(|(_, m)| m.column.is_none())
        {
            debug_assert!(at <= rows.len(), "no row for a member before {member:?}");
            let upper = request.prompt.last_token();
            rows.insert(at, Row::of_nothing(State::Stale, upper, &[resolved.tiers]));
        }
        let answer = Answer {
            roster,
            rows,
            effort,
        };
        let seen = match shown {
            None if with_seen => Some(self.seen(request)?),
            shown => shown,
        };
        Ok(Asked { answer, seen, keys })
    }

    /// How much of a prompt was ever shown to the index, whoever showed it. The pods, tiers and weights
    /// of the request make no difference.
    ///
    /// # Errors
    /// `Unknown` for a model that is not registered.
    pub fn seen(&mut self, request: &ScoreRequest<'_>) -> Result<SeenBefore> {
        let everywhere = ScoreRequest {
            pods: None,
            ..request.clone()
        };
        let roster = self.roster(&everywhere)?;
        let resolved = self.resolve(&everywhere, &roster);
        self.settle_seen(usize::MAX);
        let Self { models, seen, .. } = self;
        let model = models
            .get_mut(request.model)
            .ok_or_else(|| unknown_model(request))?;
        let mut search = RequestSearch::new(model, &resolved);
        // This can place hashes, which makes nodes, so it comes before any node is looked up.
        search.probe();
        Ok(seen_before(&mut search, seen))
    }

    /// Prepares `seen`: brings at most this many boundaries to where they are found. Returns how many
    /// are left.
    pub fn settle_seen(&mut self, most: usize) -> usize {
        self.note_gone();
        self.seen.settle(most)
    }

    /// Fills in what a request leaves open.
    pub(in crate::fleet) fn resolve<'p>(
        &self,
        request: &ScoreRequest<'p>,
        roster: &[Member],
    ) -> ResolvedRequest<'p> {
        let (tiers, counted) = if request.tiers.is_empty() {
            (TierSet::GPU, Tier::ALL.into_iter().collect())
        } else {
            (request.tiers, request.tiers)
        };
        let canonical = CanonicalBlocks {
            block_size: self.options.canonical_block_size.get(),
            tiers: counted,
        };
        ResolvedRequest {
            prompt: request.prompt,
            columns: roster.iter().filter_map(|member| member.column).collect(),
            tiers,
            canonical_blocks: (request.strategy == Strategy::WeightedBlocks).then_some(canonical),
            only_full: !self.options.all_groups,
            touch: self.options.memory_limit_bytes > 0,
            weights: std::array::from_fn(|tier| {
                request.weights[tier].unwrap_or(self.options.weights[tier])
            }),
        }
    }

    /// The requested ranks. The list of all ranks is made once per model. Only the weighted
    /// strategy has an answer for pods that do not serve the model.
    pub(in crate::fleet) fn roster(&mut self, request: &ScoreRequest<'_>) -> Result<Arc<[Member]>> {
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
        let pods = (self.pods.in_order()).filter(|p| p.spec.model == request.model);
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
        self.pods.check_integrity();
        self.seen.check_integrity();
    }

    /// What is known of every rank.
    #[must_use]
    pub fn pods(&self) -> Vec<info::RankInfo> {
        self.pods_after(None, usize::MAX)
    }

    /// What is known of this many ranks after `last`, in the order of pods and ranks. Each rank
    /// costs a look at its undecided hashes.
    #[must_use]
    pub fn pods_after(&self, last: Option<(&str, u32)>, most: usize) -> Vec<info::RankInfo> {
        let first = last.map_or(Bound::Unbounded, |(name, _)| Bound::Included(name));
        let is_after = move |name: &str, rank: u32| last.is_none_or(|last| (name, rank) > last);
        let ranks = self.pods.from(first).flat_map(|pod| {
            let name = &pod.name;
            let model = self.models.get(&pod.spec.model);
            let columns = pod.columns.iter();
            let columns = columns.filter(move |&(&rank, _)| is_after(name, rank));
            columns.filter_map(move |(_, &column)| {
                let model = model?;
                let rank = model.ranks[column].as_ref()?;
                let bytes = rank.bytes() + model.planes.paid_by(column);
                Some(info::info(
                    name,
                    &pod.spec.model,
                    rank,
                    &model.planes,
                    bytes,
                ))
            })
        });
        ranks.take(most).collect()
    }

    /// The models that some pod serves.
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        self.models.keys().cloned().collect()
    }
}

pub(in crate::fleet) fn unknown_model(request: &ScoreRequest<'_>) -> Error {
    Error::Unknown(format!(
        "no pod serves model {:?}; register one first",
        request.model
    ))
}
