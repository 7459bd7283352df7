//! The stable-only fuzz test of the decoder: deterministic mutations of seed payloads.
//!
//! Property: it decodes or refuses, never panics, and its arenas stay within
//! `MAX_ARENA_BYTES_PER_BYTE` bytes per byte of the input. `fuzz/` has the coverage-guided twin.

mod choices;
mod encoder;

use std::hint::black_box;

use choices::{Choices, Numbers};
use encoder::{Value, batch, clear, map, text, uints};
use kvbraid_core::wire::{Batch, Decoder, Event, Limits, MAX_ARENA_BYTES_PER_BYTE, Stored};

/// Vectors never grow to fewer elements than this, whatever the input's size.
const SMALLEST_ARENAS_BYTES: usize = 2048;
const ROUNDS_PER_SEED: u64 = 2_000;

/// A store of TensorRT-LLM: a token that is a text, and keys of media.
fn tensorrt() -> Value {
    let segment = map(&[
        ("type", text("mm_key")),
        ("hash", text("a1a1")),
        ("start_offset", Value::Uint(3)),
    ]);
    map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&[3_u64, 4])),
        ("parent_block_hash", Value::Nil),
        (
            "token_ids",
            Value::Array(vec![
                Value::Uint(1),
                text("a1a1"),
                Value::Uint(2),
                Value::Uint(3),
            ]),
        ),
        ("block_size", Value::Uint(2)),
        ("lora_id", Value::Uint(7)),
        (
            "mm_keys",
            Value::Array(vec![Value::Array(vec![segment]), Value::Array(vec![])]),
        ),
    ])
}

fn seeds() -> Vec<Vec<u8>> {
    let stores = ["full_attention", "sliding_window"].map(|kind| {
        map(&[
            ("type", text("BlockStored")),
            ("block_hashes", uints(&[u64::MAX, 1 << 40, 3])),
            ("parent_block_hash", Value::Bytes(vec![7; 32])),
            ("token_ids", uints(&[1_u64, 130, 300, 70_000, 1 << 60, 6])),
            ("block_size", Value::Uint(2)),
            ("medium", text("GPU")),
            ("lora_name", text("a")),
            (
                "extra_keys",
                Value::Array(vec![Value::Array(vec![text("a")]), Value::Nil, Value::Nil]),
            ),
            ("group_idx", Value::Uint(1)),
            ("kv_cache_spec_kind", text(kind)),
            ("kv_cache_spec_sliding_window", Value::Uint(128)),
        ])
    });
    let pairs = Value::Array(vec![uints(&[1_u32, 2]), uints(&[2_u32, 300])]);
    let sglang = Value::Array(vec![
        text("BlockStored"),
        Value::Array(vec![Value::Int(-5), Value::Int(i64::MIN)]),
        Value::Nil,
        pairs,
        Value::Uint(1),
        Value::Nil,
        text("DISK"),
        map(&[("cache_salt", text("s"))]),
    ]);
    let gone = [
        Value::Array(vec![
            text("BlockRemoved"),
            uints(&[3_u64]),
            text("GPU"),
            Value::Uint(1),
        ]),
        clear(),
    ];
    vec![
        batch(&stores),
        batch(&[sglang]),
        batch(&[tensorrt()]),
        batch(&gone),
        batch(&[&stores[..], &gone].concat()),
    ]
}

fn mutate(payload: &mut Vec<u8>, numbers: &mut Numbers) {
    /// Heads that promise much or change the kind of what follows.
    const HEADS: [u8; 12] = [
        0x00, 0x80, 0x90, 0xc0, 0xc1, 0xc4, 0xc9, 0xcf, 0xdb, 0xdd, 0xdf, 0xff,
    ];
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(payload.len().max(1)).min(payload.len());
        match numbers.below(5) {
            0 => payload.truncate(at),
            1 => payload.insert(at, HEADS[numbers.below(HEADS.len())]),
            2 if at < payload.len() => payload[at] = HEADS[numbers.below(HEADS.len())],
            3 if at < payload.len() => payload[at] ^= 1 << numbers.below(8),
            _ => {
                let piece = payload[at..(at + numbers.below(40)).min(payload.len())].to_vec();
                payload.splice(at..at, piece);
            }
        }
    }
}

/// Reads everything that the batch points at; how many elements that were.
fn read_all(batch: &Batch) -> usize {
    let stored = |stored: &Stored| {
        let blocks = batch.hashes_of(stored.hashes).len();
        let of_blocks = |block| {
            batch.extra_keys_of(stored, block).len() + batch.lookahead_of(stored, block).len()
        };
        batch.tokens_of(stored.tokens).len()
            + batch.wide_of(stored.tokens).count()
            + stored.lora_name.map_or(0, |name| batch.text(name).len())
            + (0..=blocks).map(of_blocks).sum::<usize>()
    };
    let event = |event: &Event| match event {
        Event::Stored(store) => stored(store),
        Event::Removed(removed) => batch.hashes_of(removed.hashes).len(),
        Event::Cleared | Event::Refused(_) => 0,
    };
    batch.events.iter().map(event).sum()
}

fn assert_bounded(payload: &[u8]) {
    let mut decoder = Decoder::new(Limits::default());
    black_box(read_all(decoder.decode(payload)));
    let limit = SMALLEST_ARENAS_BYTES + MAX_ARENA_BYTES_PER_BYTE * payload.len();
    let bytes = decoder.arena_bytes();
    assert!(
        bytes <= limit,
        "{bytes} bytes of arenas for {} of input",
        payload.len()
    );
}

#[test]
fn mutated_payloads_decode_or_are_refused_within_the_memory_bound() {
    for (index, seed) in seeds().iter().enumerate() {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 + index as u64);
        for _ in 0..ROUNDS_PER_SEED {
            let mut payload = seed.clone();
            mutate(&mut payload, &mut numbers);
            assert_bounded(&payload);
        }
    }
}

#[test]
fn the_greediest_payloads_stay_within_the_memory_bound() {
    let store = |fields: &[(&str, Value)]| {
        let head = [
            ("type", text("BlockStored")),
            ("block_size", Value::Uint(1)),
        ];
        map(&[&head, fields].concat())
    };
    let many = || Value::Array(vec![text(""); (1 << 16) + 1]);
    let one_hash = || uints(&[1_u64]);
    let tokens = || uints(&[1_u32]);
    let pairs = Value::Array(vec![uints(&[1_u32, 2]); 65_537]);
    let greedy = [
        batch(&vec![Value::Nil; 65_537]),
        batch(&vec![Value::Array(vec![text("AllBlocksCleared")]); 65_537]),
        batch(&[store(&[
            ("block_hashes", one_hash()),
            ("token_ids", tokens()),
            ("extra_keys", Value::Array(vec![many()])),
        ])]),
        batch(&[store(&[
            ("block_hashes", uints(&vec![1_u32; 65_537])),
            ("token_ids", pairs),
        ])]),
        batch(&[store(&[
            ("block_hashes", tokens()),
            ("token_ids", uints(&vec![1_u32; 65_537])),
        ])]),
        batch(&[store(&[
            ("block_hashes", tokens()),
            ("token_ids", Value::Array(vec![text("a"); 65_537])),
        ])]),
    ];
    for payload in &greedy {
        assert_bounded(payload);
    }
}

#[test]
fn a_promise_of_four_billion_elements_reserves_nothing() {
    for head in [0xdd_u8, 0xdf] {
        let mut payload = batch(&[map(&[("type", text("BlockStored"))])]);
        payload.truncate(payload.len() - 1);
        payload.extend([head, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]);
        assert_bounded(&payload);
    }
}
