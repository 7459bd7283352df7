//! The cache under random steps: after each one blocks, hashes and requests agree, a hit is what the
//! cache then really hands out, and when all requests are gone every block is free.

use std::slice::from_ref;

use kvbraid_core::adaptive::AdaptiveCache;
use kvbraid_core::blocks::{BlockId, NULL_BLOCK};
use kvbraid_core::cache::{
    ByValue, CacheConfig, EvictionPolicy, Need, NewRequest, PrefillCost, Retention,
};
use kvbraid_core::error::Error;
use kvbraid_core::hash::Digest;
use kvbraid_core::secret::Secret;
use kvbraid_core::spec::{GroupSpec, SpecKind, Topology};
use proptest::prelude::*;

fn group(kind: SpecKind, block_size: u32) -> GroupSpec {
    GroupSpec {
        window: kind.is_window().then_some(9),
        chunk: (kind == SpecKind::ChunkedLocalAttention).then_some(12),
        ..GroupSpec::new(kind, block_size)
    }
}

fn cache(groups: Vec<GroupSpec>, num_blocks: u32, retention: Retention) -> AdaptiveCache {
    let topology = Topology {
        alignment: groups.iter().map(|g| g.block_size).max().unwrap_or(4),
        hash_block_size: 4,
        ..Topology::new(groups)
    };
    let config = CacheConfig {
        events: true,
        retention,
        ..CacheConfig::new(topology, num_blocks)
    };
    AdaptiveCache::new(config, &Secret::new([7; 32])).expect("a valid config")
}

fn prompt(family: u32, len: u32) -> NewRequest {
    // Prompts of one family share all tokens but their last few.
    let tokens: Vec<u32> = (0..len)
        .map(|i| {
            if i + 3 < len {
                family * 1000 + i
            } else {
                7 * len + i
            }
        })
        .collect();
    NewRequest {
        num_prompt_tokens: len,
        tokens,
        ..NewRequest::default()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Begin { family: u32, len: u32 },
    Decode,
    Release(usize),
    Preempt(usize),
    Forget(u32),
    Reset,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u32, 1..60u32).prop_map(|(family, len)| Op::Begin { family, len }),
        4 => Just(Op::Decode),
        2 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::Preempt),
        1 => (0..40u32).prop_map(Op::Forget),
        1 => Just(Op::Reset),
    ]
}

fn kinds() -> impl Strategy<Value = Vec<GroupSpec>> {
    let kind = prop_oneof![
        Just(SpecKind::FullAttention),
        Just(SpecKind::SlidingWindow),
        Just(SpecKind::ChunkedLocalAttention),
        Just(SpecKind::Mamba),
    ];
    let sized = (kind, prop_oneof![Just(4u32), Just(8u32)]);
    proptest::collection::vec(sized.prop_map(|(kind, size)| group(kind, size)), 0..5)
}

fn retention() -> impl Strategy<Value = Retention> {
    let policy = prop_oneof![
        Just(None),
        Just(Some(EvictionPolicy::Value)),
        Just(Some(EvictionPolicy::Dense)),
        Just(Some(EvictionPolicy::Interval)),
    ];
    let by_value = |(interval, policy)| {
        Retention::ByValue(ByValue {
            interval,
            cost: PrefillCost {
                per_token: 1.0,
                per_pair: 0.01,
            },
            policy,
        })
    };
    prop_oneof![
        Just(Retention::Dense),
        Just(Retention::Interval(0)),
        (prop_oneof![Just(0u32), Just(16)], policy).prop_map(by_value),
    ]
}

fn begin(cache: &mut AdaptiveCache, id: u64, len: u32) -> bool {
    let hit = cache.find(id).expect("known").num_tokens;
    assert!(hit < len);
    assert_eq!(
        cache.find(id).expect("known").num_tokens,
        hit,
        "a look-up changes nothing"
    );
    let need = Need {
        request: id,
        num_new_tokens: len - hit,
        num_hit_tokens: hit,
        ..Need::default()
    };
    let blocks = cache.hit_blocks(id, hit).expect("the hit is held");
    let free = cache.num_free_blocks();
    let fits = cache.allocate(&[need], 0).expect("well formed").num_fit == 1;
    if !fits {
        assert_eq!(
            cache.num_free_blocks(),
            free,
            "a request that does not fit changes nothing"
        );
        return false;
    }
    for (table, hit) in cache.tables(id).expect("known").zip(&blocks) {
        for (held, adopted) in table.iter().zip(hit) {
            assert!(*adopted == NULL_BLOCK || held == adopted);
        }
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn blocks_hashes_and_requests_agree_after_every_step(
        groups in kinds(),
        retention in retention(),
        num_blocks in 8..60u32,
        ops in proptest::collection::vec(op(), 1..40),
    ) {
        let mut cache = cache(groups, num_blocks, retention);
        let mut running: Vec<(u64, u32)> = Vec::new();
        for op in ops {
            cache.start_step();
            match op {
                Op::Begin { family, len } => {
                    let id = cache.add(prompt(family, len)).expect("a prompt");
                    if begin(&mut cache, id, len) {
                        running.push((id, len));
                    } else {
                        cache.release(&[id], false).expect("known");
                    }
                }
                Op::Decode => {
                    let ids: Vec<u64> = running.iter().map(|(id, _)| *id).collect();
                    let tokens = vec![1; ids.len()];
                    let done = cache.decode(&ids, &tokens).expect("known");
                    // Who does not fit is preempted for good.
                    for (id, _) in running.drain(done.num_fit..) {
                        cache.release(&[id], false).expect("known");
                    }
                }
                Op::Release(which) if !running.is_empty() => {
                    let (id, _) = running.swap_remove(which % running.len());
                    cache.release(&[id], false).expect("known");
                    prop_assert!(cache.release(&[id], false).is_err(), "released twice");
                }
                Op::Preempt(which) if !running.is_empty() => {
                    let (id, _) = running.swap_remove(which % running.len());
                    cache.preempt(&[id], false).expect("known");
                    prop_assert_eq!(cache.progress(id).expect("known").num_computed_tokens, 0);
                    cache.release(&[id], false).expect("known");
                }
                Op::Forget(block) if block < num_blocks => cache.forget(&[BlockId(block)]).expect("exists"),
                Op::Reset => prop_assert_eq!(
                    cache.reset(),
                    cache.num_free_blocks() + 1 == num_blocks as usize
                ),
                Op::Release(_) | Op::Preempt(_) | Op::Forget(_) => {}
            }
            cache.check_integrity(&[]);
        }
        let ids: Vec<u64> = running.iter().map(|(id, _)| *id).collect();
        cache.release(&ids, false).expect("known");
        cache.check_integrity(&[]);
        prop_assert_eq!(cache.num_free_blocks() + 1, num_blocks as usize);
        prop_assert!(cache.reset());
        prop_assert_eq!(cache.cached().count(), 0);
    }
}

#[test]
fn single_blocks_are_taken_held_and_found() {
    let groups = vec![
        group(SpecKind::FullAttention, 4),
        group(SpecKind::SlidingWindow, 4),
    ];
    let mut cache = cache(groups, 6, Retention::Interval(8));
    let digests = [1u8, 2].map(|byte| Digest::from_bytes(&[byte; 32]).expect("32 bytes"));
    assert!(
        cache.take_blocks(6).is_err(),
        "the null block is not handed out"
    );
    let taken = cache.take_blocks(2).expect("five are free");
    let [one, two] = [BlockId(1), BlockId(2)];
    assert_eq!(taken, [one, two]);
    cache.hold_blocks(&taken).expect("they exist");
    assert!(cache.hold_blocks(&[BlockId(9)]).is_err());
    for &block in &taken {
        cache
            .register(block, 1, &digests[0], 4)
            .expect("a block of a group");
    }
    cache
        .register(one, 0, &digests[1], 8)
        .expect("a block of a group");
    assert!(cache.register(NULL_BLOCK, 0, &digests[0], 4).is_err());
    assert!(
        cache.register(one, 2, &digests[0], 4).is_err(),
        "no such group"
    );
    assert_eq!(cache.holders(1, &digests[0]), [one, two]);
    assert!(cache.unregister(one, 1, &digests[0]));
    assert!(!cache.unregister(one, 1, &digests[0]));
    assert_eq!(cache.holders(1, &digests[0]), [two]);
    assert_eq!(cache.holders(0, &digests[1]), [one]);
    cache.check_integrity(&[one, one, two, two]);
    cache
        .free_blocks(&[one, one, two, two])
        .expect("two references each");
    cache.check_integrity(&[]);
    assert!(cache.free_blocks(&[one]).is_err(), "nothing is held");
    assert_eq!(
        cache.kept_blocks(0, 0..4, &[]),
        Ok(None),
        "full attention keeps all"
    );
    assert!(cache.kept_blocks(2, 0..4, &[]).is_err(), "no such group");
}

#[test]
fn a_step_takes_the_blocks_that_it_needs_and_tells_the_states_that_it_kept() {
    let groups = vec![group(SpecKind::FullAttention, 4), group(SpecKind::Mamba, 4)];
    let mut cache = cache(groups, 20, Retention::Dense);
    let id = cache.add(prompt(1, 9)).expect("a prompt");
    let need = Need {
        request: id,
        num_new_tokens: 8,
        ..Need::default()
    };
    let before = cache.num_free_blocks();
    let needed = cache.blocks_needed(&need, false).expect("well formed");
    assert_eq!(cache.allocate(&[need], 0).expect("well formed").num_fit, 1);
    assert_eq!(i64::try_from(before - cache.num_free_blocks()), Ok(needed));
    let state = cache.tables(id).expect("known").nth(1).expect("two groups")[1];
    let kept = cache.take_work(false).kept_states;
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].block, kept[0].num_tokens), (state, 8));
    assert_eq!(cache.fresh_states().count(), 1);
    let cursors: Vec<_> = cache.cursors(id).expect("known").collect();
    assert!(
        cursors
            .iter()
            .all(|cursor| cursor.num_registered == Some(2))
    );
    assert_eq!(cache.take_state_tails(id), Ok(Vec::new()));
    cache.start_step();
    assert_eq!(cache.fresh_states().count(), 0);
    assert!(cache.cursors(id + 1).is_err());
    assert!(cache.take_state_tails(id + 1).is_err());
    assert!(cache.blocks_needed(&Need::default(), true).is_ok());
}

#[test]
fn a_request_that_is_given_twice_is_refused_before_anything_changes() {
    let groups = vec![group(SpecKind::FullAttention, 4)];
    let mut cache = cache(groups, 20, Retention::Dense);
    let first = cache.add(prompt(1, 9)).expect("a prompt");
    assert!(begin(&mut cache, first, 9));
    let id = cache.add(prompt(1, 9)).expect("a prompt");
    let need = Need {
        request: id,
        num_new_tokens: 1,
        num_hit_tokens: 8,
        ..Need::default()
    };
    let free = cache.num_free_blocks();
    assert_eq!(
        cache.allocate(&[need.clone(), need.clone()], 0),
        Err(Error::GivenTwice(id))
    );
    assert_eq!(
        cache.release(&[first, id, first], false),
        Err(Error::GivenTwice(first))
    );
    assert_eq!(
        cache.preempt(&[first, first], false),
        Err(Error::GivenTwice(first))
    );
    assert_eq!(cache.num_free_blocks(), free);
    assert_eq!(
        cache
            .progress(first)
            .expect("still known")
            .num_computed_tokens,
        9
    );
    assert_eq!(
        cache
            .allocate(&[need], 0)
            .expect("given once, it is served")
            .num_fit,
        1
    );
    cache.check_integrity(&[]);
}

#[test]
fn a_refusal_says_what_it_is_about() {
    let groups = vec![
        group(SpecKind::FullAttention, 4),
        group(SpecKind::SlidingWindow, 4),
    ];
    let mut cache = cache(groups, 20, Retention::Dense);
    let first = cache.add(prompt(1, 9)).expect("a prompt");
    assert!(begin(&mut cache, first, 9));
    let id = cache.add(prompt(1, 12)).expect("a prompt");
    let hit = cache.find(id).expect("known").num_tokens;
    let window: Vec<BlockId> = cache
        .tables(first)
        .expect("known")
        .nth(1)
        .expect("two groups")
        .to_vec();
    cache.forget(&window).expect("they exist");
    let need = Need {
        request: id,
        num_new_tokens: 1,
        num_hit_tokens: hit,
        ..Need::default()
    };
    let gone = Error::NotHeld {
        request: id,
        group: 1,
        position: 0,
        num_tokens: hit,
    };
    assert_eq!(cache.allocate(from_ref(&need), 0), Err(gone.clone()));
    assert_eq!(cache.hit_blocks(id, hit), Err(gone));
    assert_eq!(cache.find(id + 1), Err(Error::UnknownRequest(id + 1)));
    let block = BlockId(20);
    assert_eq!(
        cache.forget(&[block]),
        Err(Error::UnknownBlock {
            block,
            num_blocks: 20
        })
    );
    let nothing = Need {
        num_hit_tokens: 0,
        num_new_tokens: 0,
        ..need
    };
    assert!(matches!(
        cache.allocate(&[nothing], 0),
        Err(Error::InvalidValue(_))
    ));
}
