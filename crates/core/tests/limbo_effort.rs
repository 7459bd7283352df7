//! What is undecided costs work in proportion to what told of it: effort is counted, not timed.

mod asking;
mod encoder;

use asking::{index_of, options, request};
use encoder::{Value, batch, clear, full_group, remove, store};
use kvbraid_core::fleet::{Applied, Index, Options, RankInfo};

const POD: &str = "a";

/// An index that follows one pod of one full-attention group that its events tell.
fn index(options: Options) -> Index {
    index_of(options, &[POD])
}

/// A store of hashes whose blocks have one token each.
fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u64]) -> Value {
    store(hashes, parent, tokens, 1, &full_group())
}

/// What each batch did; the index is sound after each.
fn apply(index: &mut Index, batches: &[Vec<Value>]) -> Vec<Applied> {
    batches
        .iter()
        .map(|events| {
            let applied = index.apply(POD, 0, &batch(events)).expect("a known pod");
            index.check_integrity();
            applied
        })
        .collect()
}

fn info(index: &Index) -> RankInfo {
    index.pods().remove(0)
}

fn refused(index: &Index, reason: &str) -> u64 {
    info(index).refused.get(reason).copied().unwrap_or(0)
}

fn numbers(end: usize) -> Vec<u64> {
    (0..end as u64).collect()
}

/// Hashes 1..=n in 2n blocks, then every second one, then the others.
fn sparse_store_and_its_halves(n: usize) -> Vec<Vec<Value>> {
    let (hashes, tokens) = (numbers(n + 1)[1..].to_vec(), numbers(2 * n));
    let half = |first: usize| -> Vec<u64> { hashes[first..].iter().copied().step_by(2).collect() };
    vec![
        vec![stored(&hashes, None, &tokens)],
        vec![stored(&half(0), None, &tokens)],
        vec![stored(&half(1), None, &tokens)],
    ]
}

/// A prompt told backwards, block by block.
fn chain_told_backwards(n: usize) -> Vec<Vec<Value>> {
    let parent = |hash: u64| (hash < n as u64).then_some(hash + 1);
    let events = (1..=n as u64).map(|hash| stored(&[hash], parent(hash), &[hash % 1000]));
    vec![events.collect()]
}

/// Children of unknown parents, then one store that names all of these.
fn parents_after_their_children(n: usize) -> Vec<Vec<Value>> {
    let parents = numbers(n + 1)[1..].to_vec();
    let children = parents
        .iter()
        .map(|&p| stored(&[p + (1 << 40)], Some(p), &[7]));
    vec![
        children.collect(),
        vec![stored(&parents, None, &numbers(n))],
    ]
}

/// The same, with the parents below a hash that only then is told.
fn parents_in_a_trie_after_their_children(n: usize) -> Vec<Vec<Value>> {
    let root = 1 << 50;
    let [children, mut parents] = <[_; 2]>::try_from(parents_after_their_children(n)).expect("two");
    parents[0] = stored(&numbers(n + 1)[1..], Some(root), &numbers(n));
    vec![children, parents, vec![stored(&[root], None, &[3])]]
}

/// Tries below unknown hashes, all with one first token.
fn tries_of_one_first_token(n: usize) -> Vec<Vec<Value>> {
    let events = (0..n as u64).map(|i| stored(&[i + 1], Some(i + (1 << 40)), &[7]));
    vec![events.collect()]
}

/// Two root stores of one hash in two blocks, in turn.
fn two_sparse_stores_in_turn(n: usize) -> Vec<Vec<Value>> {
    let pair = [stored(&[1], None, &[7, 8]), stored(&[2], None, &[7, 9])];
    vec![pair.into_iter().cycle().take(n).collect()]
}

/// One hash in many stores of two blocks, of which the second differs.
fn one_hash_in_many_sparse_stores(n: usize) -> Vec<Vec<Value>> {
    let events = (0..n as u64).map(|i| stored(&[1], None, &[7, i + 10]));
    vec![events.collect()]
}

/// Pairs of hashes, each overlapping the one before it, in the same eight blocks.
fn overlapping_sparse_stores(n: usize) -> Vec<Vec<Value>> {
    let tokens = numbers(8);
    let events = (1..n as u64).map(|i| stored(&[i, i + 1], None, &tokens));
    vec![events.collect()]
}

/// The same below unknown parents.
fn overlapping_floating_stores(n: usize) -> Vec<Vec<Value>> {
    let tokens = numbers(8);
    let events = (1..n as u64).map(|i| stored(&[i, i + 1], Some(i + (1 << 40)), &tokens));
    vec![events.collect()]
}

/// States of every sixteenth block at most, then all but the first again, with one more.
fn shifted_states(n: usize) -> Vec<Vec<Value>> {
    let hashes = numbers(n + 2);
    vec![
        vec![stored(&hashes[1..=n], None, &numbers(16 * n))],
        vec![stored(&hashes[2..], None, &numbers(16 * n + 16))],
    ]
}

/// Windows of 256 blocks, each half over the one before it, of a prompt that grows.
fn windows_of_a_growing_prompt(n: usize) -> Vec<Vec<Value>> {
    let events = (0..n).map(|k| {
        let end = 2048 + 128 * k;
        let hashes = numbers(end);
        stored(&hashes[end - 256..], None, &numbers(end))
    });
    events.map(|event| vec![event]).collect()
}

type Rows = fn(usize) -> Vec<Vec<Value>>;

/// What bad input, or a pod that lost history, can tell; and how much of it.
const ROWS: [(&str, Rows, usize); 10] = [
    ("sparse halves", sparse_store_and_its_halves, 500),
    ("a chain backwards", chain_told_backwards, 2000),
    ("late parents", parents_after_their_children, 2000),
    ("late trie", parents_in_a_trie_after_their_children, 2000),
    ("one first token", tries_of_one_first_token, 2000),
    ("two in turn", two_sparse_stores_in_turn, 1000),
    ("one hash in many", one_hash_in_many_sparse_stores, 1000),
    ("overlapping sparse", overlapping_sparse_stores, 1000),
    ("overlapping floating", overlapping_floating_stores, 1000),
    ("shifted states", shifted_states, 200),
];

/// Refuses more than two and a half times the effort for twice as much.
fn check_linear(name: &str, [once, twice]: [u64; 2]) {
    assert!(twice <= once * 5 / 2, "{name}: {once} units, then {twice}");
}

fn effort(batches: &[Vec<Value>]) -> u64 {
    let mut index = index(options());
    let effort = apply(&mut index, batches).iter().map(|a| a.effort).sum();
    assert_eq!(refused(&index, "too_much_undecided"), 0);
    effort
}

#[test]
fn twice_as_much_that_is_undecided_costs_twice_the_effort() {
    for (name, row, n) in ROWS {
        let efforts = [n, 2 * n].map(|n| effort(&row(n)));
        assert!(efforts[0] > n as u64 / 2, "{name}: {efforts:?} for {n}");
        check_linear(name, efforts);
    }
}

#[test]
fn windows_that_overlap_cost_what_they_list() {
    let efforts = [16, 32].map(|n| effort(&windows_of_a_growing_prompt(n)));
    check_linear("windows of a growing prompt", efforts);
}

#[test]
fn a_span_is_looked_at_again_only_where_another_excludes_what_it_allows() {
    // Half of the hashes, in the blocks of all of them, have more room than the first store leaves.
    let n = 1000;
    let mut index = index(options());
    let batches = apply(&mut index, &sparse_store_and_its_halves(n));
    for (half, applied) in batches[1..].iter().enumerate() {
        assert!(
            applied.effort <= 8 * n as u64 / 2,
            "half {half}: {} units for {} hashes",
            applied.effort,
            n / 2
        );
    }
}

/// The most units that one of three scores takes, as the first may place what is undecided; and how
/// many of them were cut short.
fn effort_of_answers(batches: &[Vec<Value>], tokens: &[u64]) -> (u64, u64) {
    let mut index = index(options());
    apply(&mut index, batches);
    let tokens: Vec<u32> = (tokens.iter())
        .map(|&token| token.try_into().expect("a token"))
        .collect();
    let request = request(&tokens);
    let efforts = (0..3).map(|_| {
        let answer = index.score(&request).expect("a known model");
        index.check_integrity();
        answer.effort
    });
    let most = efforts.max().unwrap_or(0);
    (most, refused(&index, "answer_cut_short"))
}

/// Members of a trie below an unknown hash, all of one token.
fn floating_trie(n: usize) -> Vec<Vec<Value>> {
    let hashes = numbers(n + 1);
    vec![vec![stored(&hashes[1..], Some(1 << 40), &vec![7; n])]]
}

#[test]
fn a_score_of_twice_as_much_that_is_undecided_costs_twice_the_effort() {
    let windows: Rows = windows_of_a_growing_prompt;
    let rows: [(&str, Rows, usize, usize); 3] = [
        ("sparse halves", sparse_store_and_its_halves, 500, 2 * 500),
        ("shifted states", shifted_states, 200, 16 * 200),
        ("a growing prompt", windows, 8, 2048 + 128 * 7),
    ];
    for (name, row, n, num_tokens) in rows {
        let effort = |times: usize| {
            let prompt = numbers(times * num_tokens);
            let (effort, cut_short) = effort_of_answers(&row(times * n), &prompt);
            assert_eq!(cut_short, 0, "{name}");
            effort
        };
        let efforts = [1, 2].map(effort);
        assert!(efforts[0] > n as u64 / 2, "{name}: {efforts:?} for {n}");
        check_linear(name, efforts);
    }
}

#[test]
fn a_score_costs_what_is_undecided_along_it_however_long_the_prompt_is() {
    let batches = [vec![stored(&[1, 2, 3], None, &numbers(16))]];
    let efforts = [100, 10_000].map(|n| effort_of_answers(&batches, &numbers(n)).0);
    assert!(efforts[0] > 16, "{efforts:?}");
    assert_eq!(efforts[0], efforts[1]);
}

#[test]
fn a_score_that_may_look_at_more_than_its_share_stops_there() {
    // Every member may stand after each of the prompt's tokens.
    let num_tokens = 20_000;
    let (effort, cut_short) = effort_of_answers(&floating_trie(1000), &vec![7; num_tokens]);
    assert_eq!(cut_short, 3);
    assert!(effort > num_tokens as u64, "{effort} units");
    assert!(effort <= num_tokens as u64 + (1 << 16), "{effort} units");
}

#[test]
fn clears_of_what_nobody_holds_look_at_no_name() {
    let num_names = 2000;
    let known = vec![stored(&numbers(num_names), None, &numbers(num_names))];
    let mut index = index(options());
    let clears = [1, 1, 1000].map(|n| vec![clear(); n]);
    let applied = apply(&mut index, &[vec![known], clears.to_vec()].concat());
    let efforts: Vec<u64> = applied.iter().map(|a| a.effort).collect();
    assert!(efforts[1] >= num_names as u64, "{efforts:?}");
    assert_eq!(efforts[2..], [0, 0]);
    assert_eq!(info(&index).blocks, num_names, "the names are kept");
}

#[test]
fn clears_after_a_store_look_at_what_it_stored_once() {
    let effort = |num_names: usize, num_clears: usize| {
        let mut events = vec![stored(&numbers(num_names), None, &numbers(num_names))];
        events.extend(vec![clear(); num_clears]);
        apply(&mut index(options()), &[events])[0].effort
    };
    let [once, again, twice] = [effort(1000, 1), effort(1000, 100), effort(2000, 100)];
    assert!(once >= 1000, "{once}");
    assert_eq!(again, once);
    check_linear("clears", [once, twice]);
}

/// Tries of one first token in batches of 100, with a limit that some of these pass; what each batch
/// took, at most, and how often everything was forgotten.
fn evictions(n: usize) -> (u64, u64) {
    let mut index = index(Options {
        limbo_limit_bytes: n * 400,
        ..options()
    });
    let mut batches = tries_of_one_first_token(4 * n);
    let batches: Vec<Vec<Value>> = batches.remove(0).chunks(100).map(<[_]>::to_vec).collect();
    let efforts = apply(&mut index, &batches);
    let most = efforts.iter().map(|a| a.effort).max();
    (most.unwrap_or(0), refused(&index, "forgotten_undecided"))
}

#[test]
fn forgetting_what_is_undecided_looks_at_each_of_it_once() {
    let [(once, times), (twice, times_again)] = [500, 1000].map(evictions);
    assert!(times > 1 && times_again > 1, "{times}, {times_again}");
    assert!(once > 250, "{once}");
    check_linear("evictions", [once, twice]);
}

/// One hash in many stores of three blocks, of which the last differs: all say the same, and each is
/// compared with every other.
fn one_hash_among_two_blocks(n: usize) -> Vec<Vec<Value>> {
    let events = (0..n as u64).map(|i| stored(&[1, i + 100], None, &[7, 8, i + 10]));
    vec![events.collect()]
}

#[test]
fn a_batch_that_asks_for_too_much_makes_the_rank_forget_what_is_undecided() {
    let mut index = index(options());
    let few = apply(&mut index, &one_hash_among_two_blocks(100));
    assert_eq!(refused(&index, "too_much_undecided"), 0);
    assert!(info(&index).unplaced > 0);
    let many = apply(&mut index, &one_hash_among_two_blocks(4000));
    assert_eq!(refused(&index, "too_much_undecided"), 1);
    assert_eq!(info(&index).unplaced, 0);
    assert!(many[0].effort < 600_000, "{} units", many[0].effort);
    assert!(few[0].effort < 100_000, "{} units", few[0].effort);
}

/// Hashes without tokens: nothing is known of where they stand.
fn hashes_alone(first: u64, n: u64) -> Vec<Value> {
    let hashes: Vec<u64> = (first..first + n).collect();
    vec![store::<_, u64>(&hashes, None, &[], 0, &[])]
}

/// The most bytes that an index has while 100 batches of 2 000 hashes alone come in.
fn most_bytes(options: Options) -> (usize, u64) {
    let mut index = index(options);
    let most = (0..100).map(|batch| {
        apply(&mut index, &[hashes_alone(batch * 2000, 2000)]);
        index.bytes()
    });
    (
        most.max().unwrap_or(0),
        refused(&index, "forgotten_undecided"),
    )
}

#[test]
fn what_is_undecided_is_bounded_after_every_batch() {
    let (unbounded, never) = most_bytes(options());
    let (bounded, forgotten) = most_bytes(Options {
        limbo_limit_bytes: 2 << 20,
        ..options()
    });
    assert_eq!(never, 0);
    assert!(forgotten >= 5, "{forgotten}");
    assert!(unbounded > 20 << 20, "{unbounded}");
    // Beside limbo itself: names, and what one batch adds.
    assert!(bounded < 6 << 20, "{bounded}");
}

#[test]
fn the_memory_limit_bounds_what_is_undecided_too() {
    let (bounded, forgotten) = most_bytes(Options {
        memory_limit_bytes: 4 << 20,
        ..options()
    });
    assert!(forgotten >= 5, "{forgotten}");
    assert!(bounded < 6 << 20, "{bounded}");
}

/// What an index holds after so many rounds of stores below unknown hashes, most of which go again.
fn bytes_after_coming_and_going(rounds: u64) -> usize {
    let mut index = index(options());
    for round in 0..rounds {
        let first = round * 1000 + 1;
        let hashes: Vec<u64> = (first..first + 1000).collect();
        let stores = hashes
            .iter()
            .map(|&hash| stored(&[hash], Some(hash + (1 << 40)), &[7]));
        let gone: Vec<u64> = hashes
            .iter()
            .copied()
            .filter(|hash| hash % 8192 > 64)
            .collect();
        apply(&mut index, &[stores.collect(), vec![remove(&gone, &[])]]);
    }
    assert_eq!(refused(&index, "forgotten_undecided"), 0);
    index.bytes()
}

#[test]
fn what_comes_and_goes_undecided_takes_the_memory_of_what_stays() {
    let (few, many) = (
        bytes_after_coming_and_going(10),
        bytes_after_coming_and_going(60),
    );
    assert!(many < 2 * few, "{few} bytes, then {many}");
}

#[test]
fn a_sparse_store_longer_than_any_prompt_is_taken_in_slice_by_slice_as_hashes_alone() {
    let payload = |num_hashes: usize| {
        let (hashes, tokens) = (numbers(num_hashes + 1), numbers(2 * num_hashes));
        batch(&[stored(&hashes[1..], None, &tokens)])
    };
    for (num_hashes, is_long) in [(131_072, false), (131_073, true)] {
        let mut index = index(options());
        let mut intake = index.take_intake();
        intake.read(&payload(num_hashes));
        let is_in = index
            .advance(POD, 0, &mut intake, 1000)
            .expect("a known pod");
        assert!(!is_in);
        let after_one_slice = info(&index).blocks;
        assert_eq!(after_one_slice < num_hashes, is_long, "{after_one_slice}");
        while !index
            .advance(POD, 0, &mut intake, 8192)
            .expect("a known pod")
        {}
        index.give_back(intake);
        index.check_integrity();
        assert_eq!(refused(&index, "long_sparse_store"), u64::from(is_long));
    }
}

#[test]
fn what_is_undecided_and_too_much_goes_slice_by_slice() {
    let mut index = index(Options {
        limbo_limit_bytes: 1 << 20,
        ..options()
    });
    let mut intake = index.take_intake();
    intake.read(&batch(&hashes_alone(1, 20_000)));
    let mut blocks = vec![];
    while !index
        .advance(POD, 0, &mut intake, 1000)
        .expect("a known pod")
    {
        index.check_integrity();
        blocks.push(info(&index).blocks);
    }
    index.give_back(intake);
    index.check_integrity();
    assert_eq!(refused(&index, "forgotten_undecided"), 1);
    assert!(blocks.contains(&19_999), "{blocks:?}");
    assert_eq!(info(&index).blocks, 0);
    assert!(
        blocks.windows(2).all(|pair| pair[0] <= pair[1] + 1000),
        "{blocks:?}"
    );
}
