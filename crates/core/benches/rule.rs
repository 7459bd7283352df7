//! Nanoseconds per evaluation of the resume rule for 64 pods at once: the median of several rounds,
//! and the best one, which is what a quiet machine shows.
//!
//! `cargo bench -p kvbraid-core --bench rule`. Pods are mostly dense: each word loses a few bits, so
//! that answers differ from pod to pod.

use std::hint::black_box;
use std::time::Instant;

use kvbraid_core::rule::{Holdings, Query, Scratch, Unknown, limiting, resume};
use kvbraid_core::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

const BLOCK: u32 = 16;
const ROUNDS: usize = 15;

fn topology(num_windows: usize, eagle: bool, dialect: EngineDialect) -> Topology {
    let windows = (0..num_windows).map(|window| GroupSpec {
        eagle,
        window: Some(1024 + u32::try_from(window * usize::from(eagle)).unwrap_or(0) * BLOCK),
        ..GroupSpec::new(SpecKind::SlidingWindow, BLOCK)
    });
    let full = GroupSpec::new(SpecKind::FullAttention, BLOCK);
    Topology {
        dialect,
        ..Topology::new([full].into_iter().chain(windows).collect())
    }
}

/// Words of which each pod misses about one in `sparsity`.
fn words(boundaries: usize, sparsity: u64) -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..boundaries)
        .map(|_| {
            if next() % sparsity == 0 {
                !(1 << (next() % 64))
            } else {
                u64::MAX
            }
        })
        .collect()
}

fn nanoseconds(mut evaluate: impl FnMut()) -> (f64, f64) {
    let repeat = 400;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..repeat {
                evaluate();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(repeat)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    (rounds[ROUNDS / 2], rounds[0])
}

#[expect(clippy::print_stdout, reason = "a benchmark prints")]
fn measure(name: &str, boundaries: usize, topology: &Topology, sparsity: u64) {
    let held = words(boundaries, sparsity);
    let whole: Vec<&[u64]> = topology.groups.iter().map(|_| held.as_slice()).collect();
    let held = Holdings {
        unit: BLOCK,
        whole: &whole,
        partial: &[],
    };
    let num_tokens = u32::try_from(boundaries).unwrap_or(0) * BLOCK + 1;
    let query = Query {
        num_tokens,
        mask: u64::MAX,
        unknown: Unknown::Strict,
    };
    let mut scratch = Scratch::default();
    let time = nanoseconds(|| {
        black_box(resume(topology, black_box(&held), query, &mut scratch));
    });
    let answers = resume(topology, &held, query, &mut scratch);
    let why = nanoseconds(|| {
        black_box(limiting(
            topology,
            black_box(&held),
            query,
            &answers,
            &mut scratch,
        ));
    });
    println!(
        "{name:28} {boundaries:5} boundaries {:9.0} ({:.0}) ns, limiting {:9.0} ({:.0}) ns",
        time.0, time.1, why.0, why.1
    );
}

fn main() {
    for boundaries in [512, 8192] {
        for (name, sparsity) in [("shared", u64::MAX), ("holes", 16)] {
            let pure = |windows| topology(windows, false, EngineDialect::PURE);
            measure(&format!("1 full, {name}"), boundaries, &pure(0), sparsity);
            measure(
                &format!("1 full + 1 window, {name}"),
                boundaries,
                &pure(1),
                sparsity,
            );
            measure(
                &format!("1 full + 5 windows, {name}"),
                boundaries,
                &pure(5),
                sparsity,
            );
        }
        let searched = topology(2, true, EngineDialect::VLLM);
        measure("2 eagle windows, searched", boundaries, &searched, 64);
    }
}
