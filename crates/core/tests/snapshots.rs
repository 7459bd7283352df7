//! A snapshot that is written in portions, with a question in between.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod encoder;

use asking::{index_of, options, pod, request};
use encoder::{batch, full_group, store};
use kvbraid_core::fleet::{Index, PodSpec, Saving, load, save};
use kvbraid_core::hash::{ChainSpec, HashAlgo, chain_keys, none_hash};

const POD: &str = "a";
const ALGO: HashAlgo = HashAlgo::Sha256Cbor;
const TOKENS: [u32; 4] = [5, 6, 7, 8];

fn index(spec: PodSpec) -> Index {
    let mut index = index_of(options(), &[]);
    index.register(POD, spec).unwrap();
    index
}

/// An engine whose hash function is known, so that a question places what it asks for.
fn hashing() -> PodSpec {
    PodSpec {
        algo: Some(ALGO),
        ..pod()
    }
}

#[test]
fn what_a_question_places_in_between_is_written_again() {
    let chain = ChainSpec::new(ALGO, none_hash(ALGO, None).unwrap(), 1).unwrap();
    let mut hashes = Vec::new();
    chain_keys(&chain, &TOKENS, &mut hashes);
    let mut index = index(hashing());
    let end = store(
        &hashes[3..],
        Some(hashes[2]),
        &TOKENS[3..],
        1,
        &full_group(),
    );
    let root = store(&hashes[..1], None, &TOKENS[..1], 1, &full_group());
    index.apply(POD, 0, &batch(&[end, root])).unwrap();
    let num_unplaced = |index: &Index| index.pods()[0].unplaced;
    assert!(num_unplaced(&index) > 0);

    let mut saving = Saving::new(&index, POD, "").unwrap();
    assert!(!saving.advance(&mut index, 1));
    index.score(&request(&TOKENS)).unwrap();
    assert_eq!(num_unplaced(&index), 0);
    while !saving.advance(&mut index, 1) {}
    let saved = saving.finish(&index).unwrap().seal().unwrap();

    assert!(saved == save(&mut index, POD, "").unwrap().seal().unwrap());
    let mut other = self::index(hashing());
    assert_eq!(load(&mut other, POD, &saved).as_deref(), Ok(""));
    other.check_integrity();
}
