//! The seeded random fuzz of the index: many lives, each a sequence of everything that happens to one.
//!
//! Property: whatever engines publish and feeds tell, in whatever order, the index never panics, its
//! structures agree after every step, and its answers keep what answers promise (`life`).
//! `fuzz/` has the coverage-guided twin. `KVBRAID_FUZZ_STEPS` makes it long, `KVBRAID_FUZZ_SEED`
//! begins with another life; a failure names the seed of the life that failed.

mod choices;
mod encoder;
mod life;
mod reseal;

use choices::play_lives;
use life::Life;

/// Steps of one life: long enough to fill a small domain, short enough to read a failure.
const STEPS_PER_LIFE: u64 = 100;
const STEPS: u64 = 20_000;

#[test]
fn whatever_happens_to_an_index_its_structures_agree_and_its_answers_hold() {
    play_lives(STEPS, STEPS_PER_LIFE, |numbers, step| {
        let mut life = Life::new(numbers);
        while *step < STEPS_PER_LIFE {
            life.step(numbers);
            *step += 1;
        }
    });
}
