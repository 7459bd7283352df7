//! Property: whatever engines publish and feeds tell, in whatever order, the index never panics, its
//! structures agree after every step, and its answers keep what answers promise.

#![no_main]

#[path = "../../crates/core/tests/choices/mod.rs"]
mod choices;
#[path = "../../crates/core/tests/encoder/mod.rs"]
mod encoder;
#[path = "../../crates/core/tests/life/mod.rs"]
mod life;
#[path = "../../crates/core/tests/reseal/mod.rs"]
mod reseal;

use choices::{Bytes, Choices};
use libfuzzer_sys::fuzz_target;
use life::Life;

fuzz_target!(|bytes: &[u8]| {
    let mut choices = Bytes(bytes);
    let mut life = Life::new(&mut choices);
    while !choices.is_at_end() {
        life.step(&mut choices);
    }
});
