//! The drawings of this folder, as tests over plain tables.

use hashbrown::HashMap;

use super::*;
use crate::blocks::{BlockId, count};
use crate::error::Error;
use crate::spec::{GroupSpec, SpecKind, Topology};

pub(super) const FULL: GroupSpec = GroupSpec::new(SpecKind::FullAttention, 4);
const WINDOW: GroupSpec = GroupSpec {
    kind: SpecKind::SlidingWindow,
    window: Some(5),
    ..FULL
};
const STATE: GroupSpec = GroupSpec::new(SpecKind::Mamba, 4);

fn ids(numbers: &[u32]) -> Vec<BlockId> {
    numbers.iter().copied().map(BlockId).collect()
}

pub(super) fn snapshot(groups: &[GroupSpec], requests: &[&[&[u32]]]) -> Snapshot {
    let tables = |tables: &&[&[u32]]| RunTables {
        blocks: tables.iter().map(|table| ids(table)).collect(),
        states: vec![Vec::new(); tables.len()],
        findable: Vec::new(),
    };
    Snapshot {
        topology: Topology::new(groups.to_vec()),
        num_blocks: 100,
        tables: (0..)
            .zip(requests.iter().map(tables))
            .collect::<HashMap<_, _>>(),
    }
}

/// A run of 40 tokens whose output nobody has seen.
fn run(request: u64, hit: u32, loaded: u32, computed: u32) -> Run {
    Run {
        request,
        num_tokens: 40,
        num_known_tokens: 40,
        num_local_tokens: hit,
        num_loaded_tokens: loaded,
        num_processed_tokens: computed,
        num_computed_tokens: computed,
        ..Run::default()
    }
}

fn failed(blocks: &[u32]) -> AssessmentInput {
    AssessmentInput {
        failures: Failures {
            blocks: ids(blocks),
            ..Failures::default()
        },
        ..AssessmentInput::default()
    }
}

#[test]
fn an_owner_writes_a_shared_block_again_and_the_others_wait() {
    let tables = snapshot(&[FULL], &[&[&[7, 8, 9, 20]], &[&[7, 8, 9, 30]]]);
    let runs = [run(1, 12, 0, 16), run(0, 0, 12, 16)];
    let found = assess(&tables, &runs, &failed(&[8])).unwrap();
    assert_eq!(found.tainted, ids(&[8, 20, 30]));
    let [owner, waiter] = found.verdicts.as_slice() else {
        panic!("two requests are affected: {:?}", found.verdicts);
    };
    assert_eq!((owner.resume, waiter.resume), (4, 12));
    assert_eq!(
        (owner.first_tainted, waiter.first_tainted),
        (Some(12), Some(12))
    );
    assert_eq!(owner.owner_of, ids(&[8]));
    assert_eq!(*waiter.waits_for, [(BlockId(8), 0)]);
}

#[test]
fn what_many_tables_begin_with_is_owned_once_and_waited_for_by_all_others() {
    let begin = 1..=32;
    let table = |last: u32| begin.clone().chain([last]).collect::<Vec<u32>>();
    let all: Vec<Vec<u32>> = (40..45).map(table).collect();
    let all: Vec<[&[u32]; 1]> = all.iter().map(|table| [table.as_slice()]).collect();
    let all: Vec<&[&[u32]]> = all.iter().map(<[_; 1]>::as_slice).collect();
    let tables = snapshot(&[FULL], &all);
    let run = |request| Run {
        num_tokens: 200,
        num_known_tokens: 200,
        ..run(request, 128, 0, 132)
    };
    let mut runs: Vec<Run> = (0..5).map(run).collect();
    (runs[0].num_local_tokens, runs[0].num_loaded_tokens) = (0, 128);
    for first in 0..2 {
        let found = assess(&tables, &runs, &failed(&[9, 20])).unwrap();
        let [owner, waiter, others @ ..] = found.verdicts.as_slice() else {
            panic!("all requests are affected: {:?}", found.verdicts);
        };
        assert_eq!((owner.request, owner.resume), (first, 32));
        assert_eq!(owner.owner_of, ids(&[9, 20]));
        assert_eq!(
            *waiter.waits_for,
            [(BlockId(9), first), (BlockId(20), first)]
        );
        for other in others {
            assert_eq!((other.resume, other.owner_of.len()), (128, 0));
            assert_eq!(other.waits_for, waiter.waits_for);
        }
        runs[0].ended_tables = Some(tables.tables[&0].blocks.clone()); // Then it owns nothing.
    }
}

#[test]
fn a_request_without_a_failed_block_is_tainted_by_what_it_found() {
    let tables = snapshot(&[FULL], &[&[&[1, 2]], &[&[9, 2, 3]], &[&[8, 7, 3, 4]]]);
    let runs = [run(0, 0, 4, 8), run(1, 8, 0, 12), run(2, 12, 0, 16)];
    let found = assess(&tables, &runs, &failed(&[1])).unwrap();
    assert_eq!(found.tainted, ids(&[1, 2, 3, 4]));
    let first: Vec<_> = found.verdicts.iter().map(|v| v.first_tainted).collect();
    assert_eq!(first, [Some(4), Some(8), Some(12)]);
}

#[test]
fn a_window_that_has_passed_a_block_does_not_read_it() {
    let tables = snapshot(&[WINDOW], &[&[&[1, 2, 3, 4]]]);
    let found = assess(&tables, &[run(0, 0, 12, 16)], &failed(&[1])).unwrap();
    assert_eq!(found.tainted, ids(&[1]));
    assert_eq!(found.verdicts[0].first_tainted, None);
    assert_eq!(found.verdicts[0].resume, 16);
}

#[test]
fn a_run_with_a_state_or_a_hole_gives_its_blocks_back() {
    for (group, table) in [(STATE, [0, 0, 5, 6]), (WINDOW, [0, 5, 6, 7])] {
        let tables = snapshot(&[FULL, group], &[&[&[1, 2, 3, 4], &table]]);
        let found = assess(&tables, &[run(0, 0, 12, 16)], &failed(&[2])).unwrap();
        let verdict = &found.verdicts[0];
        assert_eq!((verdict.resume, verdict.in_place), (0, false), "{table:?}");
    }
}

#[test]
fn nobody_waits_for_a_block_that_its_owner_may_not_write_yet() {
    let tables = snapshot(&[FULL], &[&[&[7, 8, 9, 20]], &[&[7, 8, 9, 30]]]);
    let runs = [run(0, 0, 12, 16), run(1, 12, 0, 16)];
    let input = AssessmentInput {
        busy: ids(&[9]),
        ..failed(&[8])
    };
    for verdict in assess(&tables, &runs, &input).unwrap().verdicts {
        assert!(!verdict.in_place);
        assert_eq!((verdict.resume, verdict.busy), (4, ids(&[9])));
        assert!(verdict.owner_of.is_empty() && verdict.waits_for.is_empty());
    }
}

#[test]
fn what_was_read_and_given_back_is_tainted_with_what_was_computed_from_it() {
    let tables = snapshot(&[WINDOW], &[&[&[0, 0, 3, 4]]]);
    let garbage = |block, failures: AssessmentInput| {
        let gone = GivenBack {
            group: 0,
            position: 1,
            block: BlockId(block),
            copied: false,
        };
        let run = Run {
            given_back: vec![gone],
            ..run(0, 0, 8, 16)
        };
        let input = AssessmentInput {
            former: ids(&[9]),
            ..failures
        };
        assess(&tables, &[run], &input).unwrap().tainted
    };
    assert_eq!(garbage(9, failed(&[9])), ids(&[3, 4, 9]));
    let former = count(tables.num_blocks);
    assert_eq!(garbage(former, failed(&[9])), ids(&[3, 4, former]));
    assert!(garbage(former, failed(&[8])).is_empty());
    let exact = AssessmentInput {
        failures: Failures {
            contents: vec![(BlockId(9), 0)],
            ..Failures::default()
        },
        ..AssessmentInput::default()
    };
    assert!(garbage(former, exact).is_empty());
}

#[test]
fn what_a_run_read_for_a_copy_it_has_not_written() {
    let tables = snapshot(&[FULL], &[&[&[1, 2, 3, 4]]]);
    let tainted = |copied| {
        let gone = GivenBack {
            group: 0,
            position: 1,
            block: BlockId(9),
            copied,
        };
        let run = Run {
            given_back: vec![gone],
            ..run(0, 0, 6, 16)
        };
        assess(&tables, &[run], &failed(&[1])).unwrap().tainted
    };
    assert_eq!(tainted(true), ids(&[1, 2, 3, 4]));
    assert_eq!(tainted(false), ids(&[1, 2, 3, 4, 9]));
}

#[test]
fn what_a_run_wrote_before_it_committed_is_not_looked_up() {
    let mut tables = snapshot(&[FULL], &[&[&[]]]);
    tables.tables.get_mut(&0).unwrap().findable = vec![(0, 2, BlockId(9))];
    let tainted = |delays_commit| {
        let run = Run {
            delays_commit,
            ended_tables: Some(vec![ids(&[1, 2, 0, 4])]),
            ..run(0, 0, 8, 16)
        };
        assess(&tables, &[run], &failed(&[2])).unwrap().tainted
    };
    assert_eq!(tainted(false), ids(&[2, 4, 9]));
    assert_eq!(tainted(true), ids(&[2, 4]));
}

#[test]
fn tables_that_cannot_be_are_refused() {
    let tables = snapshot(&[FULL], &[&[&[100]], &[]]);
    let error = |request| assess(&tables, &[run(request, 0, 4, 4)], &failed(&[])).unwrap_err();
    assert!(matches!(error(0), Error::UnknownBlock { .. }));
    assert!(matches!(error(1), Error::InvalidValue(_)));
    assert_eq!(error(2), Error::UnknownRequest(2));
}
