//! What the size of a pool excludes after a loss costs work in proportion to the request.

mod asking;

use std::num::NonZeroU32;

use asking::{index_of, options, pod, request};
use kvbraid_core::fleet::{Index, PodConfig, PodSpec, Row, State};
use kvbraid_core::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

const POD: &str = "a";
const BLOCK: u32 = 16;

/// An index that was started after a pod of two groups, whose engine has this many blocks.
fn late(num_gpu_blocks: u32) -> Index {
    let mut index = index_of(options(), &[]);
    meet_late(&mut index, POD, num_gpu_blocks);
    index
}

fn meet_late(index: &mut Index, name: &str, num_gpu_blocks: u32) {
    let full = GroupSpec::new(SpecKind::FullAttention, BLOCK);
    let window = GroupSpec {
        window: Some(BLOCK + 1),
        ..GroupSpec::new(SpecKind::SlidingWindow, BLOCK)
    };
    let topology = Topology {
        dialect: EngineDialect::VLLM,
        ..Topology::new(vec![full, window])
    };
    let spec = PodSpec {
        config: PodConfig {
            topology: Some(topology),
            num_gpu_blocks: NonZeroU32::new(num_gpu_blocks),
            ..PodConfig::default()
        },
        ..pod()
    };
    index.register(name, spec).expect("a pod");
    index.lose(name, 0).expect("a known pod");
    let told = index.set_state(name, 0, State::Degraded, "lost".to_owned());
    told.expect("a known pod");
    index.check_integrity();
}

/// The row of the pod for a prompt of this many blocks, and the effort that it took.
fn ask(index: &mut Index, blocks: u32) -> (Row, u64) {
    let tokens: Vec<u32> = (0..=blocks * BLOCK).collect();
    let mut answer = index.score(&request(&tokens)).expect("a known model");
    (answer.rows.remove(0), answer.effort)
}

#[test]
fn a_pool_excludes_what_needs_more_blocks_than_it_has() {
    let mut index = late(41);
    for (blocks, upper) in [(10, 10), (39, 39), (40, 39), (1000, 39)] {
        let (row, _) = ask(&mut index, blocks);
        assert_eq!((row.bounds.lower, row.bounds.upper), (0, upper * BLOCK));
        assert_eq!(row.state, State::Degraded);
    }
}

#[test]
fn counting_what_a_request_lacks_costs_twice_as_much_for_twice_the_request() {
    let mut index = late(41);
    let (_, one) = ask(&mut index, 1_000);
    let (_, two) = ask(&mut index, 2_000);
    assert!(one >= 2 * 1_000, "each block of each group is looked at");
    assert_eq!(two, 2 * one);
}

#[test]
fn a_pod_of_which_everything_is_known_costs_nothing_more() {
    let mut index = late(1);
    let (row, effort) = ask(&mut index, 1_000);
    assert_eq!((row.state, row.bounds.upper, effort), (State::Exact, 0, 0));
}

#[test]
fn a_request_that_would_take_too_long_to_count_for_all_pods_excludes_nothing() {
    let blocks = 1 << 16;
    let mut index = late(41);
    for pod in 1..64 {
        meet_late(&mut index, &pod.to_string(), 41);
    }
    let (row, effort) = ask(&mut index, blocks);
    assert_eq!(row.bounds.upper, 39 * BLOCK);
    assert_eq!(effort, 64 * 2 * u64::from(blocks));
    meet_late(&mut index, "one more", 41);
    let (row, effort) = ask(&mut index, blocks);
    assert_eq!((row.bounds.upper, effort), (blocks * BLOCK, 0));
}
