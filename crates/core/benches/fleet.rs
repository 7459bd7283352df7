//! Where the time of one score goes: 64 pods that share a prefix, one full-attention group.
//!
//! `cargo bench --bench fleet` prints nanoseconds per call; wall times of a shared machine.
#![expect(clippy::print_stdout, reason = "a benchmark prints its result")]

#[path = "../tests/asking/mod.rs"]
mod asking;
#[path = "../tests/encoder/mod.rs"]
mod encoder;

use std::time::Instant;

use asking::{index_of, options, pod, request};
use encoder::{Value, batch, text, uints};
use kvbraid_core::fleet::{Index, PodConfig, PodSpec};
use kvbraid_core::prefix::Unit;
use kvbraid_core::secret::Secret;
use kvbraid_core::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

const PODS: u32 = 64;

/// The hash of a block that nobody computes.
fn made_up(block: usize) -> u64 {
    0x9E37_79B9_7F4A_7C15u64.wrapping_mul(block as u64 + 1)
}

/// One batch of one store: `count` blocks of a prompt from block `first` on, in positional form.
fn payload(tokens: &[u32], first: usize, count: usize) -> Vec<u8> {
    let hashes: Vec<u64> = (first..first + count).map(made_up).collect();
    let parent = first.checked_sub(1).map(made_up);
    batch(&[Value::Array(vec![
        text("BlockStored"),
        uints(&hashes),
        parent.map_or(Value::Nil, Value::Uint),
        uints(&tokens[first * 16..(first + count) * 16]),
        Value::Uint(16),
        Value::Nil,
        text("GPU"),
        Value::Nil,
        Value::Nil,
        Value::Uint(0),
        text("full_attention"),
    ])])
}

fn index() -> Index {
    let full = GroupSpec::new(SpecKind::FullAttention, 16);
    let topology = Topology {
        dialect: EngineDialect::VLLM,
        ..Topology::new(vec![full])
    };
    let config = PodConfig {
        topology: Some(topology),
        ..PodConfig::default()
    };
    let mut index = index_of(options(), &[]);
    for number in 0..PODS {
        let spec = PodSpec {
            config: config.clone(),
            ..pod()
        };
        let name = format!("pod{number}");
        index.register(&name, spec).expect("a valid pod");
    }
    index
}

fn time(name: &str, mut run: impl FnMut()) {
    let mut samples = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..20 {
            run();
        }
        samples.push(start.elapsed().as_nanos() / 20);
    }
    samples.sort_unstable();
    println!("{name}: {} ns (median of 200)", samples[100]);
}

fn apply_all(index: &mut Index, batches: &[Vec<u8>]) {
    for pod in 0..PODS {
        let name = format!("pod{pod}");
        for batch in batches {
            index.apply(&name, 0, batch).expect("a registered pod");
        }
    }
}

/// 64 pods store the same 8 192 blocks, `size` blocks a batch.
fn ingest(name: &str, prompt: &[u32], size: usize) {
    let tokens: Vec<u32> = prompt.iter().copied().cycle().take(8_192 * 16).collect();
    let batches: Vec<Vec<u8>> = (0..8_192)
        .step_by(size)
        .map(|first| payload(&tokens, first, size))
        .collect();
    let mut samples: Vec<u128> = Vec::new();
    for _ in 0..5 {
        let mut index = index();
        let start = Instant::now();
        apply_all(&mut index, &batches);
        samples.push(start.elapsed().as_nanos() / (8_192 * u128::from(PODS)));
    }
    samples.sort_unstable();
    println!("ingest {name}: {} ns a block (median of 5)", samples[2]);
}

fn main() {
    let tokens: Vec<u32> = (0..8_192 + 5).map(|i| (i * 7_919) % 128_000).collect();
    ingest("prefill", &tokens, 128);
    ingest("decode", &tokens, 1);
    let mut index = index();
    apply_all(&mut index, &[payload(&tokens, 0, 512)]);
    let unit = Unit::new(Secret::new([7; 32]).field(), 16);
    let mut keys = Vec::new();
    time("keys", || {
        keys.clear();
        unit.keys(0, &tokens, &mut keys);
    });
    let request = request(&tokens);
    time("score", || {
        let answer = index.score(&request).expect("a known model");
        assert_eq!(answer.rows.len(), PODS as usize);
    });
}
