//! Snapshots: a question while one is written, and content that contradicts itself.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod encoder;
mod reseal;

use asking::{index_of, options, pod, request};
use encoder::{batch, full_group, remove, store, text};
use kvbraid_core::fleet::{GroupOfModel, Index, PodConfig, PodSpec, Publisher, Saving, load, save};
use kvbraid_core::hash::{ChainSpec, HashAlgo, chain_keys, none_hash};
use kvbraid_core::spec::SpecKind;
use reseal::reseal;

const POD: &str = "a";
const SECRET: [u8; 32] = [7; 32];
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

/// An engine with windows of three tokens, of which no event tells.
fn silent() -> PodSpec {
    let window = GroupOfModel {
        kind: SpecKind::SlidingWindow,
        window: Some(3),
        grid: 1,
    };
    PodSpec {
        config: PodConfig {
            publisher: Publisher::Sglang,
            silent_groups: Some(vec![window]),
            ..PodConfig::default()
        },
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

/// What a pod says after a change of its snapshot, at the only place that has these bytes.
fn changed(saved: &[u8], from: &[u8], to: &[u8]) -> Result<String, String> {
    let places = saved.windows(from.len()).enumerate();
    let places: Vec<usize> = places
        .filter(|(_, at)| *at == from)
        .map(|(at, _)| at)
        .collect();
    let [at] = places[..] else {
        panic!("{from:?} at {places:?}");
    };
    let in_text = reseal::text(saved).contains(&at);
    let mut bytes = [&saved[..at], to, &saved[at + from.len()..]].concat();
    if in_text {
        let length = reseal::text(saved).len() + to.len() - from.len();
        let start = reseal::body(saved).start;
        bytes[start..start + 8].copy_from_slice(&(length as u64).to_le_bytes());
    }
    reseal(SECRET, &mut bytes);
    let mut index = index(silent());
    let loaded = load(&mut index, POD, &bytes).map_err(|error| error.to_string());
    index.check_integrity();
    let next = store(&[4_u32], Some(3), &[9_u32], 1, &[("medium", text("GPU"))]);
    index.apply(POD, 0, &batch(&[next])).unwrap();
    index.check_integrity();
    loaded
}

fn of_three_pages() -> Vec<u8> {
    let mut index = index(silent());
    let medium = [("medium", text("GPU"))];
    let stored = store(&[1_u32, 2, 3], None, &TOKENS[..3], 1, &medium);
    let removed = remove(&[1_u32], &medium);
    index.apply(POD, 0, &batch(&[stored, removed])).unwrap();
    save(&mut index, POD, "").unwrap().seal().unwrap()
}

#[test]
fn a_mark_whose_copy_is_about_to_go_is_refused() {
    let (saved, unshown) = (of_three_pages(), br#""unshown":[[]]"#);
    let goes = changed(&saved, unshown, br#""unshown":[[[3,true],[3,false]]]"#);
    assert!(goes.unwrap_err().contains("cannot be"));
    let comes = changed(&saved, unshown, br#""unshown":[[[3,false],[3,true]]]"#);
    assert_eq!(comes.as_deref(), Ok(""));
}

#[test]
fn what_a_store_marks_is_shown_after_what_was_left_to_show() {
    let (saved, unshown) = (of_three_pages(), br#""unshown":[[]]"#);
    let of_next = changed(&saved, unshown, br#""unshown":[[[4,false]]]"#);
    assert_eq!(of_next.as_deref(), Ok(""));
}

#[test]
fn a_page_whose_hash_nothing_else_knows_is_never_marked() {
    // Three pages, each after the one before; the first is not held. Then it is, and has no slot.
    let (pages, unknown) = (
        [9, 0, 1, 15, 15],
        [3, 77, 0, 0, 0, 0, 0, 0, 0, 0, 1, 23, 1, 15],
    );
    let held = changed(&of_three_pages(), &pages, &unknown);
    assert_eq!(held.as_deref(), Ok(""));
}

#[test]
fn a_part_of_the_pages_that_ends_before_it_begins_is_refused() {
    let unkeyed = br#""unkeyed":{"start":0,"end":0}"#;
    let turned = changed(
        &of_three_pages(),
        unkeyed,
        br#""unkeyed":{"start":2,"end":1}"#,
    );
    assert!(turned.unwrap_err().contains("cannot be"));
}
