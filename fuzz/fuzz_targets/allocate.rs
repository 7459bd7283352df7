//! Property: whatever the numbers of a call are, the cache never panics, its structures agree after
//! every step, and all blocks are free once all requests are gone.

#![no_main]

#[path = "../../crates/core/tests/choices/mod.rs"]
mod choices;
#[path = "../../crates/core/tests/needs/mod.rs"]
mod needs;

use choices::{Bytes, Choices};
use libfuzzer_sys::fuzz_target;
use needs::Life;

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Bytes(bytes);
    let mut life = Life::new(&mut choices);
    while !choices.is_at_end() {
        life.step(&mut choices);
    }
    life.end();
});
