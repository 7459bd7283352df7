//! What a request is told while a long batch is taken in slice by slice.
//!
//! No thread and no clock: `Index::advance` stops after each slice, and the test asks there.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod encoder;

use asking::request;
use encoder::{Value, batch, map, text, uints};
use kvbraid_core::fleet::{Index, Options, PodSpec, RankInfo, Row, State};
use kvbraid_core::secret::Secret;

const BLOCK: u32 = 2;
const PROMPT_BLOCKS: u32 = 40;
const LONG: u32 = 32;

fn prompt() -> Vec<u32> {
    (0..PROMPT_BLOCKS * BLOCK).collect()
}

fn store(blocks: u32) -> Value {
    map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&(1..=blocks).collect::<Vec<u32>>())),
        ("parent_block_hash", Value::Nil),
        ("token_ids", uints(&prompt()[..(blocks * BLOCK) as usize])),
        ("block_size", Value::Uint(BLOCK.into())),
        ("kv_cache_spec_kind", text("full_attention")),
        ("group_idx", Value::Uint(0)),
    ])
}

fn remove(hashes: &[u32]) -> Value {
    map(&[
        ("type", text("BlockRemoved")),
        ("block_hashes", uints(hashes)),
        ("group_idx", Value::Uint(0)),
    ])
}

fn clear() -> Value {
    map(&[("type", text("AllBlocksCleared"))])
}

fn fleet() -> Index {
    let mut index = Index::new(Options::new(Secret::new([7; 32])));
    for (pod, blocks) in [("long", 4), ("other", 5)] {
        let spec = PodSpec {
            model: "m".to_owned(),
            dp_size: 1,
            ..PodSpec::default()
        };
        index.register(pod, spec).unwrap();
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
    let below = |parent: u32, first: u32, count: u32| {
        let from = (first - 1) * BLOCK;
        let tokens = &prompt()[from as usize..(from + count * BLOCK) as usize];
        map(&[
            ("type", text("BlockStored")),
            (
                "block_hashes",
                uints(&(first..first + count).collect::<Vec<u32>>()),
            ),
            ("parent_block_hash", Value::Uint(parent.into())),
            ("token_ids", uints(tokens)),
            ("block_size", Value::Uint(BLOCK.into())),
            ("kv_cache_spec_kind", text("full_attention")),
            ("group_idx", Value::Uint(0)),
        ])
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
    let larger = map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&[100u32])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", uints(&prompt()[..2 * BLOCK as usize])),
        ("block_size", Value::Uint((2 * BLOCK).into())),
        ("kv_cache_spec_kind", text("full_attention")),
        ("group_idx", Value::Uint(0)),
    ]);
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
    let on_cpu = map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&[1u32, 2])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", uints(&prompt()[..2 * BLOCK as usize])),
        ("block_size", Value::Uint(BLOCK.into())),
        ("kv_cache_spec_kind", text("full_attention")),
        ("group_idx", Value::Uint(0)),
        ("medium", text("CPU")),
    ]);
    let twin = map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&[200u32, 201, 202, 203])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", uints(&prompt()[..4 * BLOCK as usize])),
        ("block_size", Value::Uint(BLOCK.into())),
        ("kv_cache_spec_kind", text("full_attention")),
        ("group_idx", Value::Uint(0)),
    ]);
    // Second copies, two hashes at each of four boundaries, and enough blocks for their bits to go plane by plane.
    let events = [store(LONG), on_cpu, store(3), twin];
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
    let undecided = map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&[900_u32, 901])),
        ("parent_block_hash", Value::Uint(899)),
        ("token_ids", uints(&[7_u32; 4])),
        ("block_size", Value::Uint(BLOCK.into())),
    ]);
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
    for (pod, dp_size) in [("middle", 3), ("a", 2)] {
        let spec = PodSpec {
            model: "m".to_owned(),
            dp_size,
            ..PodSpec::default()
        };
        index.register(pod, spec).unwrap();
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
    let on_cpu = map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(&(1..=LONG).collect::<Vec<u32>>())),
        ("parent_block_hash", Value::Nil),
        ("token_ids", uints(&prompt()[..(LONG * BLOCK) as usize])),
        ("block_size", Value::Uint(BLOCK.into())),
        ("medium", text("CPU")),
        ("kv_cache_spec_kind", text("full_attention")),
        ("group_idx", Value::Uint(0)),
    ]);
    index.apply("long", 0, &batch(&[on_cpu])).unwrap();
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
