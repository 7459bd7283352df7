//! What a request is told while a long batch is taken in slice by slice.
//!
//! No thread and no clock: `Index::advance` stops after each slice, and the test asks there.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod encoder;

use asking::{index_of, options, pod, request};
use encoder::{Value, batch, clear, full_group, text};
use kvbraid_core::fleet::{Index, PodSpec, RankInfo, Row, State};

const BLOCK: u32 = 2;
const PROMPT_BLOCKS: u32 = 40;
const LONG: u32 = 32;

fn prompt() -> Vec<u32> {
    (0..PROMPT_BLOCKS * BLOCK).collect()
}

/// A store of the prompt's first blocks, with these hashes.
fn first_blocks(hashes: &[u32], block: u32, more: &[(&str, Value)]) -> Value {
    let tokens = &prompt()[..hashes.len() * block as usize];
    encoder::store(hashes, None, tokens, block, &[&full_group(), more].concat())
}

fn store(blocks: u32) -> Value {
    first_blocks(&(1..=blocks).collect::<Vec<u32>>(), BLOCK, &[])
}

fn store_on_cpu(blocks: u32) -> Value {
    let hashes: Vec<u32> = (1..=blocks).collect();
    first_blocks(&hashes, BLOCK, &[("medium", text("CPU"))])
}

fn remove(hashes: &[u32]) -> Value {
    encoder::remove(hashes, &[("group_idx", Value::Uint(0))])
}

fn fleet() -> Index {
    let mut index = index_of(options(), &["long", "other"]);
    for (pod, blocks) in [("long", 4), ("other", 5)] {
        index.apply(pod, 0, &batch(&[store(blocks)])).unwrap();
    }
    index
}

/// The rows of `long` and `other`.
fn rows(index: &mut Index) -> [Row; 2] {
    let tokens = prompt();
    let request = request(&tokens);
    let answer = index.score(&request).unwrap();
    let explained = index.explain(&request).unwrap().answer;
    assert_eq!(explained.rows, answer.rows);
    answer.rows.try_into().unwrap()
}

fn tokens(row: &Row) -> (u32, u32) {
    (row.bounds.lower, row.bounds.upper)
}

/// Takes a batch in; the answers at each pause.
fn pauses(index: &mut Index, payload: &[u8], work: usize) -> Vec<[Row; 2]> {
    let mut intake = index.take_intake();
    intake.read(payload);
    let mut pauses = vec![];
    while !index.advance("long", 0, &mut intake, work).unwrap() {
        index.check_integrity();
        pauses.push(rows(index));
    }
    index.give_back(intake);
    index.check_integrity();
    pauses
}

#[test]
fn in_the_middle_of_a_batch_its_rank_answers_with_a_bound_and_others_as_ever() {
    let mut index = fleet();
    let [before, other] = rows(&mut index);
    assert!(before.is_exact() && tokens(&before) == (4 * BLOCK, 4 * BLOCK));
    let events = [
        store(LONG),
        remove(&[9]),
        clear(),
        store(LONG),
        remove(&[LONG]),
    ];
    let pauses = pauses(&mut index, &batch(&events), 4);
    assert!(pauses.len() > 30, "{} pauses", pauses.len());
    for [long, beside] in &pauses {
        assert_eq!(beside, &other);
        assert!(!long.is_exact() && long.state == State::Rebuilding);
        assert_eq!(tokens(long), (0, (PROMPT_BLOCKS - 1) * BLOCK));
    }
    let [after, beside] = rows(&mut index);
    assert_eq!(beside, other);
    assert!(after.is_exact());
    assert_eq!(tokens(&after), ((LONG - 1) * BLOCK, (LONG - 1) * BLOCK));
}

#[test]
fn a_batch_within_one_slice_is_never_half_in() {
    let mut index = fleet();
    assert!(pauses(&mut index, &batch(&[store(LONG)]), 1_000).is_empty());
    assert!(rows(&mut index)[0].is_exact());
}

#[test]
fn a_rank_whose_groups_are_not_known_yet_promises_nothing_either() {
    let mut index = fleet();
    index.reset("long", 0).unwrap();
    for slice in 1..3 {
        let payload = batch(&[remove(&[1; 40]), store(LONG)]);
        let [long, _] = &pauses(&mut index, &payload, slice)[0];
        assert!(!long.is_exact());
        assert_eq!(tokens(long).0, 0);
    }
}

#[test]
fn a_chain_whose_place_is_told_between_two_of_its_slices_goes_on_from_there() {
    // The parent of the chain is named by the chain's own first hash in a later store: what is
    // settled after a slice moves the trie that the rest of the chain was measured in.
    let below = |parent: u64, first: u32, count: u32| {
        let from = (first - 1) * BLOCK;
        let tokens = &prompt()[from as usize..(from + count * BLOCK) as usize];
        let hashes: Vec<u32> = (first..first + count).collect();
        encoder::store(&hashes, Some(parent), tokens, BLOCK, &full_group())
    };
    for work in 1..8 {
        let mut index = fleet();
        index.reset("long", 0).unwrap();
        // Hashes 5 to 20 float below 4; 8 to 24 float below 7, which the first chain names.
        let first = batch(&[below(7, 8, 17)]);
        index.apply("long", 0, &first).unwrap();
        let events = [below(4, 5, 16), store(4), below(24, 25, 8)];
        pauses(&mut index, &batch(&events), work);
        let [long, _] = rows(&mut index);
        assert!(long.is_exact(), "{work} {long:?}");
        assert_eq!(tokens(&long), (LONG * BLOCK, LONG * BLOCK));
    }
}

#[test]
fn a_block_size_that_turns_out_larger_regrades_the_rank_slice_by_slice() {
    let mut index = fleet();
    index.apply("long", 0, &batch(&[store(LONG)])).unwrap();
    let larger = first_blocks(&[100], 2 * BLOCK, &[]);
    let pauses = pauses(&mut index, &batch(&[larger]), 4);
    assert!(pauses.len() >= LONG as usize / 4, "{} pauses", pauses.len());
    assert!(pauses.iter().all(|[long, _]| !long.is_exact()));
    let [long, other] = rows(&mut index);
    assert_eq!(
        tokens(&long),
        (2 * BLOCK, 2 * BLOCK),
        "what was whole is a part"
    );
    assert_eq!(tokens(&other), (5 * BLOCK, 5 * BLOCK));
}

#[test]
fn a_clear_of_many_blocks_leaves_what_other_tiers_hold_in_doubt() {
    let mut index = fleet();
    let twin = first_blocks(&[200, 201, 202, 203], BLOCK, &[]);
    // Second copies, two hashes at each of four boundaries, and enough blocks for their bits to go plane by plane.
    let events = [store(LONG), store_on_cpu(2), store(3), twin];
    index.apply("long", 0, &batch(&events)).unwrap();
    index.apply("long", 0, &batch(&[clear()])).unwrap();
    index.check_integrity();
    let [long, other] = rows(&mut index);
    assert_eq!(tokens(&long), (0, 0));
    let (_, with_cpu) = long.tiers.last().unwrap();
    assert_eq!((with_cpu.lower, with_cpu.upper), (0, 2 * BLOCK));
    assert_eq!(tokens(&other), (5 * BLOCK, 5 * BLOCK));
    index.apply("long", 0, &batch(&[store(LONG)])).unwrap();
    index.check_integrity();
    assert_eq!(tokens(&rows(&mut index)[0]), (LONG * BLOCK, LONG * BLOCK));
}

#[test]
fn what_a_panic_left_of_a_rank_is_forgotten_and_no_other_rank_loses_anything() {
    let mut index = fleet();
    let [_, other] = rows(&mut index);
    // Half of a batch is in, and what is undecided waits for the rest of it.
    let mut intake = index.take_intake();
    let undecided = encoder::store(&[900_u32, 901], Some(899), &[7_u32; 4], BLOCK, &[]);
    intake.read(&batch(&[undecided, store(LONG), clear(), store(LONG)]));
    assert!(!index.advance("long", 0, &mut intake, 8).unwrap());
    index.discard("long", 0).unwrap();
    index.check_integrity();
    let [long, same] = rows(&mut index);
    assert_eq!(tokens(&long), (0, (PROMPT_BLOCKS - 1) * BLOCK));
    assert_eq!(same.bounds, other.bounds);
    // A replay from the start tells it all again.
    index.reset("long", 0).unwrap();
    index
        .apply("long", 0, &batch(&[clear(), store(4)]))
        .unwrap();
    index.check_integrity();
    let [long, _] = rows(&mut index);
    assert_eq!(tokens(&long), (4 * BLOCK, 4 * BLOCK));
    assert!(index.discard("nobody", 0).is_err());
}

#[test]
fn what_is_known_of_all_ranks_can_be_asked_a_few_at_a_time() {
    let mut index = fleet();
    for (name, dp_size) in [("middle", 3), ("a", 2)] {
        index.register(name, PodSpec { dp_size, ..pod() }).unwrap();
    }
    let all = index.pods();
    for most in 1..=8 {
        let mut found = vec![];
        loop {
            let last: Option<(String, u32)> =
                (found.last()).map(|info: &RankInfo| (info.pod.clone(), info.dp_rank));
            let last = last.as_ref().map(|(pod, rank)| (pod.as_str(), *rank));
            let next = index.pods_after(last, most);
            assert!(next.len() <= most);
            if next.is_empty() {
                break;
            }
            found.extend(next);
        }
        assert_eq!(found, all, "{most} at a time");
    }
    // A pod that is gone meanwhile is passed over.
    assert_eq!(index.pods_after(Some(("b", 9)), 1)[0].pod, "long");
}

/// Blocks on the CPU tier of `long`.
fn stored_on_cpu() -> Index {
    let mut index = fleet();
    let payload = batch(&[store_on_cpu(LONG)]);
    index.apply("long", 0, &payload).unwrap();
    index
}

#[test]
fn a_clear_that_makes_doubts_goes_slice_by_slice() {
    let mut index = stored_on_cpu();
    let paused = pauses(&mut index, &batch(&[clear()]), 8);
    assert!(paused.len() >= LONG as usize / 8, "{} pauses", paused.len());
    let [long, other] = rows(&mut index);
    assert_eq!((tokens(&long), tokens(&other)), ((0, 0), (10, 10)));
}

#[test]
fn a_restart_that_makes_doubts_is_prepared_slice_by_slice() {
    let (mut index, mut whole) = (stored_on_cpu(), stored_on_cpu());
    let mut num_pauses = 0;
    while !index.begin_reset("long", 0, 8).unwrap() {
        index.check_integrity();
        let [long, other] = rows(&mut index);
        assert!(!long.is_exact() && tokens(&other) == (10, 10));
        num_pauses += 1;
    }
    assert!(num_pauses >= LONG as usize / 8 - 1, "{num_pauses} pauses");
    index.reset("long", 0).unwrap();
    whole.reset("long", 0).unwrap();
    index.check_integrity();
    assert_eq!(rows(&mut index), rows(&mut whole));
    assert_eq!(index.pods(), whole.pods());
}
