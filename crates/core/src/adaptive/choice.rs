//! Which eviction policy a cache follows: simulated caches say what each would have saved.
//!
//! No policy is best for all traffic. What the simulated caches replay are requests that have
//! finished, so a decoding step costs nothing; and the same requests always lead to the same choice.

use smallvec::SmallVec;

use super::evidence::Evidence;
use super::recorded_request::{RecordedRequest, SimulatedBlock};
use super::replay_schedule::ReplaySchedule;
use super::sample::Sample;
use super::simulated_cache::{Scale, SimulatedCache, hashes_that_fill};
use crate::cache::{
    ByValue, CacheConfig, Checkpoints, EvictionPolicy, FinishedRequest, PrefillCost, Retention,
};
use crate::secret::Secret;
use crate::spec::SpecKind;

/// The numbers of requests that the two memories of evidence stand for.
const LONG_MEMORY: f64 = 256.0;
const SHORT_MEMORY: f64 = 8.0;

/// The first policy is given up if nothing is reused until requests have filled the cache so often.
const PATIENCE: usize = 2;

/// The regular checkpoints of the policies that keep windows at intervals, in tokens.
const INTERVALS: [u32; 2] = [1_024, 8_192];

/// What one policy would have saved lately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saved {
    /// What goes first.
    pub policy: EvictionPolicy,
    /// The number of tokens between regular checkpoints.
    pub interval: u32,
    /// The share of the prompts' compute that it would have saved, of the requests that were replayed.
    pub share: f64,
}

/// The policy that a cache follows, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyChoice {
    /// The index of the policy in `saved`.
    pub policy: usize,
    /// What each policy would have saved.
    pub saved: Vec<Saved>,
    /// The number of requests that have finished.
    pub num_requests: u64,
    /// How many of them had finished when the policy changed last.
    pub since: u64,
    /// The number of changes.
    pub num_changes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Adaptation {
    caches: Vec<SimulatedCache>,
    sample: Sample,
    schedule: ReplaySchedule,
    cost: PrefillCost,
    /// A simulated cache's hash.
    unit: SimulatedBlock,
    /// The simulated cache whose policy the cache has.
    policy: usize,
    /// The hashes that fill the cache, and those of the requests that have finished.
    fill: usize,
    num_hashes: usize,
    /// What the simulated caches have saved of many requests, and of the very last ones.
    long_term: Evidence,
    short_term: Evidence,
    num_requests: u64,
    since: u64,
    num_changes: u64,
}

impl Adaptation {
    /// `None` unless the retention is by value and its policy is not fixed.
    pub(super) fn new(config: &CacheConfig, secret: &Secret) -> Option<Self> {
        let Retention::ByValue(by_value) = config.retention else {
            return None;
        };
        if by_value.policy.is_some() || !config.caching {
            return None;
        }
        let scale = Scale::of(config);
        let simulated = |(policy, interval)| {
            let by_value = ByValue {
                interval,
                policy: Some(policy),
                ..by_value
            };
            SimulatedCache::new(config, by_value, scale, secret)
        };
        let caches: Vec<_> = policies(config, by_value).filter_map(simulated).collect();
        let count = caches.len();
        let is_first = |cache: &SimulatedCache| cache.policy == EvictionPolicy::Value;
        let policy = caches.iter().position(is_first)?;
        (count > 1).then(|| Self {
            caches,
            sample: Sample::new(scale.sample),
            schedule: ReplaySchedule::new(scale.pace(config, count)),
            cost: by_value.cost,
            unit: SimulatedBlock {
                tokens: config.topology.hash_block_size * scale.blocks,
                num_hashes: scale.blocks,
            },
            policy,
            fill: hashes_that_fill(config, config.num_blocks),
            num_hashes: 0,
            long_term: Evidence::new(count, LONG_MEMORY),
            short_term: Evidence::new(count, SHORT_MEMORY),
            num_requests: 0,
            since: 0,
            num_changes: 0,
        })
    }

    /// Learns from a finished request. If the evidence says so, returns the checkpoints to imitate
    /// from now on, and the interval between the regular ones. `retention` is the cache's own.
    pub(super) fn learn_from_finished(
        &mut self,
        request: &FinishedRequest,
        retention: &Checkpoints,
    ) -> Option<(&Checkpoints, u32)> {
        if !request.has_computed() {
            return None;
        }
        self.num_requests += 1;
        self.num_hashes += request.num_hashes();
        self.record(request);
        self.schedule.pay(request.num_hashes());
        while let Some((request, counts)) = self.schedule.next() {
            self.replay(&request, counts);
        }
        self.policy = if self.long_term.tells_nothing() {
            self.guess(retention)?
        } else {
            self.better()?
        };
        self.since = self.num_requests;
        self.num_changes += 1;
        let chosen = &self.caches[self.policy];
        Some((chosen.checkpoints()?, chosen.interval))
    }

    /// Records a request to be replayed, if it is in the sample. One that fills no block of a
    /// simulated cache has nothing to tell.
    fn record(&mut self, request: &FinishedRequest) {
        let hashes = self.unit.hashes(request);
        if hashes.len() > 0 && self.sample.takes(hashes) && self.schedule.is_recording() {
            self.schedule
                .record(RecordedRequest::of(request, self.unit));
        }
    }

    fn replay(&mut self, request: &RecordedRequest, counts: bool) {
        let cost = self.cost;
        let replay = |cache: &mut SimulatedCache| cost.between(0, cache.replay(request));
        let saved: SmallVec<[f64; 8]> = self.caches.iter_mut().map(replay).collect();
        if counts {
            let all = cost.between(0, request.num_prompt_tokens);
            self.long_term.add(&saved, all);
            self.short_term.add(&saved, all);
        }
    }

    /// The simulated cache to imitate until blocks are evicted that would have been reused: so long,
    /// all of them save the same. A new cache expects that the ends of requests are resumed, as
    /// those of conversations are: otherwise it would be full of windows before the first evidence
    /// comes. If nothing at all is reused, it does what the engine does, until most of what is
    /// reused was at checkpoints.
    fn guess(&self, retention: &Checkpoints) -> Option<usize> {
        let policy = match retention.most_reuse_was_at_checkpoints() {
            Some(true) => EvictionPolicy::Value,
            None if self.num_hashes >= PATIENCE * self.fill => EvictionPolicy::Dense,
            Some(false) | None => return None,
        };
        let guess = self.caches.iter().position(|it| it.policy == policy);
        guess.filter(|guess| *guess != self.policy)
    }

    /// The simulated cache to imitate from now on, if it is another one.
    ///
    /// Values are bets on the past. When the traffic turns, what they keep is of no use and stays,
    /// while the order of use forgets at its own pace. So the very last requests are enough to end
    /// such a bet, and no policy is chosen that they speak against.
    fn better(&self) -> Option<usize> {
        let is_bet = self.caches[self.policy].policy == EvictionPolicy::Value;
        let ended = self.short_term.better(self.policy).filter(|_| is_bet);
        ended.or_else(|| {
            let better = self.long_term.better(self.policy);
            better.filter(|&best| self.short_term.lead(best, self.policy) >= 0.0)
        })
    }

    /// The policy that the cache follows, and why.
    pub(super) fn policy_choice(&self) -> PolicyChoice {
        let saved = self.caches.iter().zip(self.long_term.shares());
        let saved = saved.map(|(cache, share)| Saved {
            policy: cache.policy,
            interval: cache.interval,
            share,
        });
        PolicyChoice {
            policy: self.policy,
            saved: saved.collect(),
            num_requests: self.num_requests,
            since: self.since,
            num_changes: self.num_changes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let caches = self.caches.iter().map(SimulatedCache::bytes);
        self.sample.bytes() + self.schedule.bytes() + caches.sum::<usize>()
    }

    /// Panics unless the simulated caches are sound.
    pub(super) fn check_integrity(&self) {
        self.caches.iter().for_each(SimulatedCache::check_integrity);
        self.schedule.check_integrity();
        assert!(self.since <= self.num_requests, "chosen in the future");
        self.long_term.check_integrity();
        self.short_term.check_integrity();
    }
}

/// The policies of a cache. Of policies that save the same, one that keeps regular checkpoints comes
/// first, in case it matters soon.
fn policies(
    config: &CacheConfig,
    by_value: ByValue,
) -> impl Iterator<Item = (EvictionPolicy, u32)> {
    let cached = config.topology.groups.iter().filter(|g| g.prefix_cacheable);
    let has = |is: fn(SpecKind) -> bool| cached.clone().any(|group| is(group.kind));
    let has_windows = has(SpecKind::is_window);
    let is_sparse = has_windows || has(|kind| kind == SpecKind::Mamba);
    let always = [EvictionPolicy::Dense, EvictionPolicy::Value];
    let always = always.map(|policy| (policy, by_value.interval));
    let regular = INTERVALS.map(|tokens| (EvictionPolicy::Interval, tokens));
    let regular = regular.into_iter().filter(move |_| has_windows);
    let ends = is_sparse.then_some((EvictionPolicy::Interval, 0));
    always.into_iter().chain(regular).chain(ends)
}
