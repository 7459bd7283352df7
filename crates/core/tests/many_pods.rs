//! What many pods share changes no answer: about each of them an index answers what one answers that
//! follows it alone, whoever gives which hash to which block, and however many others are asked about.

#![expect(clippy::unwrap_used, reason = "a test fails where something does")]

mod asking;
mod choices;
mod encoder;

use asking::{index_of, options, pod, request};
use choices::{Choices, Numbers, numbers};
use encoder::{Value, batch, clear, full_group, text};
use kvbraid_core::fleet::{Index, PodSpec, Row, ScoreRequest, Tier, TierSet};

/// Blocks of one token each.
const LENGTH: usize = 6;

/// One of sixteen prompts that share their beginnings.
fn prompt(numbers: &mut Numbers) -> Vec<u64> {
    let chosen = numbers.below(16);
    (0..LENGTH)
        .map(|at| (chosen >> (at / 2).min(3)) as u64 & 1)
        .collect()
}

/// The hashes that an engine of this seed gives the blocks of a prompt.
fn hashes(seed: u64, tokens: &[u64]) -> Vec<u64> {
    let ends = (1..=tokens.len()).map(|end| &tokens[..end]);
    let hash = |begin: &[u64]| begin.iter().fold(1, |hash, token| hash * 2 + token);
    ends.map(|begin| hash(begin) * 10 + seed).collect()
}

/// What a pod publishes. Every fourth is wrong about every hash: it gives a prompt those of another one.
fn event(numbers: &mut Numbers, pod: usize) -> Value {
    let seed = [0, 0, 7, 0][pod % 4];
    let tokens = prompt(numbers);
    let named = if pod % 4 == 3 {
        prompt(numbers)
    } else {
        tokens.clone()
    };
    let end = 1 + numbers.below(LENGTH);
    let named = hashes(seed, &named[..end]);
    let medium = text(if numbers.once_in(4) { "CPU" } else { "GPU" });
    let fields = [full_group().as_slice(), &[("medium", medium.clone())]].concat();
    match numbers.below(8) {
        0 => clear(),
        1 | 2 => encoder::remove(
            &named[end - 1..],
            &[("group_idx", Value::Uint(0)), ("medium", medium)],
        ),
        3 if end > 1 => {
            let (parent, rest) = (named[end - 2], &named[end - 1..]);
            encoder::store(rest, Some(parent), &tokens[end - 1..end], 1, &fields)
        }
        _ => encoder::store(&named, None, &tokens[..end], 1, &fields),
    }
}

fn rows(index: &mut Index, tokens: &[u64], pods: Option<&[String]>) -> Vec<Row> {
    let tokens: Vec<u32> = tokens.iter().map(|&t| u32::try_from(t).unwrap()).collect();
    let request = ScoreRequest {
        pods,
        tiers: [Tier::Gpu, Tier::Cpu].into_iter().collect::<TierSet>(),
        ..request(&tokens)
    };
    index.score(&request).unwrap().rows
}

#[test]
fn pods_that_share_blocks_and_hashes_are_answered_as_if_each_were_alone() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for seed in 0..150 {
        let mut numbers = numbers(seed);
        let mut index = index_of(options(), &names);
        let mut alone = names.map(|name| index_of(options(), &[name]));
        for _ in 0..40 {
            let pod = numbers.below(names.len());
            let payload = batch(&[event(&mut numbers, pod)]);
            for index in [&mut index, &mut alone[pod]] {
                index.apply(names[pod], 0, &payload).unwrap();
            }
        }
        index.check_integrity();
        for _ in 0..6 {
            let tokens = [prompt(&mut numbers), vec![9]].concat();
            let together = rows(&mut index, &tokens, None);
            let each = alone
                .iter_mut()
                .flat_map(|index| rows(index, &tokens, None));
            for (one, other) in together.iter().zip(each) {
                assert_eq!(one.bounds, other.bounds, "life {seed}: {tokens:?}");
            }
        }
    }
}

#[test]
fn candidates_of_many_words_are_answered_as_each_is_alone() {
    const PODS: usize = 300;
    for seed in 0..4 {
        let mut numbers = numbers(seed);
        let mut index = Index::new(options());
        let names: Vec<String> = (0..PODS).map(|pod| format!("pod{pod}")).collect();
        for (at, name) in names.iter().enumerate() {
            let spec = PodSpec {
                dp_size: 1 + u32::from(at % 9 == 0),
                ..pod()
            };
            index.register(name, spec).unwrap();
            for _ in 0..3 {
                let payload = batch(&[event(&mut numbers, at)]);
                index.apply(name, 0, &payload).unwrap();
            }
        }
        for most in [2, 7, 30, 64, 200] {
            let candidates: Vec<String> = (0..most).map(|_| numbers.one_of(&names)).collect();
            let tokens = [prompt(&mut numbers), vec![9]].concat();
            let together = rows(&mut index, &tokens, Some(&candidates));
            let each = candidates
                .iter()
                .flat_map(|name| rows(&mut index, &tokens, Some(std::slice::from_ref(name))));
            assert_eq!(together, each.collect::<Vec<_>>());
        }
    }
}
