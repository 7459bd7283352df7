//! The seeded random fuzz of snapshots whose seal is right and whose content is not.
//!
//! Property: whoever has the secret can write anything, and the index refuses it and is unchanged, or
//! takes it and has structures that agree; nothing panics, then or later. `fuzz/` has the
//! coverage-guided twin.

mod choices;
mod encoder;
mod life;
mod reseal;

use choices::play_lives;
use life::Life;

const STEPS_PER_LIFE: u64 = 40;
const STEPS: u64 = 4_000;

#[test]
fn whatever_a_sealed_snapshot_says_is_refused_or_agrees() {
    play_lives(STEPS, STEPS_PER_LIFE, |numbers, step| {
        let mut life = Life::new(numbers);
        while *step < STEPS_PER_LIFE {
            life.step(numbers);
            life.read_changed(numbers);
            *step += 1;
        }
    });
}
