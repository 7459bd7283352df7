//! What is undecided costs work in proportion to what told of it: effort is counted, not timed.

mod encoder;

use encoder::{Value, batch, map, text, uints};
use kvbraid_core::fleet::{Applied, Index, Options, PodSpec, RankInfo};
use kvbraid_core::secret::Secret;

const POD: &str = "a";

/// An index that follows one pod of one full-attention group that its events tell.
fn index(options: Options) -> Index {
    let mut index = Index::new(options);
    let spec = PodSpec {
        model: "m".to_owned(),
        dp_size: 1,
        ..PodSpec::default()
    };
    index.register(POD, spec).expect("a pod");
    index
}

/// A store of hashes whose blocks have one token each.
fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u64]) -> Value {
    map(&[
        ("type", text("BlockStored")),
        ("block_hashes", uints(hashes)),
        ("parent_block_hash", parent.map_or(Value::Nil, Value::Uint)),
        ("token_ids", uints(tokens)),
        ("block_size", Value::Uint(1)),
    ])
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

#[test]
fn a_batch_that_asks_for_too_much_makes_the_rank_forget_what_is_undecided() {
    let mut index = index(Options::new(Secret::new([7; 32])));
    apply(&mut index, &sparse_store_and_its_halves(4000));
    assert!(refused(&index, "too_much_undecided") > 0);
}
