//! A store may list one hash twice, which no engine has a reason to do: its structures agree all the
//! same, whatever other stores then say of that hash.

mod encoder;

use encoder::{Value, batch, map, text, uints};
use kvbraid_core::fleet::{Index, Options, PodSpec};
use kvbraid_core::secret::Secret;

/// Numbers below `end` from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn some(&mut self, end: u64, most: u64) -> Vec<u64> {
        (0..=self.below(most)).map(|_| self.below(end)).collect()
    }

    /// A sparse store, or a dense one where it lists as many hashes as it has tokens.
    fn store(&mut self) -> Value {
        let hashes = self.some(5, 4);
        let tokens: Vec<u64> = (0..hashes.len() as u64 + self.below(4))
            .map(|_| self.below(2))
            .collect();
        let parent = match self.below(3) {
            0 => Value::Uint(self.below(5)),
            _ => Value::Nil,
        };
        map(&[
            ("type", text("BlockStored")),
            ("block_hashes", uints(&hashes)),
            ("parent_block_hash", parent),
            ("token_ids", uints(&tokens)),
            ("block_size", Value::Uint(1)),
        ])
    }
}

#[test]
fn a_hash_that_a_store_lists_twice_leaves_every_structure_sound() {
    for seed in 0..2_000 {
        let mut draw = Draw(seed);
        let mut index = Index::new(Options::new(Secret::new([7; 32])));
        let spec = PodSpec {
            model: "m".to_owned(),
            dp_size: 1,
            ..PodSpec::default()
        };
        index.register("a", spec).expect("a pod");
        for _ in 0..6 {
            index
                .apply("a", 0, &batch(&[draw.store()]))
                .expect("a known pod");
            index.check_integrity();
        }
    }
}
