//! What is guessed of groups that no event tells of costs work in proportion to what was told: effort
//! is counted, not timed.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod encoder;

use asking::{index_of, options, pod, request};
use encoder::{Value, batch, remove, store, text};
use kvbraid_core::fleet::{
    GroupOfModel, Index, PodConfig, PodSpec, Publisher, Row, SLICE, SilentPools,
};
use kvbraid_core::spec::SpecKind;

const POD: &str = "a";
/// The pages before a store that one of its own pages pays for.
const PER_PAGE: u64 = 64;
/// What a rank may do beyond that.
const KEPT: u64 = 1 << 17;

fn index(window: Option<u32>, silent: SilentPools) -> Index {
    let group = GroupOfModel {
        kind: window.map_or(SpecKind::Mamba, |_| SpecKind::SlidingWindow),
        window,
        grid: 1,
    };
    let mut index = index_of(options(), &[]);
    let config = PodConfig {
        publisher: Publisher::Sglang,
        silent_groups: Some(vec![group]),
        silent,
        ..PodConfig::default()
    };
    index.register(POD, PodSpec { config, ..pod() }).unwrap();
    index
}

/// A store of pages of one token each.
fn stored(hashes: &[u32], parent: Option<u32>) -> Value {
    let medium = [("medium", text("GPU"))];
    store(hashes, parent.map(u64::from), hashes, 1, &medium)
}

/// The pod's row for a prompt.
fn ask(index: &mut Index, tokens: &[u32]) -> Row {
    index.score(&request(tokens)).unwrap().rows.remove(0)
}

/// Stores a chain of this many pages, hashes 1 and on.
fn chain(index: &mut Index, pages: u32) -> u64 {
    let hashes: Vec<u32> = (1..=pages).collect();
    let mut effort = 0;
    for hashes in hashes.chunks(8192) {
        let parent = Some(hashes[0] - 1).filter(|parent| *parent > 0);
        let applied = index.apply(POD, 0, &batch(&[stored(hashes, parent)]));
        effort += applied.unwrap().effort;
    }
    effort
}

/// Stores of one page each after the same one, in one batch. Returns the effort and the slices.
fn leaves(index: &mut Index, parent: u32, leaves: u32) -> (u64, u64) {
    let events = (0..leaves).map(|i| stored(&[1_000_000 + i], Some(parent)));
    let mut intake = index.take_intake();
    intake.read(&batch(&events.collect::<Vec<_>>()));
    let mut slices = 1;
    while !index.advance(POD, 0, &mut intake, SLICE).unwrap() {
        slices += 1;
    }
    let effort = intake.applied().effort;
    index.give_back(intake);
    index.check_integrity();
    (effort, slices)
}

/// Many stores after one page cost what they pay for, in slices; the rest is left out and counted.
fn check_that_leaves_pay(index: &mut Index, parent: u32) {
    let (effort, slices) = leaves(index, parent, 4000);
    assert!(effort > KEPT, "{effort}");
    assert!(effort <= 4000 * (PER_PAGE + 1) + KEPT, "{effort}");
    assert!(slices >= effort / (2 * SLICE as u64), "{slices}");
    assert!(cut_short(index) > 0);
}

fn cut_short(index: &Index) -> u64 {
    let info = index.pods().remove(0);
    info.refused.get("long_silent_walk").copied().unwrap_or(0)
}

#[test]
fn a_window_behind_a_page_costs_what_stores_after_it_pay_for() {
    let mut index = index(Some(4097), SilentPools::default());
    chain(&mut index, 4096);
    assert_eq!(cut_short(&index), 0);
    check_that_leaves_pay(&mut index, 4096);
}

#[test]
fn chunks_that_are_shorter_than_the_window_mark_each_page_once() {
    for chunk in [1, 8, 2048] {
        let pools = SilentPools {
            chunked_prefill: Some(chunk),
            ..SilentPools::default()
        };
        let mut index = index(Some(8193), pools);
        let effort = chain(&mut index, 16384);
        assert!((16384..8 * 16384).contains(&effort), "{chunk}: {effort}");
        assert_eq!(cut_short(&index), 0);
    }
}

#[test]
fn a_pool_of_almost_no_slots_makes_no_store_walk_a_whole_chain() {
    let pools = SilentPools {
        chunked_prefill: Some(64),
        state_slots: Some(2),
        ..SilentPools::default()
    };
    let mut index = index(None, pools);
    chain(&mut index, 32768);
    check_that_leaves_pay(&mut index, 20_000);
}

#[test]
fn what_was_cut_short_leaves_the_bounds_as_wide_as_they_are() {
    let mut index = index(Some(4097), SilentPools::default());
    chain(&mut index, 4096);
    leaves(&mut index, 4096, 4000);
    let tokens: Vec<u32> = (1..=4096).chain([1_000_005, 1]).collect();
    let row = ask(&mut index, &tokens);
    assert!(row.bounds.lower <= row.expected && row.expected <= row.bounds.upper);
    assert_eq!(row.bounds.upper, 4097);
}

#[test]
fn a_request_that_waits_for_its_pages_has_each_of_them_looked_for_once() {
    let pages = 2000;
    let mut index = index(Some(129), SilentPools::default());
    chain(&mut index, pages);
    let tokens: Vec<u32> = (1..=pages + 101).collect();
    index.routed(POD, 0, &request(&tokens), &[]).unwrap();
    let mut efforts = vec![];
    for _ in 0..100 {
        let removal = remove(&[999_999_u32], &[]);
        efforts.push(index.apply(POD, 0, &batch(&[removal])).unwrap().effort);
    }
    assert_eq!(efforts, [1; 100]);
    let one_by_one = (pages + 1..pages + 100).map(|hash| {
        let store = stored(&[hash], Some(hash - 1));
        index.apply(POD, 0, &batch(&[store])).unwrap().effort
    });
    assert_eq!(one_by_one.collect::<Vec<_>>(), [2; 99]);
    assert_eq!(ask(&mut index, &tokens).expected, pages);
    let last = stored(&[pages + 100], Some(pages + 99));
    let last = index.apply(POD, 0, &batch(&[last])).unwrap().effort;
    assert!(last > u64::from(pages), "{last}: its marks are left");
    assert_eq!(ask(&mut index, &tokens).expected, pages + 100);
}

/// A request that is noted when its first page is there, and then its other pages but the last.
fn waits_for(index: &mut Index, pages: u32) -> Vec<u32> {
    chain(index, 1);
    let tokens: Vec<u32> = (1..=pages).chain([1]).collect();
    index.routed(POD, 0, &request(&tokens), &[]).unwrap();
    chain(index, pages - 1);
    tokens
}

#[test]
fn the_marks_that_a_long_request_leaves_with_a_batch_are_shown_in_slices() {
    let pages = 60_000;
    let mut index = index(
        Some(129),
        SilentPools {
            chunked_prefill: Some(64),
            ..SilentPools::default()
        },
    );
    let tokens = waits_for(&mut index, pages);
    let mut intake = index.take_intake();
    intake.read(&batch(&[stored(&[pages], Some(pages - 1))]));
    let mut slices = 1;
    while !index.advance(POD, 0, &mut intake, SLICE).unwrap() {
        index.check_integrity();
        let row = ask(&mut index, &tokens);
        assert!(row.bounds.lower <= row.expected && row.expected <= row.bounds.upper);
        slices += 1;
    }
    index.give_back(intake);
    assert!(slices > pages as usize / SLICE, "{slices}");
    let row = ask(&mut index, &tokens);
    assert_eq!(row.expected, pages);
}

#[test]
fn a_request_is_noted_in_parts() {
    let pages = 60_000;
    let mut index = index(Some(129), SilentPools::default());
    chain(&mut index, pages);
    let tokens: Vec<u32> = (1..=pages).chain([1]).collect();
    let mut parts = 1;
    while !index.begin_routed(POD, 0, "m", SLICE).unwrap() {
        parts += 1;
    }
    assert!(parts > pages as usize / SLICE, "{parts}: the keys of pages");
    index.note_routed(POD, 0, &request(&tokens), &[]).unwrap();
    while !index.end_routed(POD, 0, 16).unwrap() {}
    index.check_integrity();
    assert_eq!(ask(&mut index, &tokens).expected, pages);
    assert!(index.begin_routed(POD, 0, "another", SLICE).is_err());
}

#[test]
fn of_a_request_with_more_pages_than_are_followed_the_first_ones_are() {
    let most = 1 << 17;
    let mut index = index(Some(129), SilentPools::default());
    let tokens = waits_for(&mut index, most + 5000);
    assert_eq!(cut_short(&index), 1);
    let row = ask(&mut index, &tokens);
    assert_eq!((row.expected, row.bounds.upper), (most, most + 4999));
    assert_eq!(row.bounds.lower, 0);
}
