//! A life of an index, made of small choices: the same for random numbers and for a fuzzer's bytes.
//!
//! Invariant: after every step the index's structures agree with each other, an answer's bounds hold,
//! and an index that took the same in another way says the same. The domain is small, so that hashes,
//! parents, groups, block sizes, media, owners, salts, tiers and lookaheads collide. Most of what
//! engines say is consistent (a hash is a function of its prefix), or every life would be degraded after
//! a few steps and show nothing.
#![allow(dead_code, reason = "each binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a life ends where something fails")]

mod events;
mod forged;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::choices::Choices;
use super::reseal::{body, reseal, text};
use kvbraid_core::fleet::{
    Answer, Applied, GroupOfModel, Hidden, Index, Options, PodConfig, PodSpec, Prompt, Publisher,
    RankInfo, Row, Saving, ScoreRequest, SilentPools, State, Strategy, Tier, TierSet, load, save,
};
use kvbraid_core::hash::{HashAlgo, MediaItem};
use kvbraid_core::secret::Secret;
use kvbraid_core::spec::{GroupSpec, SpecKind, Topology};
use kvbraid_core::wide::{WideAt, halves};

const PODS: [&str; 2] = ["a", "b"];
const MODEL: &str = "m";
const SECRET: [u8; 32] = [7; 32];
const STATES: [State; 4] = [
    State::Exact,
    State::Rebuilding,
    State::Degraded,
    State::Stale,
];

/// An index, and its twin that takes every batch in by small slices; both are asked the same.
pub(crate) struct Life {
    index: Index,
    twin: Index,
    options: Options,
    registered: [Option<PodSpec>; 2],
    /// The twin has been read from what was saved, which has nothing of what was seen before.
    is_restored: bool,
    engine: events::Engine,
    /// Both know the same: nothing is forgotten, and nobody lies (two slices of a lie may be read as
    /// two, and then the twin knows better).
    is_same: bool,
}

impl Life {
    /// An index with two pods.
    pub(crate) fn new(choices: &mut impl Choices) -> Self {
        let is_same = choices.below(2) == 0;
        let is_silent = choices.once_in(4);
        let (memory, limbo) = if is_same {
            (0, 64 << 20)
        } else {
            (
                choices.one_of(&[0, 0, 1, 20_000, 60_000]),
                choices.one_of(&[64 << 20, 1_000, 0]),
            )
        };
        let options = Options {
            use_hash_functions: choices.below(2) == 0,
            memory_limit_bytes: memory,
            limbo_limit_bytes: limbo,
            seen_limit_bytes: if is_same { 64 << 10 } else { 256 },
            canonical_block_size: NonZeroU32::new(2).unwrap(),
            ..Options::new(Secret::new(SECRET))
        };
        let mut life = Self {
            index: Index::new(options),
            twin: Index::new(options),
            options,
            registered: [None, None],
            is_restored: false,
            engine: events::Engine {
                groups: if is_silent {
                    choices.one_of(&events::SILENT)
                } else {
                    choices.one_of(&events::GROUPS)
                },
                window: if is_silent {
                    choices.one_of(&[2, 5, 20, 90])
                } else {
                    3
                },
                is_silent,
                lies: !is_same && choices.below(2) == 0,
                has_aliases: !is_same,
            },
            is_same,
        };
        for pod in 0..PODS.len() {
            life.register(pod, choices);
        }
        life
    }

    /// One thing that happens to an index, checked.
    pub(crate) fn step(&mut self, choices: &mut impl Choices) {
        let pod = choices.below(PODS.len());
        match choices.below(34) {
            0..=15 => self.apply(pod, choices),
            16..=22 => self.ask(choices),
            23 | 24 => self.restart(pod, choices),
            25 => self.told(pod, choices, Index::lose),
            26 | 27 => {
                let state = choices.one_of(&STATES);
                self.told(pod, choices, |index, name, rank| {
                    index.set_state(name, rank, state, String::new())
                });
            }
            28 => self.told(pod, choices, |index, name, rank| {
                index.note_refused(name, rank, "bad_frame_count")
            }),
            29 => {
                self.index.enforce_limits();
                self.twin.check_limits();
            }
            30 => self.register(pod, choices),
            31 => self.told(pod, choices, Index::discard),
            32 => self.restore(choices),
            _ => self.remove(pod),
        }
        self.index.check_integrity();
        self.twin.check_integrity();
        if self.is_same {
            for (one, other) in self.index.pods().into_iter().zip(self.twin.pods()) {
                // Listings count where their hash is when they are counted, which slices may change,
                // and the one is asked more often than the other.
                // Capacities depend on the order in which tables grew.
                let (placed, unplaced, bytes) = (one.placed, one.unplaced, one.bytes);
                let [one, other] = [one, other].map(|mut info| {
                    info.refused.remove("answer_cut_short");
                    info
                });
                assert_eq!(
                    one,
                    RankInfo {
                        placed,
                        unplaced,
                        bytes,
                        ..other
                    }
                );
            }
        }
    }

    fn apply(&mut self, pod: usize, choices: &mut impl Choices) {
        let rank = u32::from(choices.once_in(4));
        let payload = events::batch(self.engine, choices);
        let applied = self.index.apply(PODS[pod], rank, &payload);
        assert!(applied.is_ok() || self.registered[pod].is_none());
        let mut intake = self.twin.take_intake();
        intake.read(&payload);
        let work = 1 + choices.below(4) * if self.engine.is_silent { 30 } else { 1 };
        while let Ok(false) = self.twin.advance(PODS[pod], rank, &mut intake, work) {
            self.twin.check_integrity();
        }
        // Slices settle more often, which takes other looks at what is undecided.
        let effort = applied.as_ref().map_or(0, |applied| applied.effort);
        let in_slices = Applied {
            effort,
            ..intake.applied()
        };
        self.twin.give_back(intake);
        while !self.twin.keep_limits() {
            self.twin.check_integrity();
        }
        assert!(
            applied.is_err() || applied == Ok(in_slices) || !self.is_same,
            "{applied:?} {in_slices:?}"
        );
    }

    /// Somebody who has the secret changes what was saved: it is refused and nothing has changed, or the
    /// structures of whoever reads it agree, whatever comes then.
    pub(crate) fn read_changed(&mut self, choices: &mut impl Choices) {
        let pod = choices.below(PODS.len());
        let Some(spec) = self.registered[pod].clone() else {
            return;
        };
        let pod = PODS[pod];
        let mut saved = save(&mut self.index, pod, pod).unwrap().seal().unwrap();
        if self.engine.is_silent && choices.below(2) == 0 {
            saved = forged::forged(&saved, self.engine, choices);
        } else {
            for _ in 0..=choices.below(3) {
                change(&mut saved, choices);
            }
        }
        reseal(SECRET, &mut saved);
        let mut other = Index::new(self.options);
        other.register(pod, spec).unwrap();
        let before = save(&mut other, pod, pod).unwrap().seal().unwrap();
        if load(&mut other, pod, &saved).is_err() {
            assert!(
                save(&mut other, pod, pod).unwrap().seal().unwrap() == before,
                "a refusal"
            );
            return;
        }
        other.check_integrity();
        for _ in 0..3 {
            let _ = other.apply(pod, 0, &events::batch(self.engine, choices));
            let tokens = vec![0; choices.below(12)];
            let prompt = Prompt {
                tokens: &tokens,
                ..NO_PROMPT
            };
            let _ = other.score(&plain_request(prompt));
            other.check_integrity();
            if choices.below(2) == 0 {
                let _ = other.routed(pod, 0, &plain_request(prompt), &[0; 3]);
                other.check_integrity();
            }
        }
        let _ = other.reset(pod, 0);
        other.check_integrity();
    }

    /// An engine restarts: the twin takes it in a few slots at a time.
    fn restart(&mut self, pod: usize, choices: &mut impl Choices) {
        let rank = u32::from(choices.once_in(4));
        let most = 1 + choices.below(4);
        while self.twin.begin_reset(PODS[pod], rank, most) == Ok(false) {
            self.twin.check_integrity();
        }
        let told = self.index.reset(PODS[pod], rank);
        assert_eq!(told, self.twin.reset(PODS[pod], rank));
        assert!(told.is_ok() || self.registered[pod].is_none() || rank > 0);
    }

    fn told(
        &mut self,
        pod: usize,
        choices: &mut impl Choices,
        tell: impl Fn(&mut Index, &str, u32) -> kvbraid_core::Result<()>,
    ) {
        let rank = u32::from(choices.once_in(4));
        let told = tell(&mut self.index, PODS[pod], rank);
        assert_eq!(told, tell(&mut self.twin, PODS[pod], rank));
        assert!(told.is_ok() || self.registered[pod].is_none() || rank > 0);
    }

    fn register(&mut self, pod: usize, choices: &mut impl Choices) {
        let spec = PodSpec {
            model: MODEL.to_owned(),
            dp_size: 1 + u32::from(choices.once_in(3)),
            config: config(self.engine, choices),
            algo: choices.one_of(&[None, None, Some(HashAlgo::Sha256)]),
            seed: None,
            loras: BTreeMap::from([("l".to_owned(), "/l".to_owned())]),
        };
        self.index.register(PODS[pod], spec.clone()).unwrap();
        self.twin.register(PODS[pod], spec.clone()).unwrap();
        self.registered[pod] = Some(spec);
    }

    fn remove(&mut self, pod: usize) {
        let removed = self.index.remove(PODS[pod]);
        assert_eq!(removed, self.twin.remove(PODS[pod]));
        assert_eq!(removed.is_ok(), self.registered[pod].is_some());
        self.registered[pod] = None;
    }

    /// A few hashes at a time, with questions in between.
    fn save_in_parts(&mut self, pod: &str, most: usize) -> Vec<u8> {
        let tokens = [0; 12];
        let prompt = Prompt {
            tokens: &tokens,
            ..NO_PROMPT
        };
        let mut saving = Saving::new(&self.twin, pod, pod).unwrap();
        while !saving.advance(&mut self.twin, most) {
            self.twin.score(&plain_request(prompt)).unwrap();
        }
        saving.finish(&self.twin).unwrap().seal().unwrap()
    }

    /// The twin is saved, and another index that reads it is the twin from then on. What that one saves
    /// is the same.
    fn restore(&mut self, choices: &mut impl Choices) {
        let mut other = Index::new(self.options);
        for (pod, spec) in PODS.into_iter().zip(self.registered.clone()) {
            let Some(spec) = spec else { continue };
            let saved = self.save_in_parts(pod, 1 + choices.below(4));
            other.register(pod, spec).unwrap();
            assert_eq!(load(&mut other, pod, &saved).as_deref(), Ok(pod));
            other.check_integrity();
            let again = save(&mut other, pod, pod).unwrap().seal().unwrap();
            assert!(again == saved, "saved again");
        }
        self.twin = other;
        self.is_restored = true;
    }

    /// A gateway tells that it sent a request to a pod.
    fn send(&mut self, request: &ScoreRequest<'_>, choices: &mut impl Choices) {
        let (pod, produced) = (choices.below(PODS.len()), [0; 3]);
        let told = self.index.routed(PODS[pod], 0, request, &produced);
        self.index.check_integrity();
        let most = 1 + choices.below(4) * 10;
        let in_parts = self.send_in_parts(pod, most, |index, name| {
            index.note_routed(name, 0, request, &produced)
        });
        assert_eq!(told, in_parts);
    }

    /// The same in small parts, for the twin.
    fn send_in_parts(
        &mut self,
        pod: usize,
        most: usize,
        note: impl FnOnce(&mut Index, &str) -> kvbraid_core::Result<()>,
    ) -> kvbraid_core::Result<()> {
        while !self.twin.begin_routed(PODS[pod], 0, MODEL, most)? {
            self.twin.check_integrity();
        }
        note(&mut self.twin, PODS[pod])?;
        while !self.twin.end_routed(PODS[pod], 0, most)? {
            self.twin.check_integrity();
        }
        Ok(())
    }

    /// Scores and explains a request; every row keeps what rows promise.
    fn ask(&mut self, choices: &mut impl Choices) {
        let halves = self.engine.prompt(choices).into_iter().map(halves);
        let (tokens, rest): (Vec<u32>, Vec<_>) = halves.unzip();
        let wide: Vec<WideAt<'_>> = (0..)
            .zip(rest)
            .filter_map(|(at, token)| token.map(|token| WideAt { at, token }))
            .collect();
        let offset = u32::try_from(choices.below(6)).unwrap();
        let (id, length) = ("i", 2);
        let media = [MediaItem { id, offset, length }];
        let plain = Prompt {
            tokens: &tokens,
            wide: &wide,
            media: &media,
            ..NO_PROMPT
        };
        let is_plain = self.engine.is_silent && !choices.once_in(8);
        let prompt = dressed(plain, is_plain, choices);
        let request = ScoreRequest {
            model: MODEL,
            prompt,
            pods: None,
            tiers: choices.one_of(&[
                TierSet::default(),
                TierSet::GPU,
                Tier::ALL.into_iter().collect(),
                [Tier::Storage].into_iter().collect(),
            ]),
            strategy: choices.one_of(&[Strategy::Exact, Strategy::WeightedBlocks]),
            weights: choices.one_of(&[[None; 3], [None, Some(0.25), Some(0.0)]]),
        };
        if choices.once_in(if self.engine.is_silent { 2 } else { 3 }) {
            self.send(&request, choices);
        } else {
            self.score(&request);
        }
    }

    fn score(&mut self, request: &ScoreRequest<'_>) {
        let Ok(answer) = self.index.score(request) else {
            assert_eq!(self.registered, [None, None], "a model with a pod is known");
            return;
        };
        check_rows(&answer, request.prompt.last_token());
        self.index.check_integrity();
        let again = self.index.score(request).unwrap();
        assert_eq!(told(&answer), told(&again), "a request asked twice");
        let other = self.twin.score(request).unwrap();
        assert!(
            !self.is_same || told_beside(&answer, &other) == told_beside(&other, &answer),
            "{answer:?} {other:?}"
        );
        self.check_seen(request, &answer);
        let explained = self.index.explain(request).unwrap();
        assert_eq!(explained.strips().len(), explained.answer.rows.len());
        for (row, other) in explained.answer.rows.iter().zip(&answer.rows) {
            assert_eq!((row.state, row.bounds), (other.state, other.bounds));
        }
    }
}

impl Life {
    /// What a rank has of a request was shown; and whoever takes batches in otherwise was shown the
    /// same.
    fn check_seen(&mut self, request: &ScoreRequest<'_>, answer: &Answer) {
        let [one, other] =
            [&mut self.index, &mut self.twin].map(|index| index.seen(request).unwrap());
        let present = answer.rows.iter().map(|row| row.present).max();
        assert!(present.unwrap_or(0) <= one.tokens, "{one:?} {answer:?}");
        let is_whole =
            self.is_same && !self.is_restored && one.num_forgotten + other.num_forgotten == 0;
        assert!(!is_whole || one.tokens == other.tokens, "{one:?} {other:?}");
    }
}

/// Changes something of a snapshot: a figure in its text, or any byte of its body.
fn change(saved: &mut [u8], choices: &mut impl Choices) {
    let range = if choices.once_in(3) {
        body(saved)
    } else {
        text(saved)
    };
    // One byte of a fuzzer tells one of 256 places.
    let place = choices.below(256) << 8 | choices.below(256);
    let start = range.start + place % range.len();
    let is_figure = |at: &usize| saved[*at].is_ascii_digit();
    let at = (start..range.end).find(is_figure).unwrap_or(start);
    saved[at] = if saved[at].is_ascii_digit() {
        b'0' + u8::try_from(choices.below(10)).unwrap()
    } else {
        u8::try_from(choices.below(256)).unwrap()
    };
}

fn plain_request(prompt: Prompt<'_>) -> ScoreRequest<'_> {
    ScoreRequest {
        model: MODEL,
        prompt,
        pods: None,
        tiers: TierSet::default(),
        strategy: Strategy::Exact,
        weights: [None; 3],
    }
}

const NO_PROMPT: Prompt<'_> = Prompt {
    tokens: &[],
    lora: None,
    salt: None,
    extra_key: None,
    media: &[],
    wide: &[],
};

/// A prompt with what keeps its blocks apart, or without any of it.
fn dressed<'a>(prompt: Prompt<'a>, is_plain: bool, choices: &mut impl Choices) -> Prompt<'a> {
    if is_plain {
        return Prompt {
            media: &[],
            ..prompt
        };
    }
    Prompt {
        lora: choices.one_of(&[None, None, None, Some("l")]),
        salt: choices.one_of(&[None, None, None, Some("s"), Some("t")]),
        extra_key: choices.one_of(&[None, None, None, Some("k")]),
        media: if choices.once_in(6) {
            prompt.media
        } else {
            &[]
        },
        ..prompt
    }
}

/// Every row keeps what rows promise of a prompt.
fn check_rows(answer: &Answer, last_token: u32) {
    for row in &answer.rows {
        for bounds in std::iter::once(row.bounds).chain(row.tiers.iter().map(|(_, b)| *b)) {
            assert!(
                bounds.lower <= bounds.upper && bounds.upper <= last_token,
                "{row:?}"
            );
        }
    }
    assert_eq!(answer.rows.len(), answer.roster.len());
}

/// What an answer says. What it costs depends on the questions before it, which place what they can.
/// Neither does the place of a rank among others matter, which restored ranks get anew.
fn told(answer: &Answer) -> (Vec<(&str, u32)>, &[Row]) {
    let ranks = answer.roster.iter();
    (
        ranks
            .map(|member| (member.pod.as_ref(), member.dp_rank))
            .collect(),
        &answer.rows,
    )
}

/// The same without sets of tiers that the other answer does not list: which tiers are listed depends on
/// pods that are gone, too, and a restored index has not heard of those.
fn told_beside<'a>(answer: &'a Answer, other: &Answer) -> (Vec<(&'a str, u32)>, Vec<Row>) {
    let (ranks, rows) = told(answer);
    let mut rows = rows.to_vec();
    for (row, beside) in rows.iter_mut().zip(&other.rows) {
        (row.tiers).retain(|(set, _)| beside.tiers.iter().any(|(other, _)| other == set));
    }
    (ranks, rows)
}

/// What an operator says of a pod: mostly nothing, or what its engine really has.
fn config(engine: events::Engine, choices: &mut impl Choices) -> PodConfig {
    let known = PodConfig {
        topology: Some(topology(engine)),
        num_gpu_blocks: choices.one_of(&[None, NonZeroU32::new(3), NonZeroU32::new(64)]),
        ..PodConfig::default()
    };
    match if engine.is_silent {
        7
    } else {
        choices.below(8)
    } {
        0..=2 => PodConfig {
            may_hit_inside: true,
            ..PodConfig::default()
        },
        3..=5 => known,
        6 => PodConfig {
            full_reports: true,
            ..known
        },
        _ => PodConfig {
            publisher: Publisher::Sglang,
            hidden: Hidden {
                extra_keys: choices.below(4) == 0,
                adapter_reloads: choices.below(4) == 0,
                dynamo_format: choices.below(4) == 0,
            },
            silent: SilentPools {
                never_short: choices.below(2) == 0,
                window_tokens: (choices.below(2) == 0).then_some(32),
                state_slots: (choices.below(2) == 0).then_some(6),
                chunked_prefill: choices.one_of(&[None, Some(1), Some(8), Some(64)]),
            },
            ..if choices.below(2) == 0 {
                known
            } else {
                of_model(engine.window)
            }
        },
    }
}

/// A pod whose groups are not listed, but whose model says what no event tells of.
fn of_model(window: u32) -> PodConfig {
    let window = GroupOfModel {
        kind: SpecKind::SlidingWindow,
        window: Some(window),
        grid: 1,
    };
    let states = GroupOfModel {
        kind: SpecKind::Mamba,
        window: None,
        grid: 4,
    };
    PodConfig {
        silent_groups: Some(vec![window, states]),
        ..PodConfig::default()
    }
}

fn topology(engine: events::Engine) -> Topology {
    let group = |&(kind, block_size): &(&str, u32)| {
        let kind = SpecKind::from_name(kind).unwrap();
        GroupSpec {
            window: kind.is_window().then_some(engine.window),
            chunk: (kind == SpecKind::ChunkedLocalAttention).then_some(4),
            ..GroupSpec::new(kind, block_size)
        }
    };
    Topology::new(engine.groups.iter().map(group).collect())
}
