//! Edge cases of the evaluation. Python tests compare its answers with brute force.

use super::*;
use crate::spec::{EngineDialect, GroupSpec, SpecKind};

fn full() -> GroupSpec {
    GroupSpec::new(SpecKind::FullAttention, 16)
}

fn window(tokens: u32) -> GroupSpec {
    GroupSpec {
        window: Some(tokens),
        ..GroupSpec::new(SpecKind::SlidingWindow, 16)
    }
}

fn topology(groups: &[GroupSpec]) -> Topology {
    Topology::new(groups.to_vec())
}

fn query(num_tokens: u32, mask: u64) -> Query {
    Query {
        num_tokens,
        mask,
        unknown: Unknown::Strict,
    }
}

fn answers(topology: &Topology, whole: &[&[u64]], query: Query) -> [u32; HOLDERS] {
    let held = Holdings {
        unit: 16,
        whole,
        partial: &[],
    };
    resume(topology, &held, query, &mut Scratch::default())
}

#[test]
fn requests_without_a_boundary_are_answered_with_nothing() {
    let topology = topology(&[full(), window(32)]);
    for num_tokens in [0, 1, 15, 16] {
        let words: &[u64] = &[u64::MAX; 1];
        assert_eq!(
            answers(&topology, &[words, words], query(num_tokens, u64::MAX)),
            [0; 64]
        );
        assert_eq!(
            answers(&topology, &[&[], &[]], query(num_tokens, u64::MAX)),
            [0; 64]
        );
    }
}

#[test]
fn holders_outside_the_mask_are_answered_with_nothing() {
    let words: &[u64] = &[u64::MAX; 3];
    let topology = topology(&[full()]);
    assert_eq!(answers(&topology, &[words], query(49, 0)), [0; 64]);
    let some = answers(&topology, &[words], query(49, 1 << 63 | 1));
    assert_eq!((some[0], some[1], some[63]), (48, 0, 48));
}

#[test]
fn what_lies_beyond_a_slice_is_not_held() {
    let topology = topology(&[full(), window(32)]);
    let all: &[u64] = &[u64::MAX; 8];
    assert_eq!(answers(&topology, &[&all[..3], all], query(129, 1))[0], 48);
    assert_eq!(answers(&topology, &[all, &all[..2]], query(129, 1))[0], 32);
    assert_eq!(answers(&topology, &[all], query(129, 1))[0], 0);
}

#[test]
fn a_scratch_carries_nothing_from_one_evaluation_to_the_next() {
    let mut scratch = Scratch::default();
    let long: &[u64] = &[u64::MAX; 100];
    let two = topology(&[full(), window(64)]);
    let held = Holdings {
        unit: 16,
        whole: &[long, long],
        partial: &[],
    };
    assert_eq!(
        resume(&two, &held, query(1601, u64::MAX), &mut scratch),
        [1600; 64]
    );
    let one = topology(&[full()]);
    let held = Holdings {
        unit: 16,
        whole: &[&long[..2]],
        partial: &[],
    };
    assert_eq!(
        resume(&one, &held, query(1601, 3), &mut scratch)[..3],
        [32, 32, 0]
    );
}

#[test]
fn a_topology_that_restricts_nothing_accepts_the_longest_boundary() {
    let topology = topology(&[GroupSpec::new(SpecKind::EncoderOnlyAttention, 16)]);
    assert_eq!(answers(&topology, &[&[]], query(100, 1))[0], 96);
}

#[test]
fn a_step_longer_than_the_request_leaves_nothing() {
    let mut topology = topology(&[full()]);
    topology.alignment = u32::MAX - 15;
    assert_eq!(answers(&topology, &[&[u64::MAX; 4]], query(64, 1)), [0; 64]);
}

#[test]
fn the_limiting_group_is_named_only_where_one_ends_the_prefix() {
    let topology = topology(&[full(), window(32)]);
    let (all, tail): (&[u64], &[u64]) = (&[3, 3, 3], &[1, 0, 3]);
    let held = Holdings {
        unit: 16,
        whole: &[all, tail],
        partial: &[],
    };
    let mut scratch = Scratch::default();
    let found = resume(&topology, &held, query(50, 3), &mut scratch);
    assert_eq!(found[..2], [16, 0]);
    let limits = limiting(&topology, &held, query(50, 3), &found, &mut scratch);
    assert_eq!(
        limits[0],
        Some(LimitingGroup {
            group: 1,
            boundary: 32
        })
    );
    assert_eq!(
        limits[1],
        Some(LimitingGroup {
            group: 1,
            boundary: 16
        })
    );
    let whole = resume(
        &topology,
        &Holdings {
            whole: &[all, all],
            ..held
        },
        query(50, 3),
        &mut scratch,
    );
    let none = limiting(
        &topology,
        &Holdings {
            whole: &[all, all],
            ..held
        },
        query(50, 3),
        &whole,
        &mut scratch,
    );
    assert_eq!(none, [None; 64]);
}

#[test]
fn a_unit_that_divides_no_boundary_is_refused() {
    let topology = topology(&[full()]);
    assert!(check_unit(&topology, 8).is_ok());
    for unit in [0, 12, 32] {
        assert!(
            matches!(check_unit(&topology, unit), Err(Error::InvalidValue(_))),
            "unit {unit}"
        );
    }
}

#[test]
fn dialects_are_found_by_name_and_join_flag_by_flag() {
    let flags = &EngineDialect::NAMES[3..];
    let all = flags
        .iter()
        .fold(EngineDialect::PURE, |all, (_, flag)| all.with(*flag));
    let engines = [EngineDialect::VLLM, EngineDialect::SGLANG];
    assert_eq!(all, engines[0].with(engines[1]));
    assert_eq!(EngineDialect::from_name("vllm"), Some(EngineDialect::VLLM));
    assert_eq!(EngineDialect::from_name("unheard of"), None);
}

/// Two groups of four blocks: the bits of a number say what one holder holds.
fn words_of(bits: u32) -> [[u64; 4]; 2] {
    [0, 4].map(|first| [0, 1, 2, 3].map(|block| u64::from(bits >> (first + block) & 1)))
}

#[test]
fn what_may_be_reused_beside_unknown_blocks_is_what_the_best_of_them_would_add() {
    let eagle = |group| GroupSpec {
        eagle: true,
        ..group
    };
    let chunk = GroupSpec {
        chunk: Some(32),
        ..GroupSpec::new(SpecKind::ChunkedLocalAttention, 16)
    };
    let second = [
        full(),
        window(1),
        window(33),
        window(200),
        eagle(window(33)),
        chunk,
        GroupSpec::new(SpecKind::Mamba, 16),
        GroupSpec {
            prefix_cacheable: false,
            ..full()
        },
    ];
    let dialects = [EngineDialect::PURE, EngineDialect::VLLM];
    for (other, dialect) in second
        .into_iter()
        .flat_map(|other| dialects.map(|d| (other, d)))
    {
        for (first, replay_tokens) in [(full(), 0), (eagle(full()), 0), (full(), 16)] {
            let topology = Topology {
                replay_tokens,
                dialect,
                ..topology(&[first, other])
            };
            check_lacking(&topology);
        }
    }
}

fn check_lacking(topology: &Topology) {
    for num_tokens in [48, 64, 65] {
        let reused: Vec<u32> = (0..256)
            .map(|bits| {
                let [one, two] = words_of(bits);
                answers(topology, &[&one, &two], query(num_tokens, 1))[0]
            })
            .collect();
        for (bits, most) in (0..256u32).flat_map(|bits| [0, 1, 2, 5].map(|most| (bits, most))) {
            let [one, two] = words_of(bits);
            let held = Holdings {
                unit: 16,
                whole: &[&one, &two],
                partial: &[],
            };
            let query = query(num_tokens, 1);
            let told = resume_lacking(topology, &held, query, most, &mut Scratch::default());
            let adds =
                |all: &u32| all & bits == bits && u64::from((all ^ bits).count_ones()) <= most;
            let best = (0..256).filter(adds).map(|all| reused[all as usize]).max();
            assert_eq!(
                Some(told),
                best,
                "{topology:?} {num_tokens} {bits:b} {most}"
            );
        }
    }
}
