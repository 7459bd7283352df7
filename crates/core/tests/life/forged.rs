//! What somebody with the secret might write of groups without events: values that are well-formed and
//! of the right kind, and contradict the rest.

use std::ops::Range;

use serde_json::{Value, from_slice, json, to_vec};

use super::super::choices::Choices;
use super::super::reseal::text;
use super::events::Engine;

/// A snapshot with up to three such changes, which is to be sealed again.
pub(crate) fn forged(saved: &[u8], engine: Engine, choices: &mut impl Choices) -> Vec<u8> {
    let Range { start, end } = text(saved);
    let mut told: Value = from_slice(&saved[start..end]).unwrap();
    for rank in told["ranks"].as_array_mut().unwrap() {
        if rank["silent"].is_object() {
            for _ in 0..=choices.below(3) {
                forge(rank, engine, choices);
            }
        }
    }
    let told = to_vec(&told).unwrap();
    let length = (told.len() as u64).to_le_bytes();
    [&saved[..start - 8], &length, &told, &saved[end..]].concat()
}

fn forge(rank: &mut Value, engine: Engine, choices: &mut impl Choices) {
    let number = choices.below(12);
    let silent = &mut rank["silent"];
    match choices.below(8) {
        0..=2 => {
            let groups = silent["unshown"].as_array_mut().unwrap();
            let group = choices.below(groups.len());
            let changes = groups[group].as_array_mut().unwrap();
            for _ in 0..=choices.below(3) {
                changes.push(json!([engine.hash(choices), choices.below(2) == 0]));
            }
        }
        3 => silent["pages"]["has_keys"] = json!(choices.below(2) == 0),
        4 => silent["pages"]["unkeyed"] = json!({"start": number, "end": choices.below(12)}),
        5 => {
            let waiting = &mut silent["routes"]["waiting"];
            if waiting.is_object() {
                waiting[choices.one_of(&["seen", "needed"])] = json!(number);
            }
        }
        6 => {
            let marks = silent["marks"].as_array_mut().unwrap();
            let group = choices.below(marks.len());
            marks[group]["ends"] = json!([number]);
        }
        _ => rank["slots"]["placeholders"] = json!([choices.below(6)]),
    }
}
