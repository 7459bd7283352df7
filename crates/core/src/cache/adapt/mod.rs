//! Where retention by value leans, if that is not fixed.
//!
//! No rule of eviction is best for all traffic. Shadows of the cache, one per lean, play what the
//! cache sees: each says what it would have saved lately. The cache does what has saved most. What
//! they play are requests that have ended, so a decoding step costs nothing; and the same requests
//! always lead to the same lean.

mod evidence;
mod life;
mod sample;
mod shadow;
mod tape;

use smallvec::SmallVec;

use self::evidence::Evidence;
use self::life::{Life, Unit};
use self::sample::Sample;
use self::shadow::{Scale, Shadow};
use self::tape::Tape;
use crate::cache::config::{ByValue, CacheConfig, Lean, PrefillCost, Retention};
use crate::cache::request::Request;
use crate::cache::retention::Checkpoints;
use crate::secret::Secret;
use crate::spec::SpecKind;

/// The numbers of requests that the two memories of evidence stand for.
const LONG_MEMORY: f64 = 256.0;
const SHORT_MEMORY: f64 = 8.0;

/// The regular checkpoints of the leans that keep windows at intervals, in tokens.
const INTERVALS: [u32; 2] = [1_024, 8_192];

/// What one lean has saved lately.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saved {
    /// What goes first.
    pub lean: Lean,
    /// The number of tokens between regular checkpoints.
    pub interval: u32,
    /// The share of the prompts' compute that it would have saved, of the requests that were played.
    pub share: f64,
}

/// Where a cache leans, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaning {
    /// The index of the lean in `saved`.
    pub lean: usize,
    /// What each lean has saved.
    pub saved: Vec<Saved>,
    /// The number of requests that have ended.
    pub num_requests: u64,
    /// How many of them had ended when the lean changed last.
    pub since: u64,
    /// The number of changes.
    pub num_changes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Adaption {
    shadows: Vec<Shadow>,
    sample: Sample,
    tape: Tape,
    cost: PrefillCost,
    /// A shadow's hash.
    unit: Unit,
    /// The shadow whose lean the cache has.
    lean: usize,
    /// What the shadows have saved of the last requests, and of the very last ones.
    lately: Evidence,
    just_now: Evidence,
    num_requests: u64,
    since: u64,
    num_changes: u64,
}

impl Adaption {
    /// `None` unless the retention is by value and its lean is not fixed.
    pub(super) fn new(config: &CacheConfig, secret: &Secret) -> Option<Self> {
        let Retention::ByValue(policy) = config.retention else {
            return None;
        };
        if policy.lean.is_some() || !config.caching {
            return None;
        }
        let scale = Scale::of(config);
        let shadow = |(lean, interval)| {
            let lean = Some(lean);
            let policy = ByValue {
                interval,
                lean,
                ..policy
            };
            Shadow::new(config, policy, scale, secret)
        };
        let shadows: Vec<Shadow> = leans(config, policy).filter_map(shadow).collect();
        let count = shadows.len();
        (count > 1).then(|| Self {
            shadows,
            sample: Sample::new(scale.sample),
            tape: Tape::new(scale.pace(config, count)),
            cost: policy.cost,
            unit: Unit {
                tokens: config.topology.hash_block_size * scale.blocks,
                num_hashes: scale.blocks,
            },
            lean: 0,
            lately: Evidence::new(count, LONG_MEMORY),
            just_now: Evidence::new(count, SHORT_MEMORY),
            num_requests: 0,
            since: 0,
            num_changes: 0,
        })
    }

    /// Notes that a request has ended. If the evidence says so, returns the cache to imitate from
    /// now on, and the interval between its regular checkpoints. `are_enough`: whether most of what
    /// was reused was at checkpoints.
    pub(super) fn note_end(
        &mut self,
        request: &Request,
        are_enough: bool,
    ) -> Option<(&Checkpoints, u32)> {
        if request.num_computed_tokens == 0 {
            return None;
        }
        self.num_requests += 1;
        self.record(request);
        self.tape.pay(request.hashes.len());
        while let Some((life, counts)) = self.tape.next() {
            self.play(&life, counts);
        }
        self.lean = if self.lately.tells_nothing() {
            self.guess(are_enough)?
        } else {
            self.better()?
        };
        self.since = self.num_requests;
        self.num_changes += 1;
        let shadow = &self.shadows[self.lean];
        Some((shadow.checkpoints()?, shadow.interval))
    }

    /// Records a request to be played, if it is in the sample. One that fills no block of a shadow
    /// has nothing to tell.
    fn record(&mut self, request: &Request) {
        let hashes = self.unit.hashes(request);
        if hashes.len() > 0 && self.sample.takes(hashes) && self.tape.is_recording() {
            self.tape.record(Life::of(request, self.unit));
        }
    }

    fn play(&mut self, life: &Life, counts: bool) {
        let cost = self.cost;
        let play = |shadow: &mut Shadow| cost.between(0, shadow.play(life));
        let saved: SmallVec<[f64; 8]> = self.shadows.iter_mut().map(play).collect();
        if counts {
            let all = cost.between(0, life.num_prompt_tokens);
            self.lately.add(&saved, all);
            self.just_now.add(&saved, all);
        }
    }

    /// The shadow to begin with. Until blocks are evicted that would have been reused, all shadows
    /// save the same.
    fn guess(&self, are_enough: bool) -> Option<usize> {
        let by_value = self.shadows.iter().position(|s| s.lean == Lean::Value);
        by_value.filter(|lean| are_enough && *lean != self.lean)
    }

    /// The shadow to imitate from now on, if it is another one.
    ///
    /// Values are bets on the past. When the traffic turns, what they keep is of no use and stays,
    /// while the order of use forgets at its own pace. So the very last requests are enough to end
    /// such a bet, and no lean is entered that they speak against.
    fn better(&self) -> Option<usize> {
        let is_bet = self.shadows[self.lean].lean == Lean::Value;
        let ended = self.just_now.better(self.lean).filter(|_| is_bet);
        ended.or_else(|| {
            let better = self.lately.better(self.lean);
            better.filter(|&best| self.just_now.lead(best, self.lean) >= 0.0)
        })
    }

    /// Where the cache leans, and why.
    pub(super) fn leaning(&self) -> Leaning {
        let saved = self.shadows.iter().zip(self.lately.shares());
        let saved = saved.map(|(shadow, share)| Saved {
            lean: shadow.lean,
            interval: shadow.interval,
            share,
        });
        Leaning {
            lean: self.lean,
            saved: saved.collect(),
            num_requests: self.num_requests,
            since: self.since,
            num_changes: self.num_changes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let shadows = self.shadows.iter().map(Shadow::bytes);
        self.sample.bytes() + self.tape.bytes() + shadows.sum::<usize>()
    }

    /// Panics unless the shadows are sound.
    pub(super) fn check_integrity(&self) {
        self.shadows.iter().for_each(Shadow::check_integrity);
        self.tape.check_integrity();
        assert!(self.since <= self.num_requests, "leans since the future");
        self.lately.check_integrity();
        self.just_now.check_integrity();
    }
}

/// The leans of a cache, the first of which it has while it knows nothing: the engine's own. Of
/// leans that save the same, one that keeps regular checkpoints comes first, in case it matters soon.
fn leans(config: &CacheConfig, policy: ByValue) -> impl Iterator<Item = (Lean, u32)> {
    let cached = config.topology.groups.iter().filter(|g| g.prefix_cacheable);
    let has = |is: fn(SpecKind) -> bool| cached.clone().any(|group| is(group.kind));
    let has_windows = has(SpecKind::is_window);
    let is_sparse = has_windows || has(|kind| kind == SpecKind::Mamba);
    let always = [Lean::Dense, Lean::Value].map(|lean| (lean, policy.interval));
    let regular = INTERVALS.map(|tokens| (Lean::Interval, tokens));
    let regular = regular.into_iter().filter(move |_| has_windows);
    let ends = is_sparse.then_some((Lean::Interval, 0));
    always.into_iter().chain(regular).chain(ends)
}
