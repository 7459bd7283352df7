//! What an event says does not depend on the events before it, however much they look alike.

mod encoder;

use encoder::{Value, batch, map, text, uints};
use kvbraid_core::wire::{Batch, Decoder, Event, Medium, Span};
use proptest::prelude::*;

fn decode(payload: &[u8]) -> Batch {
    Decoder::default().decode(payload).clone()
}

/// Everything that an event of a batch says, in words.
fn told(batch: &Batch, index: usize) -> String {
    let text = |span: Option<Span>| span.map(|span| batch.text(span).to_owned());
    let place = |medium| match medium {
        Medium::Other(name) => format!("other {:?}", batch.text(name)),
        Medium::Gpu | Medium::Cpu | Medium::Storage => format!("{medium:?}"),
    };
    match &batch.events[index] {
        Event::Stored(stored) => {
            let blocks = stored.hashes.len as usize;
            let keys: Vec<_> = (0..blocks)
                .map(|block| {
                    let keys = batch.extra_keys_of(stored, block);
                    (format!("{keys:?}"), batch.lookahead_of(stored, block))
                })
                .collect();
            format!(
                "{:?}",
                (
                    (batch.hashes_of(stored.hashes), stored.parent),
                    (batch.tokens_of(stored.tokens), stored.block_size),
                    (place(stored.medium), stored.group, stored.kind),
                    (stored.lora_id, text(stored.lora_name), stored.window),
                    (stored.remote, text(stored.owner), text(stored.salt)),
                    (stored.extra_keys.is_some(), keys),
                    (stored.component, stored.components),
                )
            )
        }
        Event::Removed(removed) => format!(
            "{:?}",
            (
                (batch.hashes_of(removed.hashes), removed.group),
                removed.component,
                (place(removed.medium), removed.remote, text(removed.owner)),
            )
        ),
        Event::Cleared => "cleared".to_owned(),
        Event::Refused(untold) => format!("{untold:?}"),
    }
}

/// One of the few values that a field has here, so that events often agree.
fn value(field: &str, choice: usize) -> Value {
    let number = Value::Uint(choice as u64);
    match field {
        "block_hashes" => uints(&[7_u64, 8][choice..]),
        "token_ids" => uints(&[1, 2, 3, 70_000 + choice as u64]),
        "block_size" => Value::Uint(2),
        "parent_block_hash" | "lora_id" | "group_idx" | "kv_cache_spec_sliding_window" => number,
        "kv_cache_spec_kind" => text(["full_attention", "a_new_kind"][choice]),
        "medium" => text(["GPU", "swa"][choice]),
        "component_type" => text(["full", "mamba"][choice]),
        "component_types" => Value::Array(vec![text("full"), text(["full", "swa"][choice])]),
        "locality" => text(["LOCAL", "REMOTE"][choice]),
        // Refused where the blocks are not as many.
        "extra_keys" => Value::Array(vec![Value::Nil; 2 - choice]),
        _ => text(["a", "b"][choice]),
    }
}

const STORED: [&str; 17] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "cache_salt",
    "component_type",
    "component_types",
    "a_later_field",
];

#[derive(Debug, Clone)]
struct Spelling {
    tag: &'static str,
    is_map: bool,
    /// In this order, and so many of them.
    fields: Vec<&'static str>,
    /// The tag stands after so many fields of a map.
    tag_at: usize,
}

/// Mostly in order; or what comes first is mixed up, or everything.
fn orders() -> impl Strategy<Value = Vec<&'static str>> {
    let (first, later) = STORED.split_at(6);
    let mixed = (Just(first.to_vec()).prop_shuffle(), Just(later))
        .prop_map(|(first, later)| [&first[..], later].concat());
    prop_oneof![
        3 => Just(STORED.to_vec()),
        2 => mixed,
        1 => Just(STORED.to_vec()).prop_shuffle()
    ]
}

fn spellings() -> impl Strategy<Value = Spelling> {
    let tag = prop_oneof![3 => Just("BlockStored"), 2 => Just("BlockRemoved")];
    let tag_at = prop_oneof![3 => Just(0_usize), 1 => 0..6_usize];
    let len = 4..=STORED.len();
    (tag, prop::bool::weighted(0.7), orders(), len, tag_at).prop_map(
        |(tag, is_map, mut fields, len, tag_at)| {
            fields.truncate(len);
            Spelling {
                tag,
                is_map,
                fields,
                tag_at,
            }
        },
    )
}

/// What an event says in a spelling: a choice for each field, and one that a map leaves out.
fn choices() -> impl Strategy<Value = (u32, usize)> {
    let few = prop_oneof![3 => Just(0xf_u32), 1 => Just(u32::MAX)];
    let left_out = prop_oneof![4 => Just(usize::MAX), 1 => 0..6_usize];
    (any::<u32>(), few, left_out).prop_map(|(all, few, left_out)| (all & few, left_out))
}

fn spell(spelling: &Spelling, (choices, left_out): (u32, usize)) -> Value {
    let fields = spelling.fields.iter().enumerate();
    let mut fields: Vec<(&str, Value)> = fields
        .filter(|(at, _)| !spelling.is_map || *at != left_out)
        .map(|(at, field)| (*field, value(field, usize::from(choices >> at & 1 == 1))))
        .collect();
    let tag = text(spelling.tag);
    if spelling.is_map {
        fields.insert(spelling.tag_at.min(fields.len()), ("type", tag));
        return map(&fields);
    }
    let values = fields.into_iter().map(|(_, value)| value);
    Value::Array(std::iter::once(tag).chain(values).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_event_is_read_as_if_it_were_alone(
        spellings in prop::collection::vec(spellings(), 1..3),
        events in prop::collection::vec((any::<prop::sample::Index>(), choices()), 2..8),
    ) {
        let spelled = events.iter().map(|(at, choices)| spell(at.get(&spellings), *choices));
        let events: Vec<Value> = spelled.collect();
        let together = decode(&batch(&events));
        // One place stands for all refused events in a row; their reasons are compared.
        let is_read = |event: &Event| !matches!(event, Event::Refused(_));
        let mut read = (0..together.events.len()).filter(|at| is_read(&together.events[*at]));
        for (index, event) in (0..).zip(&events) {
            let alone = decode(&batch(std::slice::from_ref(event)));
            let reasons = together.refused.iter().filter(|r| r.event_index == Some(index));
            prop_assert_eq!(
                reasons.map(|r| r.reason).collect::<Vec<_>>(),
                alone.refused.iter().map(|r| r.reason).collect::<Vec<_>>()
            );
            if alone.events.iter().any(is_read) {
                let at = read.next();
                prop_assert_eq!(at.map(|at| told(&together, at)), Some(told(&alone, 0)));
            }
        }
        prop_assert_eq!(read.next(), None);
    }
}
