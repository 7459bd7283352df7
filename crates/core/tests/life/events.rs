//! What the engines of a made-up life publish: every field of the wire, from small tables.

use super::super::choices::Choices;
use super::super::encoder::{self, Value, map, text};

/// Kind and block size of each group of an engine.
pub(crate) type Groups = &'static [(&'static str, u32)];

/// Who publishes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Engine {
    /// Its groups.
    pub groups: Groups,
    /// The window of every window group.
    pub window: u32,
    /// It tells of its first group alone, on the GPU as a rule, and its prompts are longer.
    pub is_silent: bool,
    /// What it says of a hash, a group or a prefix need not be what it said before.
    pub lies: bool,
    /// It may have two hashes for one prefix, as if something that no event tells kept them apart.
    /// What is undecided is then settled wrongly, and whether that is noticed depends on the order
    /// of the work.
    pub has_aliases: bool,
}

/// Engines; block sizes divide each other.
pub(crate) const GROUPS: [Groups; 6] = [
    &[("full_attention", 1)],
    &[("full_attention", 2)],
    &[("full_attention", 1), ("sliding_window", 1)],
    &[("full_attention", 2), ("mamba", 4)],
    &[("sliding_window", 1), ("sliding_window", 2)],
    &[
        ("full_attention", 1),
        ("chunked_local_attention", 2),
        ("mamba", 2),
    ],
];
/// Engines that tell of their first group alone.
pub(crate) const SILENT: [Groups; 4] = [
    &[("full_attention", 1), ("sliding_window", 1)],
    &[("full_attention", 2), ("sliding_window", 2)],
    &[("full_attention", 1), ("mamba", 1)],
    &[("full_attention", 2), ("mamba", 2), ("sliding_window", 2)],
];

impl Engine {
    /// The hash of a prefix that it may hold.
    pub(crate) fn hash(&self, choices: &mut impl Choices) -> u64 {
        let prompt = self.prompt(choices);
        hash_of(&prompt[..choices.below(prompt.len() + 1)], 0, false)
    }

    /// The tokens of a prompt that it may be sent: mostly of one letter if they are many, so that
    /// prompts have long prefixes in common.
    pub(crate) fn prompt(&self, choices: &mut impl Choices) -> Vec<u64> {
        if !self.is_silent {
            return prompt(choices, 12);
        }
        let run = choices.below(3) * choices.below(40);
        let mut tokens = vec![0; run];
        tokens.extend(prompt(choices, 6));
        tokens
    }
}

const MEDIA: [Option<&str>; 8] = [
    None,
    Some("GPU"),
    Some("GPU"),
    Some("CPU"),
    Some("DISK"),
    Some("DISK"),
    Some("STORAGE"),
    Some("a drawer"),
];

/// Tokens of a prompt: two letters, few of the second, so that prompts share prefixes. A third one is
/// rare and wide, and its lower half is that of the first.
fn prompt(choices: &mut impl Choices, most: usize) -> Vec<u64> {
    let len = choices.below(most + 1);
    (0..len)
        .map(|_| match choices.below(16) {
            0..=11 => 0,
            12..=14 => 1,
            _ => 1 << 32,
        })
        .collect()
}

/// A payload of up to four events, whole most of the time.
pub(crate) fn batch(engine: Engine, choices: &mut impl Choices) -> Vec<u8> {
    let count = 1 + choices.below(4);
    let mut events: Vec<Value> = Vec::new();
    for _ in 0..count {
        let event = match choices.below(12) {
            0..=7 => Store::choose(engine, choices).event(choices),
            8..=10 => removed(engine, choices),
            _ => cleared(choices),
        };
        if choices.once_in(6) {
            events.push(event.clone()); // Said twice, as groups of one model do.
        }
        events.push(event);
    }
    let rank = choices.one_of(&[
        Value::Nil,
        Value::Nil,
        Value::Nil,
        Value::Uint(0),
        Value::Uint(1),
        Value::Uint(2),
    ]);
    let fields = vec![Value::Float(1.0), Value::Array(events), rank];
    let mut payload = encoder::encode(&Value::Array(fields));
    if choices.once_in(40) {
        payload.truncate(choices.below(payload.len()));
    }
    payload
}

/// The hash that an honest engine gives a prefix: a function of its salt, adapter and tokens. An
/// alias is a second hash of the same prefix.
fn hash_of(tokens: &[u64], salt: u64, alias: bool) -> u64 {
    let first = 1 + (salt << 1 | u64::from(alias));
    let next =
        |code: u64, t: &u64| code.wrapping_mul(6_364_136_223_846_793_005) + (t >> 31 | t & 1);
    tokens
        .iter()
        .fold(first, |code, t| next(code, t).wrapping_add(1))
}

/// A store while its parts are chosen.
struct Store {
    engine: Engine,
    tokens: Vec<u64>,
    /// First token of the span.
    start: usize,
    block: usize,
    group: usize,
    kind: &'static str,
    salt: u64,
    /// Ends of the listed blocks.
    ends: Vec<usize>,
}

impl Store {
    fn choose(engine: Engine, choices: &mut impl Choices) -> Self {
        let group = if engine.is_silent {
            0
        } else {
            choices.below(engine.groups.len())
        };
        let (kind, size) = engine.groups[group];
        let mut block = size as usize;
        if engine.lies && choices.once_in(8) {
            block = choices.one_of(&[1, 2, 3, 4]); // Part of a block, or a surprise.
        }
        let tokens = engine.prompt(choices);
        let blocks = tokens.len() / block;
        let is_part = choices.once_in(if engine.is_silent { 16 } else { 3 });
        let first = if is_part && blocks > 0 {
            choices.below(blocks)
        } else {
            0
        };
        let start = first * block;
        let all = (first + 1..=blocks).map(|n| n * block);
        let is_sparse = !engine.is_silent && choices.once_in(4);
        let ends = all.filter(|_| !(is_sparse && choices.once_in(2))).collect();
        Self {
            engine,
            tokens: tokens[..blocks * block].to_vec(),
            start,
            block,
            group,
            kind,
            salt: if engine.is_silent {
                0
            } else {
                choices.one_of(&[0, 0, 0, 0, 1, 2])
            },
            ends,
        }
    }

    fn hash(&self, end: usize, choices: &mut impl Choices) -> Value {
        let alias = self.engine.has_aliases && choices.once_in(16);
        let hash = match choices.below(64) {
            0 if self.engine.lies => choices.below(16) as u64,
            _ => hash_of(&self.tokens[..end], self.salt, alias),
        };
        Value::Uint(hash)
    }

    fn event(&self, choices: &mut impl Choices) -> Value {
        let hashes: Vec<Value> = self
            .ends
            .iter()
            .map(|&end| self.hash(end, choices))
            .collect();
        let parent = match self.start {
            0 => Value::Nil,
            start => self.hash(start, choices),
        };
        let mut block = Value::Uint(self.block as u64);
        let mut tokens: Vec<Value> = self.tokens[self.start..]
            .iter()
            .map(|&t| Value::Uint(t))
            .collect();
        if !self.engine.is_silent && choices.once_in(8) {
            (block, tokens) = (Value::Uint(0), Vec::new()); // A copy announced by hash alone.
        } else if self.engine.lies && choices.once_in(16) {
            // Pairs of tokens, as engines with a draft head send them.
            let pair = |(i, t): (usize, &Value)| {
                let next = tokens.get(i + 1).unwrap_or(&Value::Uint(0)).clone();
                Value::Array(vec![t.clone(), next])
            };
            tokens = tokens.iter().enumerate().map(pair).collect();
        }
        let mut fields = vec![
            ("type", text("BlockStored")),
            ("block_hashes", Value::Array(hashes)),
            ("parent_block_hash", parent),
            ("token_ids", Value::Array(tokens)),
            ("block_size", block),
        ];
        self.add_details(&mut fields, choices);
        map(&fields)
    }

    fn add_details(&self, fields: &mut Vec<(&str, Value)>, choices: &mut impl Choices) {
        add_place(fields, (self.group, self.engine), choices);
        fields.push((
            "kv_cache_spec_kind",
            match choices.below(64) {
                0 if self.engine.lies => text("mamba"),
                1 if self.engine.lies => text("a new kind"),
                2 => Value::Nil,
                _ => text(self.kind),
            },
        ));
        if self.kind == "sliding_window" {
            let window = if self.engine.lies && choices.once_in(64) {
                2
            } else {
                self.engine.window
            };
            fields.push(("kv_cache_spec_sliding_window", Value::Uint(window.into())));
        }
        if self.salt > 0 {
            let name = if self.salt == 1 { "s" } else { "t" };
            let shows_salt = self.start == 0 && self.ends.first() == Some(&self.block);
            if choices.once_in(3) {
                fields.push(("cache_salt", text(name)));
            } else if shows_salt || self.engine.lies {
                fields.push(("extra_keys", self.extra_keys(text(name))));
            }
        } else if self.engine.lies && choices.once_in(16) {
            let key = choices.one_of(&[
                Value::Array(vec![text("i"), Value::Uint(0)]),
                Value::Array(vec![text("i"), Value::Int(-1)]),
                Value::Bytes(vec![1, 2]),
                text("i"),
            ]);
            fields.push(("extra_keys", self.extra_keys(key)));
        }
        match choices.below(24) {
            0 if self.engine.lies => fields.push(("lora_name", text("l"))),
            1 if self.engine.lies => fields.push(("lora_id", Value::Uint(3))),
            2 if self.engine.lies => fields.push(("lookahead_token_ids", self.lookahead(choices))),
            _ => {}
        }
    }

    /// One key at the first listed block.
    fn extra_keys(&self, key: Value) -> Value {
        let rest = self.ends.iter().skip(1).map(|_| Value::Nil);
        let first = (!self.ends.is_empty()).then(|| Value::Array(vec![key]));
        Value::Array(first.into_iter().chain(rest).collect())
    }

    fn lookahead(&self, choices: &mut impl Choices) -> Value {
        let of = |choices: &mut dyn FnMut() -> usize| {
            Value::Array((0..choices()).map(|_| Value::Uint(1)).collect())
        };
        let lists = self.ends.iter().map(|_| of(&mut || choices.below(3)));
        Value::Array(lists.collect())
    }
}

/// Group, medium, locality and owner of a store or a removal.
fn add_place(
    fields: &mut Vec<(&str, Value)>,
    (group, engine): (usize, Engine),
    choices: &mut impl Choices,
) {
    let lies = engine.lies;
    if engine.is_silent && !choices.once_in(64) {
        fields.push(("medium", text("GPU")));
        return;
    }
    match choices.below(48) {
        0 if lies => {}
        1 if lies => fields.push(("group_idx", Value::Uint(7))),
        _ => fields.push(("group_idx", Value::Uint(group as u64))),
    }
    if let Some(medium) = choices.one_of(&MEDIA) {
        fields.push(("medium", text(medium)));
    }
    match choices.below(12) {
        0 => fields.push(("locality", text("REMOTE"))),
        1 => fields.push(("ownership", text("x"))),
        2 => fields.push(("ownership", text("y"))),
        _ => {}
    }
    let component = |choices: &mut dyn FnMut() -> usize| text(["full", "swa", "mamba"][choices()]);
    match choices.below(128) {
        0..=2 if lies => fields.push(("component_type", component(&mut || choices.below(3)))),
        3 if lies => {
            let listed = (0..choices.below(4)).map(|_| component(&mut || choices.below(3)));
            fields.push(("component_types", Value::Array(listed.collect())));
        }
        _ => {}
    }
}

fn removed(engine: Engine, choices: &mut impl Choices) -> Value {
    let store = Store::choose(engine, choices);
    let hashes = store.ends.iter().map(|&end| store.hash(end, choices));
    let mut fields = vec![
        ("type", text("BlockRemoved")),
        ("block_hashes", Value::Array(hashes.collect())),
    ];
    add_place(&mut fields, (store.group, store.engine), choices);
    map(&fields)
}

fn cleared(choices: &mut impl Choices) -> Value {
    match choices.below(2) {
        0 => encoder::clear(),
        _ => Value::Array(vec![text("AllBlocksCleared")]),
    }
}
