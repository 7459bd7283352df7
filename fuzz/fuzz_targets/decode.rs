//! Property: any payload decodes or is refused; the decoder never panics, and its arenas take at
//! most a small multiple of the input.

#![no_main]

use kvbraid_core::wire::{Decoder, Event, Limits, MAX_ARENA_BYTES_PER_BYTE};
use libfuzzer_sys::fuzz_target;

/// Vectors never grow to fewer elements than this, whatever the input's size.
const SMALLEST_ARENAS_BYTES: usize = 2048;

fuzz_target!(|payload: &[u8]| {
    let mut decoder = Decoder::new(Limits::default());
    let batch = decoder.decode(payload);
    for event in &batch.events {
        if let Event::Stored(stored) = event {
            let blocks = batch.hashes_of(stored.hashes).len();
            assert!(batch.tokens_of(stored.tokens).len() <= payload.len());
            assert!((0..=blocks).all(|block| {
                let keys = batch.extra_keys_of(stored, block).len();
                keys.max(batch.lookahead_of(stored, block).len()) <= payload.len()
            }));
        }
    }
    let limit = SMALLEST_ARENAS_BYTES + MAX_ARENA_BYTES_PER_BYTE * payload.len();
    assert!(decoder.arena_bytes() <= limit);
});
