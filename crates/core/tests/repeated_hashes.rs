//! A store may list one hash twice, which no engine has a reason to do: its structures agree all the
//! same, whatever other stores then say of that hash.

mod asking;
mod choices;
mod encoder;

use asking::{index_of, options};
use choices::{Choices, Numbers, numbers};
use encoder::{Value, batch};

/// So many numbers below `end`.
fn some(numbers: &mut Numbers, count: usize, end: usize) -> Vec<u64> {
    (0..count).map(|_| numbers.below(end) as u64).collect()
}

/// A sparse store, or a dense one where it lists as many hashes as it has tokens.
fn store(numbers: &mut Numbers) -> Value {
    let count = 1 + numbers.below(4);
    let hashes = some(numbers, count, 5);
    let count = hashes.len() + numbers.below(4);
    let tokens = some(numbers, count, 2);
    let parent = (numbers.below(3) == 0).then(|| numbers.below(5) as u64);
    encoder::store(&hashes, parent, &tokens, 1, &[])
}

#[test]
fn a_hash_that_a_store_lists_twice_leaves_every_structure_sound() {
    for seed in 0..2_000 {
        let mut numbers = numbers(seed);
        let mut index = index_of(options(), &["a"]);
        for _ in 0..6 {
            let payload = batch(&[store(&mut numbers)]);
            index.apply("a", 0, &payload).expect("a known pod");
            index.check_integrity();
        }
    }
}
