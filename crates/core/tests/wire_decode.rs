//! What the decoder reads and refuses, on values built by the test encoder.

mod encoder;

use encoder::{Value, batch, clear, encode, map, remove, text, uints};
use kvbraid_core::spec::SpecKind;
use kvbraid_core::wide::WideToken;
use kvbraid_core::wire::{
    Batch, Decoder, Event, ExtraKey, Limits, MAX_GROUPS, Medium, RefusalReason, Span, Stored,
    Untold,
};
use proptest::prelude::*;

fn decode(payload: &[u8]) -> Batch {
    Decoder::default().decode(payload).clone()
}

fn refusals(batch: &Batch) -> Vec<(&'static str, Option<u32>)> {
    batch
        .refused
        .iter()
        .map(|refusal| (refusal.reason.name(), refusal.event_index))
        .collect()
}

fn store(extra: &[(&str, Value)]) -> Value {
    let mut fields = vec![
        ("type", text("BlockStored")),
        ("block_hashes", uints(&[7_u64, u64::MAX])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", uints(&[1_u32, 200, 60_000, u32::MAX])),
        ("block_size", Value::Uint(2)),
    ];
    for (name, value) in extra {
        fields.retain(|(known, _)| known != name);
        fields.push((name, value.clone()));
    }
    map(&fields)
}

fn stored(batch: &Batch, index: usize) -> Stored {
    match batch.events[index] {
        Event::Stored(stored) => stored,
        Event::Removed(_) | Event::Cleared | Event::Refused(_) => {
            panic!("event {index} is no store: {batch:?}")
        }
    }
}

/// The single store that `event` decodes to, refusing nothing.
fn only(event: &Value) -> (Batch, Stored) {
    let batch = decode(&batch(std::slice::from_ref(event)));
    assert_eq!(refusals(&batch), []);
    let store = stored(&batch, 0);
    (batch, store)
}

/// Why `event` is refused, between two good events that must both survive.
fn refused(event: &Value) -> &'static str {
    let batch = decode(&batch(&[store(&[]), event.clone(), store(&[])]));
    assert_eq!(batch.events.len(), 3, "{batch:?}");
    assert!(matches!(batch.events[1], Event::Refused(_)), "{batch:?}");
    assert_eq!(batch.dp_rank, Some(0));
    assert_eq!(stored(&batch, 0).tokens, stored(&batch, 2).tokens);
    assert_eq!(batch.refused.len(), 1);
    assert_eq!(batch.refused[0].event_index, Some(1));
    batch.refused[0].reason.name()
}

#[test]
fn a_map_and_an_array_of_the_same_store_decode_alike() {
    let extra = Value::Array(vec![Value::Array(vec![text("salt")]), Value::Nil]);
    let by_name = store(&[
        ("parent_block_hash", Value::Uint(0)),
        ("medium", text("CPU")),
        ("extra_keys", extra.clone()),
        ("group_idx", Value::Uint(3)),
        ("kv_cache_spec_kind", text("sliding_window")),
        ("kv_cache_spec_sliding_window", Value::Uint(128)),
        ("session_id", text("unknown keys are ignored")),
    ]);
    let by_position = Value::Array(vec![
        text("BlockStored"),
        uints(&[7_u64, u64::MAX]),
        Value::Uint(0),
        uints(&[1_u32, 200, 60_000, u32::MAX]),
        Value::Uint(2),
        Value::Nil,
        text("CPU"),
        Value::Nil,
        extra,
        Value::Uint(3),
        text("sliding_window"),
        Value::Uint(128),
        text("trailing fields are ignored"),
    ]);
    let mixed = decode(&batch(&[by_name, by_position]));
    assert_eq!(refusals(&mixed), []);
    let (first, second) = (stored(&mixed, 0), stored(&mixed, 1));
    assert!(second.same_as_previous && !first.same_as_previous);
    assert_eq!(
        first,
        Stored {
            same_as_previous: false,
            ..second
        }
    );
    assert_eq!(mixed.hashes_of(first.hashes), [7, u64::MAX]);
    assert_eq!(mixed.tokens_of(first.tokens), [1, 200, 60_000, u32::MAX]);
    assert_eq!((first.parent, first.block_size), (Some(0), 2));
    assert_eq!((first.medium, first.group), (Medium::Cpu, Some(3)));
    assert_eq!(
        (first.kind, first.window),
        (Some(SpecKind::SlidingWindow), Some(128))
    );
    let keys = mixed.extra_keys_of(&first, 0);
    assert!(matches!(keys, [ExtraKey::Text(salt)] if mixed.text(*salt) == "salt"));
    assert_eq!(mixed.extra_keys_of(&first, 1), []);
}

#[test]
fn a_tag_may_stand_anywhere_in_a_map() {
    let Value::Map(mut fields) = store(&[]) else {
        unreachable!()
    };
    fields.rotate_left(1);
    let (_, store) = only(&Value::Map(fields));
    assert_eq!(store.block_size, 2);
}

#[test]
fn the_lora_name_is_dropped_from_the_extra_keys_wherever_it_stands_in_the_map() {
    let item = Value::Array(vec![text("image"), Value::Int(-3)]);
    let keys = Value::Array(vec![
        Value::Array(vec![text("a"), item, Value::Bytes(vec![9; 32])]),
        Value::Array(vec![text("a")]),
    ]);
    let (batch, store) = only(&store(&[("extra_keys", keys), ("lora_name", text("a"))]));
    match batch.extra_keys_of(&store, 0) {
        [ExtraKey::Item { id, offset: -3 }, ExtraKey::Digest(digest)] => {
            assert_eq!(batch.text(*id), "image");
            assert_eq!(batch.digest(*digest), [9; 32]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(batch.extra_keys_of(&store, 1), []);
    assert_eq!(batch.text(store.lora_name.unwrap()), "a");
}

#[test]
fn repeated_lists_share_their_spans_and_differing_ones_do_not() {
    let event = |group: u64, last: u64| {
        store(&[
            ("group_idx", Value::Uint(group)),
            ("block_hashes", uints(&[7, last])),
        ])
    };
    let batch = decode(&batch(&[
        event(0, 8),
        event(1, 8),
        remove(&[7_u64], &[]),
        event(2, 9),
        event(3, 9),
    ]));
    let stores: Vec<Stored> = [0, 1, 3, 4].map(|index| stored(&batch, index)).into();
    let same: Vec<bool> = stores.iter().map(|store| store.same_as_previous).collect();
    assert_eq!(same, [false, true, false, true]);
    assert_eq!(stores[0].tokens, stores[3].tokens);
    assert_eq!(stores[0].tokens.len, 4);
    assert_eq!(batch.hashes, [7, 8, 7, 7, 9]);
}

#[test]
fn another_parent_block_size_lora_salt_or_extra_key_is_not_the_same_store() {
    let keys = Value::Array(vec![Value::Array(vec![text("salt")]), Value::Nil]);
    for change in [
        ("parent_block_hash", Value::Uint(0)),
        ("block_size", Value::Uint(1)),
        ("lora_name", text("a")),
        ("lora_id", Value::Uint(1)),
        ("cache_salt", text("s")),
        ("extra_keys", keys),
        (
            "lookahead_token_ids",
            Value::Array(vec![uints(&[1_u32]), uints(&[2_u32])]),
        ),
    ] {
        let batch = decode(&batch(&[store(&[]), store(std::slice::from_ref(&change))]));
        assert_eq!(refusals(&batch), []);
        assert!(!stored(&batch, 1).same_as_previous, "{change:?}");
    }
}

#[test]
fn pairs_give_tokens_and_the_lookahead_of_each_block() {
    let pairs = [(1_u32, 2_u32), (2, 3), (3, 4), (4, 5)];
    let pairs = Value::Array(pairs.iter().map(|(a, b)| uints(&[*a, *b])).collect());
    let event = store(&[("token_ids", pairs)]);
    let batch = decode(&batch(&[event.clone(), event]));
    assert_eq!(refusals(&batch), []);
    for store in [stored(&batch, 0), stored(&batch, 1)] {
        assert_eq!(batch.tokens_of(store.tokens), [1, 2, 3, 4]);
        assert_eq!(batch.lookahead_of(&store, 0), [3]);
        assert_eq!(batch.lookahead_of(&store, 1), [5]);
    }
}

/// Two numbers of 62 bits that agree in their lower halves, and a text.
fn wide_tokens() -> [Value; 4] {
    [
        Value::Uint((1 << 61) + 5),
        Value::Uint(7),
        Value::Uint((1 << 60) + 5),
        text("5"),
    ]
}

/// The wide tokens of a span, by place.
fn wide(batch: &Batch, tokens: Span) -> Vec<(u32, WideToken<'_>)> {
    batch.wide_of(tokens).map(|w| (w.at, w.token)).collect()
}

#[test]
fn wide_tokens_are_kept_beside_what_32_bits_hold() {
    let all = Value::Array(wide_tokens().to_vec());
    let (batch, first) = only(&store(&[("token_ids", all)]));
    assert_eq!(refusals(&batch), []);
    assert_eq!(batch.tokens_of(first.tokens), [5, 7, 5, 0]);
    let high = |bit| WideToken::High(1_u32 << bit);
    let found = [(0, high(29)), (2, high(28)), (3, WideToken::Text("5"))];
    assert_eq!(wide(&batch, first.tokens), found);
    let Span { start, .. } = first.tokens;
    let part = Span {
        start: start + 1,
        len: 2,
    };
    assert_eq!(wide(&batch, part), [(1, high(28))]);
    assert!(!batch.has_wide(Span {
        start: start + 1,
        len: 1
    }));
}

#[test]
fn wide_tokens_of_pairs_are_also_those_of_the_lookahead() {
    let pairs = wide_tokens()
        .into_iter()
        .map(|token| vec![Value::Uint(3), token]);
    let pairs = Value::Array(pairs.map(Value::Array).collect());
    let (batch, first) = only(&store(&[("token_ids", pairs)]));
    assert_eq!(refusals(&batch), []);
    assert_eq!(wide(&batch, first.tokens), []);
    let [odd, even] = [0, 1].map(|block| batch.lookahead_span(&first, block));
    assert_eq!(
        (batch.tokens_of(odd), wide(&batch, odd)),
        (&[7][..], vec![])
    );
    assert_eq!(wide(&batch, even), [(0, WideToken::Text("5"))]);
}

#[test]
fn a_refused_event_leaves_no_wide_tokens() {
    let mut tokens = wide_tokens().to_vec();
    tokens.push(Value::Nil);
    let refused = store(&[("token_ids", Value::Array(tokens))]);
    let batch = decode(&batch(&[refused, store(&[])]));
    assert_eq!(refusals(&batch), [("bad_tokens", Some(0))]);
    assert!(!batch.has_wide(stored(&batch, 1).tokens));
    assert_eq!(stored(&batch, 1).tokens.start, 0);
}

#[test]
fn explicit_lookahead_is_kept_per_block() {
    let lists = Value::Array(vec![uints(&[5_u32, 6]), uints::<u32>(&[])]);
    let (batch, store) = only(&store(&[("lookahead_token_ids", lists)]));
    assert_eq!(batch.lookahead_of(&store, 0), [5, 6]);
    assert!(batch.lookahead_of(&store, 1).is_empty());
    assert_eq!(batch.tokens_of(store.tokens).len(), 4);
}

#[test]
fn sglang_metadata_at_position_seven_gives_the_salt() {
    let event = Value::Array(vec![
        text("BlockStored"),
        Value::Array(vec![Value::Int(-2)]),
        Value::Int(-1),
        uints(&[1_u32, 2]),
        Value::Uint(2),
        Value::Nil,
        text("cpu_pinned"),
        map(&[("session_id", text("s")), ("cache_salt", text("pepper"))]),
    ]);
    let (batch, store) = only(&event);
    assert_eq!(batch.hashes, [u64::MAX - 1]);
    assert_eq!(store.parent, Some(u64::MAX));
    assert_eq!(batch.text(store.salt.unwrap()), "pepper");
    assert_eq!((store.medium, store.lora_name), (Medium::Cpu, None));
}

#[test]
fn an_offload_placeholder_is_legal() {
    let (batch, store) = only(&store(&[
        ("token_ids", uints::<u32>(&[])),
        ("block_size", Value::Uint(0)),
        ("medium", text("Mooncake")),
        ("locality", text("REMOTE")),
        ("ownership", text("tier2")),
    ]));
    assert!(store.tokens.is_empty() && store.remote);
    assert!(matches!(store.medium, Medium::Other(name) if batch.text(name) == "mooncake"));
    assert_eq!(batch.text(store.owner.unwrap()), "tier2");
}

#[test]
fn removes_and_clears_are_read_in_both_spellings() {
    let batch = decode(&batch(&[
        Value::Array(vec![
            text("BlockRemoved"),
            uints(&[1_u64]),
            text("DISK"),
            Value::Uint(2),
        ]),
        remove(
            &[2_u64],
            &[
                ("medium", Value::Nil),
                ("ownership", text("me")),
                ("token_ids", text("no field of a remove, so ignored")),
            ],
        ),
        Value::Array(vec![text("AllBlocksCleared"), Value::Nil]),
        clear(),
    ]));
    assert_eq!(refusals(&batch), []);
    match batch.events[..] {
        [
            Event::Removed(first),
            Event::Removed(second),
            Event::Cleared,
            Event::Cleared,
        ] => {
            assert_eq!((first.medium, first.group), (Medium::Storage, Some(2)));
            assert_eq!((second.medium, second.group), (Medium::Gpu, None));
            assert_eq!(batch.hashes, [1, 2]);
            assert_eq!(second.owner.map(|owner| batch.text(owner)), Some("me"));
        }
        _ => panic!("{batch:?}"),
    }
}

/// Events that are no event at all, with the reason.
fn misshapen_events() -> Vec<(&'static str, Value)> {
    let twice = Value::Map(vec![
        (text("type"), text("BlockRemoved")),
        (text("block_hashes"), uints(&[1_u64])),
        (text("block_hashes"), uints(&[2_u64])),
    ]);
    vec![
        ("unknown_event", map(&[("type", text("BlockMoved"))])),
        (
            "unknown_event",
            Value::Array(vec![text("BlockMoved"), Value::Nil]),
        ),
        ("malformed_event", Value::Nil),
        ("malformed_event", Value::Array(vec![])),
        ("malformed_event", map(&[("block_hashes", uints(&[1_u64]))])),
        (
            "malformed_event",
            Value::Array(vec![text("BlockStored"), uints(&[1_u64])]),
        ),
        ("malformed_event", twice),
        ("malformed_event", store(&[("block_size", Value::Int(-1))])),
        ("malformed_event", store(&[("locality", text("NEARBY"))])),
        ("malformed_event", store(&[("block_hashes", Value::Nil)])),
    ]
}

/// Events of which one field says what no engine says, with the reason.
fn events_with_a_bad_field() -> Vec<(&'static str, Value)> {
    let nulls = Value::Array(vec![Value::Nil]);
    let no_map_keys = Value::Array(vec![Value::Array(vec![map(&[])]), Value::Nil]);
    vec![
        (
            "bad_hash",
            store(&[("block_hashes", Value::Array(vec![Value::Bytes(vec![])]))]),
        ),
        ("bad_hash", store(&[("parent_block_hash", text("x"))])),
        (
            "bad_tokens",
            store(&[("token_ids", Value::Array(vec![Value::Int(-1)]))]),
        ),
        (
            "bad_tokens",
            store(&[("token_ids", Value::Array(vec![text("")]))]),
        ),
        (
            "bad_tokens",
            store(&[(
                "token_ids",
                Value::Array(vec![Value::Uint(1), uints(&[1_u32])]),
            )]),
        ),
        (
            "bad_tokens",
            store(&[("token_ids", Value::Array(vec![uints(&[1_u32])]))]),
        ),
        ("bad_extra_keys", store(&[("extra_keys", nulls.clone())])),
        ("bad_extra_keys", store(&[("extra_keys", no_map_keys)])),
        ("bad_lookahead", store(&[("lookahead_token_ids", nulls)])),
        (
            "bad_lookahead",
            store(&[("token_ids", Value::Array(vec![uints(&[1_u32, 2])]))]),
        ),
        ("negative_group", store(&[("group_idx", Value::Int(-1))])),
        ("large_group", store(&[("group_idx", Value::Uint(256))])),
    ]
}

#[test]
fn one_bad_event_is_refused_by_reason_and_its_neighbours_stay() {
    let cases = misshapen_events()
        .into_iter()
        .chain(events_with_a_bad_field());
    for (reason, event) in cases {
        assert_eq!(refused(&event), reason, "{event:?}");
    }
}

#[test]
fn a_text_that_is_no_utf8_is_refused() {
    let mut payload = batch(&[store(&[("lora_name", text("abcd"))]), store(&[])]);
    let at = payload
        .windows(4)
        .position(|bytes| bytes == b"abcd")
        .unwrap();
    payload[at] = 0xff;
    let batch = decode(&payload);
    assert_eq!(refusals(&batch), [("bad_text", Some(0))]);
    assert_eq!(batch.events[0], Event::Refused(Untold::Stored));
    assert_eq!(batch.events.len(), 2);
}

#[test]
fn what_exceeds_a_limit_is_refused_and_the_rest_stays() {
    let limits = Limits {
        max_hashes: 1,
        max_tokens: 3,
        max_text_bytes: 3,
        ..Limits::default()
    };
    let small: [(&str, Value); 2] = [
        ("block_hashes", uints(&[1_u64])),
        ("token_ids", uints(&[1_u32])),
    ];
    let long = ("lora_name", text("long"));
    let payload = batch(&[
        store(&small),
        store(&small[..1]),
        store(&small[1..]),
        store(&[small[0].clone(), small[1].clone(), long]),
    ]);
    let mut decoder = Decoder::new(limits);
    let batch = decoder.decode(&payload);
    let large = RefusalReason::TooLarge.name();
    assert_eq!(
        refusals(batch),
        [(large, Some(1)), (large, Some(2)), (large, Some(3))]
    );
    let mut decoder = Decoder::new(Limits {
        max_payload_bytes: 10,
        ..limits
    });
    assert_eq!(refusals(decoder.decode(&payload)), [(large, None)]);
}

#[test]
fn an_unknown_kind_is_delivered_and_noted() {
    let batch = decode(&batch(&[store(&[(
        "kv_cache_spec_kind",
        text("ring_attention"),
    )])]));
    assert_eq!(stored(&batch, 0).kind, Some(SpecKind::Unknown));
    assert_eq!(refusals(&batch), [("unknown_kind", Some(0))]);
    assert!(batch.refused[0].reason.is_note());
}

#[test]
fn refused_events_in_a_row_stand_in_one_place_with_what_they_may_have_told() {
    let bad = |tag: &str| map(&[("type", text(tag)), ("block_hashes", text("x"))]);
    let payload = batch(&[
        bad("BlockRemoved"),
        store(&[]),
        bad("BlockStored"),
        bad("BlockStored"),
        store(&[]),
        bad("BlockStored"),
        bad("BlockRemoved"),
        store(&[]),
        bad("BlockMoved"),
    ]);
    let batch = decode(&payload);
    assert_eq!(refusals(&batch).len(), 6);
    let refused = batch.events.iter().filter_map(|event| match event {
        Event::Refused(untold) => Some(*untold),
        Event::Stored(_) | Event::Removed(_) | Event::Cleared => None,
    });
    let told: Vec<_> = refused.collect();
    let [stored, removed, anything] = [Untold::Stored, Untold::Removed, Untold::Anything];
    assert_eq!(told, [removed, stored, anything, anything]);
}

#[test]
fn a_truncated_payload_keeps_the_events_before_the_cut() {
    let payload = batch(&vec![clear(); 100]);
    let whole = decode(&payload);
    for cut in 0..payload.len() {
        let mut batch = decode(&payload[..cut]);
        assert_eq!(batch.events.pop(), Some(Event::Refused(Untold::Anything)));
        assert_eq!(batch.events[..], whole.events[..batch.events.len()]);
        let (reason, index) = *refusals(&batch).last().unwrap();
        assert_eq!(reason, "malformed_batch");
        let complete = u32::try_from(batch.events.len()).unwrap();
        assert!(
            index.is_none_or(|index| index == complete),
            "cut {cut}: {batch:?}"
        );
    }
}

#[test]
fn details_of_the_batch_are_optional_or_noted() {
    let of = |fields: Vec<Value>| decode(&encode(&Value::Array(fields)));
    let none = || Value::Array(vec![]);
    let plain = of(vec![Value::Float(2.5), none()]);
    assert_eq!(
        (plain.ts, plain.dp_rank, plain.refused.len()),
        (Some(2.5), None, 0)
    );
    let later = of(vec![
        Value::Uint(2),
        none(),
        Value::Nil,
        map(&[]),
        text("more"),
    ]);
    assert_eq!(
        (later.ts, later.dp_rank, later.refused.len()),
        (Some(2.0), None, 0)
    );
    let odd = of(vec![text("now"), none(), Value::Int(-1)]);
    assert_eq!(
        refusals(&odd),
        [("bad_timestamp", None), ("bad_rank", None)]
    );
    let mut trailing = encode(&Value::Array(vec![Value::Nil, none()]));
    trailing.push(0);
    assert_eq!(refusals(&decode(&trailing)), [("trailing_bytes", None)]);
    for bad in [
        Value::Nil,
        Value::Array(vec![Value::Nil]),
        Value::Array(vec![Value::Nil; 3]),
    ] {
        assert_eq!(
            refusals(&decode(&encode(&bad))),
            [("malformed_batch", None)]
        );
    }
}

#[test]
fn a_steady_stream_allocates_nothing_and_an_outlier_is_given_back() {
    let payload = batch(&[store(&[("lora_name", text("a"))]), store(&[])]);
    let mut decoder = Decoder::new(Limits {
        kept_bytes: 100_000,
        ..Limits::default()
    });
    decoder.decode(&payload);
    let steady = decoder.arena_bytes();
    decoder.decode(&payload);
    assert_eq!(decoder.arena_bytes(), steady);
    decoder.decode(&batch(&[store(&[(
        "token_ids",
        uints(&vec![1_u32; 50_000]),
    )])]));
    assert!(decoder.arena_bytes() > 100_000);
    decoder.decode(&payload);
    assert_eq!(decoder.arena_bytes(), steady);
}

/// What a generated store says, in the terms of the decoder.
#[derive(Debug, Clone)]
struct Facts {
    hashes: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    block_size: u32,
    group: Option<u32>,
    lora: Option<String>,
    is_map: bool,
}

fn facts() -> impl Strategy<Value = Facts> {
    let token = prop_oneof![0..300_u32, any::<u32>()];
    let hash = prop_oneof![0..3_u64, any::<u64>()];
    let group = proptest::option::of(0..MAX_GROUPS);
    (
        proptest::collection::vec(hash.clone(), 0..5),
        proptest::option::of(hash),
        proptest::collection::vec(token, 0..40),
        0..64_u32,
        (group, proptest::option::of("[a-z]{1,40}"), any::<bool>()),
    )
        .prop_map(
            |(hashes, parent, tokens, block_size, (group, lora, is_map))| Facts {
                hashes,
                parent,
                tokens,
                block_size,
                group,
                lora,
                is_map,
            },
        )
}

fn spell(facts: &Facts) -> Value {
    let or_nil = |value: Option<Value>| value.unwrap_or(Value::Nil);
    let fields = [
        ("type", text("BlockStored")),
        ("block_hashes", uints(&facts.hashes)),
        ("parent_block_hash", or_nil(facts.parent.map(Value::Uint))),
        ("token_ids", uints(&facts.tokens)),
        ("block_size", Value::Uint(facts.block_size.into())),
        ("lora_id", Value::Nil),
        ("medium", text("GPU")),
        ("lora_name", or_nil(facts.lora.clone().map(Value::Text))),
        ("extra_keys", Value::Nil),
        (
            "group_idx",
            or_nil(facts.group.map(|group| Value::Uint(group.into()))),
        ),
    ];
    if facts.is_map {
        map(&fields)
    } else {
        Value::Array(fields.into_iter().map(|(_, value)| value).collect())
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(all in proptest::collection::vec(facts(), 0..8)) {
        let events: Vec<Value> = all.iter().map(spell).collect();
        let batch = decode(&batch(&events));
        prop_assert_eq!(refusals(&batch), []);
        prop_assert_eq!(batch.events.len(), all.len());
        for (index, facts) in all.iter().enumerate() {
            let store = stored(&batch, index);
            prop_assert_eq!(batch.hashes_of(store.hashes), &facts.hashes);
            prop_assert_eq!(batch.tokens_of(store.tokens), &facts.tokens);
            prop_assert_eq!(store.parent, facts.parent);
            prop_assert_eq!(store.block_size, facts.block_size);
            prop_assert_eq!(store.group, facts.group);
            prop_assert_eq!(store.lora_name.map(|name| batch.text(name)), facts.lora.as_deref());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        decode(&bytes);
    }

    #[test]
    fn arbitrary_events_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let payload = [&[0x92, 0xc0, 0xdc, 0, 40][..], &bytes].concat();
        decode(&payload);
    }
}
