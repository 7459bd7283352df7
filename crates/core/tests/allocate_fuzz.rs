//! The seeded random fuzz of what callers ask of a cache, in range and out of it.
//!
//! Property: whatever the numbers of a call are, the cache never panics; a call that it refuses
//! changes nothing that matters; its blocks, hashes and requests agree after every step, and all
//! blocks are free once all requests are gone. `KVBRAID_FUZZ_STEPS` makes it long, and
//! `KVBRAID_FUZZ_SEED` begins with another life; a failure names the seed of the life that failed.

mod choices;
mod needs;

use choices::play_lives;
use needs::Life;

const STEPS_PER_LIFE: u64 = 60;
const STEPS: u64 = 20_000;

#[test]
fn whatever_a_caller_asks_the_cache_answers_or_refuses_and_loses_no_block() {
    play_lives(STEPS, STEPS_PER_LIFE, |numbers, step| {
        let mut life = Life::new(numbers);
        while *step < STEPS_PER_LIFE {
            life.step(numbers);
            *step += 1;
        }
        life.end();
    });
}
