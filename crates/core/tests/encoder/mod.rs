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
