//! An index above its memory limit forgets what the pod that holds most matched least recently, and
//! nothing of the others. Counted in blocks and bytes, never in time.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod choices;
mod encoder;

use asking::{index_of, options, request};
use choices::{Choices, Numbers};
use encoder::{Value, batch, clear, full_group, text};
use kvbraid_core::fleet::{Index, Options, RankInfo, Row, ScoreRequest};

const CHAIN: u64 = 64;

fn fleet(limit: usize, pods: &[&str]) -> Index {
    let options = Options {
        memory_limit_bytes: limit,
        ..options()
    };
    index_of(options, pods)
}

fn tokens_of(chain: u64) -> Vec<u64> {
    (chain * CHAIN..(chain + 1) * CHAIN).collect()
}

fn hashes_of(chain: u64) -> Vec<u64> {
    tokens_of(chain).iter().map(|token| token + 1).collect()
}

/// A chain of blocks of one token each, which no other chain shares.
fn store(chain: u64) -> Value {
    encoder::store(&hashes_of(chain), None, &tokens_of(chain), 1, &full_group())
}

fn remove(chain: u64) -> Value {
    encoder::remove(&hashes_of(chain), &[("group_idx", Value::Uint(0))])
}

fn tell(index: &mut Index, pod: &str, events: impl IntoIterator<Item = Value>) {
    let events: Vec<Value> = events.into_iter().collect();
    index.apply(pod, 0, &batch(&events)).unwrap();
}

fn row(index: &mut Index, pod: &str, chain: u64) -> Row {
    let mut tokens: Vec<u32> = tokens_of(chain)
        .iter()
        .map(|&token| u32::try_from(token).unwrap())
        .collect();
    tokens.push(0);
    let pods = [pod.to_owned()];
    let request = ScoreRequest {
        pods: Some(&pods),
        ..request(&tokens)
    };
    index.score(&request).unwrap().rows.remove(0)
}

fn info(index: &Index, pod: &str) -> RankInfo {
    let mut pods = index.pods().into_iter();
    pods.find(|info| info.pod == pod).unwrap()
}

fn forgotten(index: &Index, pod: &str) -> u64 {
    let refused = info(index, pod).refused;
    refused.get("forgotten_for_memory").copied().unwrap_or(0)
}

#[test]
fn an_engine_without_end_makes_no_other_pod_forget() {
    let limit = 4 << 20;
    let mut index = fleet(limit, &["loud", "quiet"]);
    // Some 8 000 blocks: a quarter of what its share of the limit has room for.
    tell(&mut index, "quiet", (0..128).map(store));
    for chain in 0..2_000 {
        tell(&mut index, "loud", [store(1_000 + chain)]);
    }
    index.enforce_limits();
    index.check_integrity();
    assert!(forgotten(&index, "loud") > 50_000);
    assert_eq!(forgotten(&index, "quiet"), 0);
    assert_eq!(info(&index, "quiet").blocks, 128 * 64);
    for chain in 0..128 {
        let row = row(&mut index, "quiet", chain);
        assert!(row.is_exact() && row.bounds.lower == 64, "{row:?}");
    }
    let loud = row(&mut index, "loud", 1_000);
    assert_eq!(loud.bounds.upper, 64, "what was forgotten is not excluded");
    assert!(index.bytes() <= limit, "{}", index.bytes());
}

#[test]
fn an_index_above_its_limit_once_settles_below_it_and_forgets_no_more() {
    let limit = 2 << 20;
    let mut index = fleet(limit, &["a"]);
    for chain in 0..1_000 {
        tell(&mut index, "a", [store(chain)]);
    }
    index.enforce_limits();
    let (blocks, gone) = (info(&index, "a").blocks, forgotten(&index, "a"));
    assert!(gone > 0 && index.bytes() <= limit);
    assert!(index.bytes() > limit / 2, "{}", index.bytes());
    for _ in 0..100 {
        index.enforce_limits();
        index.check_integrity();
    }
    assert_eq!(
        (info(&index, "a").blocks, forgotten(&index, "a")),
        (blocks, gone)
    );
}

#[test]
fn several_pods_come_down_to_one_level_and_those_below_it_keep_everything() {
    let mut index = fleet(3 << 20, &["large", "larger", "small"]);
    for chain in 0..600 {
        tell(&mut index, "larger", [store(chain)]);
        if chain < 400 {
            tell(&mut index, "large", [store(1_000 + chain)]);
        }
        if chain < 100 {
            tell(&mut index, "small", [store(2_000 + chain)]);
        }
    }
    index.enforce_limits();
    index.check_integrity();
    let [large, larger, small] = ["large", "larger", "small"].map(|p| info(&index, p).blocks);
    assert_eq!(small, 100 * 64);
    assert!(
        large > small && large.abs_diff(larger) <= 2 * 4096,
        "{large} {larger}"
    );
}

#[test]
fn what_requests_matched_lately_stays() {
    let limit = 2 << 20;
    let mut index = fleet(limit, &["a"]);
    for chain in 0..1_000 {
        tell(&mut index, "a", [store(chain)]);
        for hot in 0..8 {
            row(&mut index, "a", hot);
        }
    }
    index.enforce_limits();
    assert!(forgotten(&index, "a") > 30_000);
    for hot in 0..8 {
        assert_eq!(row(&mut index, "a", hot).bounds.lower, 64, "{hot}");
    }
}

#[test]
fn memory_that_pods_used_one_after_the_other_comes_back() {
    // Each alone fits, and all of what they had together does not.
    let limit = 12 << 20;
    let pods = ["a", "b", "c", "d", "e", "f"];
    let mut index = fleet(limit, &pods);
    for (at, pod) in (0..).zip(pods) {
        let chains = || (0..700).map(|chain| chain + 1_000 * at);
        for chain in chains() {
            tell(&mut index, pod, [store(chain)]);
        }
        for chain in chains() {
            tell(&mut index, pod, [remove(chain)]);
        }
        index.enforce_limits();
        index.check_integrity();
        assert!(index.bytes() <= limit, "{pod} {}", index.bytes());
    }
    assert!(pods.iter().all(|pod| forgotten(&index, pod) == 0));
}

#[test]
fn a_pod_that_spreads_few_blocks_over_many_pages_pays_for_them() {
    // 32 blocks far from each other, in each of 64 groups: pages of words for a block each.
    let limit = 16 << 20;
    let mut index = fleet(limit, &["spread", "plain"]);
    tell(&mut index, "plain", (0..512).map(store));
    let one = |chain: u64, group: u64| {
        let token = chain * CHAIN;
        let more = [
            ("kv_cache_spec_kind", text("full_attention")),
            ("group_idx", Value::Uint(group)),
        ];
        encoder::store(&[token + 1], None, &[token], 1, &more)
    };
    for chain in (0..512).step_by(8) {
        tell(
            &mut index,
            "spread",
            (0..250).map(|group| one(chain, group)),
        );
    }
    let before = index.bytes();
    assert!(before > limit, "{before}");
    index.enforce_limits();
    index.check_integrity();
    assert!(index.bytes() <= limit, "{}", index.bytes());
    assert!(forgotten(&index, "spread") > 0);
    assert_eq!(forgotten(&index, "plain"), 0);
}

#[test]
fn what_a_removed_pod_held_is_released_portion_by_portion() {
    let mut index = fleet(0, &["gone", "stays"]);
    for pod in ["gone", "stays"] {
        tell(&mut index, pod, (0..1_024).map(store));
    }
    index.remove("gone").unwrap();
    let mut portions = 0;
    while !index.keep_limits() {
        index.check_integrity();
        let row = row(&mut index, "stays", 5);
        assert!(row.is_exact() && row.bounds.lower == 64, "{row:?}");
        portions += 1;
    }
    assert_eq!(portions, 2);
}

/// Chains that each pod tells of: the first has few, and shares them with the others.
const PODS: [(&str, usize); 3] = [("small", 12), ("large", 400), ("largest", 900)];

fn step(numbers: &mut Numbers) -> (&'static str, Vec<Value>) {
    let (pod, chains) = PODS[numbers.below(3)];
    let events = (0..=numbers.below(8)).map(|_| {
        let chain = numbers.below(chains) as u64;
        match numbers.below(32) {
            0 if numbers.below(32) == 0 => clear(),
            0..6 => remove(chain),
            _ => store(chain),
        }
    });
    (pod, events.collect())
}

#[test]
fn beside_an_index_without_a_limit_who_forgot_nothing_answers_the_same_and_others_with_bounds() {
    let limit = 2 << 20;
    let pods = PODS.map(|(pod, _)| pod);
    for seed in 0..3 {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15 >> seed);
        let (mut index, mut truth) = (fleet(limit, &pods), fleet(0, &pods));
        for at in 0..1_500 {
            let (pod, events) = step(&mut numbers);
            tell(&mut truth, pod, events.clone());
            tell(&mut index, pod, events);
            let chain = numbers.below(900) as u64;
            for pod in pods {
                let (row, true_row) = (row(&mut index, pod, chain), row(&mut truth, pod, chain));
                if forgotten(&index, pod) == 0 {
                    assert_eq!(row, true_row);
                } else {
                    assert!(
                        row.bounds.lower <= true_row.bounds.lower,
                        "{row:?} {true_row:?}"
                    );
                    assert!(
                        true_row.bounds.upper <= row.bounds.upper,
                        "{row:?} {true_row:?}"
                    );
                }
            }
            if at % 64 == 0 {
                index.check_integrity();
                index.enforce_limits();
                index.check_integrity();
                assert!(index.bytes() <= limit, "{}", index.bytes());
            }
        }
        let [small, large, largest] = pods.map(|pod| forgotten(&index, pod));
        assert!(
            small == 0 && large > 0 && largest > 0,
            "{small} {large} {largest}"
        );
    }
}
