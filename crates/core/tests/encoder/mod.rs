//! A small MessagePack encoder for tests: values as data, bytes by `rmp`.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![expect(clippy::unwrap_used, reason = "a vector takes every byte")]

use rmp::encode;

/// A value of the wire.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Uint(u64),
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

pub(crate) fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

pub(crate) fn uints<T: Copy + Into<u64>>(values: &[T]) -> Value {
    Value::Array(
        values
            .iter()
            .map(|value| Value::Uint((*value).into()))
            .collect(),
    )
}

pub(crate) fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(
        fields
            .iter()
            .map(|(name, value)| (text(name), value.clone()))
            .collect(),
    )
}

/// A store; `more` are the fields that not every store has.
pub(crate) fn store<H: Copy + Into<u64>, T: Copy + Into<u64>>(
    hashes: &[H],
    parent: Option<u64>,
    tokens: &[T],
    block_size: u32,
    more: &[(&str, Value)],
) -> Value {
    let fields = [
        ("type", text("BlockStored")),
        ("block_hashes", uints(hashes)),
        ("parent_block_hash", parent.map_or(Value::Nil, Value::Uint)),
        ("token_ids", uints(tokens)),
        ("block_size", Value::Uint(block_size.into())),
    ];
    map(&[&fields, more].concat())
}

/// What the stores of an engine with one full-attention group have besides.
pub(crate) fn full_group() -> [(&'static str, Value); 2] {
    let kind = ("kv_cache_spec_kind", text("full_attention"));
    [kind, ("group_idx", Value::Uint(0))]
}

/// A removal; `more` are the fields that not every removal has.
pub(crate) fn remove<H: Copy + Into<u64>>(hashes: &[H], more: &[(&str, Value)]) -> Value {
    let fields = [
        ("type", text("BlockRemoved")),
        ("block_hashes", uints(hashes)),
    ];
    map(&[&fields, more].concat())
}

pub(crate) fn clear() -> Value {
    map(&[("type", text("AllBlocksCleared"))])
}

/// A batch with these events, timestamp 1.5 and rank 0.
pub(crate) fn batch(events: &[Value]) -> Vec<u8> {
    let fields = vec![
        Value::Float(1.5),
        Value::Array(events.to_vec()),
        Value::Uint(0),
    ];
    encode(&Value::Array(fields))
}

pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, value);
    bytes
}

fn write(out: &mut Vec<u8>, value: &Value) {
    let len = |n: usize| u32::try_from(n).unwrap();
    match value {
        Value::Nil => encode::write_nil(out).unwrap(),
        Value::Bool(value) => encode::write_bool(out, *value).unwrap(),
        Value::Uint(value) => drop(encode::write_uint(out, *value).unwrap()),
        Value::Int(value) => drop(encode::write_sint(out, *value).unwrap()),
        Value::Float(value) => encode::write_f64(out, *value).unwrap(),
        Value::Text(value) => encode::write_str(out, value).unwrap(),
        Value::Bytes(value) => encode::write_bin(out, value).unwrap(),
        Value::Array(values) => {
            encode::write_array_len(out, len(values.len())).unwrap();
            for value in values {
                write(out, value);
            }
        }
        Value::Map(entries) => {
            encode::write_map_len(out, len(entries.len())).unwrap();
            for (key, value) in entries {
                write(out, key);
                write(out, value);
            }
        }
    }
}
