//! The events of one pool of blocks, encoded as they happen, in the engines' own wire format.
//!
//! Each event is a map with a `type` and with its fields in the order in which vLLM declares them.
//! Optional fields that have their default value are left out. Because events are encoded at once,
//! no copy of the tokens is kept, and a batch only has to add its frame.

use rmp::encode::{self, ByteBuf};
use std::ops::Range;

use super::extra::Extra;
use crate::hash::{Digest, MediaCursor};
use crate::spec::{GroupSpec, SpecKind, Topology};

/// What the events of a group say about its kind.
#[derive(Debug, Clone, Copy)]
struct Label {
    kind: SpecKind,
    window: Option<u32>,
}

/// The recorded events that have not been taken yet.
#[derive(Debug, Clone, Default)]
pub struct EventLog {
    labels: Vec<Label>,
    /// The engines' word for the memory that has the blocks.
    medium: String,
    bytes: Vec<u8>,
    num_events: u32,
    is_on: bool,
    /// For each group, the bytes before and after the hash in the event that removes a block.
    removals: Vec<(Vec<u8>, Vec<u8>)>,
    /// The encoded tokens of the last store, which the next group's store usually repeats.
    tokens: Vec<u8>,
    tokens_of: Option<(u64, Range<u32>)>,
}

/// The request whose tokens are in the blocks of a store.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// A number that is equal only for the same request.
    pub request: u64,
    /// All tokens of the request.
    pub tokens: &'a [u32],
    /// What separates the request's cache.
    pub extra: &'a Extra,
}

/// A block that a store lists.
#[derive(Debug, Clone, Copy)]
pub struct ListedBlock {
    /// The hash that the block is found by.
    pub digest: Digest,
    /// The position of the block's first token.
    pub start: u32,
}

/// Blocks of one group that became findable.
#[derive(Debug, Clone)]
pub struct StoreEvent<'a> {
    /// The request whose tokens they hold.
    pub source: Source<'a>,
    /// Their group.
    pub group: u16,
    /// The blocks of the span that are kept, in order.
    pub listed: &'a [ListedBlock],
    /// The hash of the prefix before the span.
    pub parent: Option<Digest>,
    /// The tokens that the store spans.
    pub span: Range<u32>,
    /// Tokens per block.
    pub block_size: u32,
}

impl EventLog {
    /// An empty log of the blocks in `medium`. It records nothing unless `is_on`.
    #[must_use]
    pub fn new(topology: &Topology, medium: &str, is_on: bool) -> Self {
        let label = |group: &GroupSpec| Label {
            kind: group.kind,
            window: group.window.filter(|_| group.kind.is_window()),
        };
        let groups = 0..topology.groups.len();
        Self {
            labels: topology.groups.iter().map(label).collect(),
            medium: medium.to_owned(),
            removals: groups.map(|group| removal(group, medium)).collect(),
            is_on,
            ..Self::default()
        }
    }

    /// Whether anything is recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Hands over what was recorded: the events one after the other, and their number.
    pub fn take<T>(&mut self, take: impl FnOnce(&[u8], u32) -> T) -> T {
        self.tokens_of = None;
        let taken = take(&self.bytes, std::mem::take(&mut self.num_events));
        self.bytes.clear();
        taken
    }

    /// Records an event with `write`, if recording is on.
    fn record(&mut self, write: impl FnOnce(&mut Self, &mut ByteBuf)) {
        if self.is_on {
            let mut out = ByteBuf::from_vec(std::mem::take(&mut self.bytes));
            write(self, &mut out);
            self.bytes = out.into_vec();
            self.num_events += 1;
        }
    }

    /// Records that all hashes were forgotten.
    pub fn cleared(&mut self) {
        self.record(|_, out| {
            map(out, 1);
            text_field(out, "type", "AllBlocksCleared");
        });
    }

    /// Records that a block of a group is no longer found by a hash, of which `key` is the short
    /// form.
    pub fn removed(&mut self, key: u64, group: u16) {
        // Evictions come one by one, and all removals of a group differ only in the hash.
        self.record(|log, out| {
            let (head, tail) = &log.removals[usize::from(group)];
            out.as_mut_vec().extend_from_slice(head);
            number(out, key);
            out.as_mut_vec().extend_from_slice(tail);
        });
    }

    /// Records that blocks became findable.
    pub fn stored(&mut self, event: &StoreEvent<'_>) {
        self.record(|log, out| log.write_store(out, event));
    }

    fn write_store(&mut self, out: &mut ByteBuf, store: &StoreEvent<'_>) {
        let extra = store.source.extra;
        let label = self.labels[usize::from(store.group)];
        let has_keys = !store.listed.is_empty();
        let session = extra.session_id.as_deref();
        let optional = [has_keys, label.window.is_some(), session.is_some()];
        let num_optional = optional.iter().filter(|is_there| **is_there).count();
        map(out, 10 + num_optional);
        text_field(out, "type", "BlockStored");
        text(out, "block_hashes");
        array(out, store.listed.len());
        for block in store.listed {
            number(out, block.digest.key());
        }
        text(out, "parent_block_hash");
        optional_number(out, store.parent.map(|digest| digest.key()));
        text(out, "token_ids");
        self.write_tokens(out, &store.source, &store.span);
        text(out, "block_size");
        number(out, u64::from(store.block_size));
        text(out, "lora_id");
        match extra.lora_id {
            Some(id) => infallible(encode::write_sint(out, id)),
            None => nil(out),
        }
        text_field(out, "medium", &self.medium);
        text(out, "lora_name");
        match &extra.lora {
            Some((name, _)) => text(out, name),
            None => nil(out),
        }
        if has_keys {
            text(out, "extra_keys");
            write_extra_keys(out, store);
        }
        text(out, "group_idx");
        number(out, u64::from(store.group));
        text_field(out, "kv_cache_spec_kind", label.kind.name());
        if let Some(window) = label.window {
            text(out, "kv_cache_spec_sliding_window");
            number(out, u64::from(window));
        }
        if let Some(session) = session {
            text_field(out, "session_id", session);
        }
    }

    fn write_tokens(&mut self, out: &mut ByteBuf, source: &Source<'_>, span: &Range<u32>) {
        let of = Some((source.request, span.clone()));
        if self.tokens_of != of {
            let mut list = ByteBuf::from_vec(std::mem::take(&mut self.tokens));
            list.as_mut_vec().clear();
            let tokens = &source.tokens[span.start as usize..span.end as usize];
            array(&mut list, tokens.len());
            for &token in tokens {
                number(&mut list, u64::from(token));
            }
            self.tokens = list.into_vec();
            self.tokens_of = of;
        }
        out.as_mut_vec().extend_from_slice(&self.tokens);
    }
}

/// The bytes before and after the hash in the event that removes a block of a group.
fn removal(group: usize, medium: &str) -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut tail) = (ByteBuf::new(), ByteBuf::new());
    map(&mut head, 4);
    text_field(&mut head, "type", "BlockRemoved");
    text(&mut head, "block_hashes");
    array(&mut head, 1);
    text_field(&mut tail, "medium", medium);
    text(&mut tail, "group_idx");
    number(&mut tail, group as u64);
    (head.into_vec(), tail.into_vec())
}

/// Writes, for each listed block, what separates its cache, without the tags that go into the hash.
fn write_extra_keys(out: &mut ByteBuf, store: &StoreEvent<'_>) {
    let extra = store.source.extra;
    let media = extra.media_items();
    array(out, store.listed.len());
    let mut cursor = MediaCursor::default();
    for block in store.listed {
        let start = block.start as usize;
        let span = start..start + store.block_size as usize;
        let items = cursor.advance(&media, &span, 0);
        let salt = extra
            .cache_salt
            .as_deref()
            .filter(|s| start == 0 && !s.is_empty());
        let embeds = extra.embeds_of(start, store.block_size);
        let count = usize::from(extra.lora.is_some())
            + items.len()
            + usize::from(salt.is_some())
            + usize::from(embeds.is_some());
        if count == 0 {
            nil(out);
            continue;
        }
        array(out, count);
        if let Some((name, _)) = &extra.lora {
            text(out, name);
        }
        for item in items {
            array(out, 2);
            text(out, item.id);
            let offset = i64::from(item.offset) - i64::try_from(start).unwrap_or(i64::MAX);
            infallible(encode::write_sint(out, offset));
        }
        if let Some(salt) = salt {
            text(out, salt);
        }
        if let Some(digest) = embeds {
            infallible(encode::write_bin(out, &digest));
        }
    }
}

/// Writing to memory cannot fail: the error type has no value.
fn infallible<T, E>(_written: Result<T, E>) {}

fn map(out: &mut ByteBuf, len: usize) {
    infallible(encode::write_map_len(
        out,
        u32::try_from(len).unwrap_or(u32::MAX),
    ));
}

fn array(out: &mut ByteBuf, len: usize) {
    infallible(encode::write_array_len(
        out,
        u32::try_from(len).unwrap_or(u32::MAX),
    ));
}

fn text(out: &mut ByteBuf, text: &str) {
    infallible(encode::write_str(out, text));
}

fn text_field(out: &mut ByteBuf, name: &str, value: &str) {
    text(out, name);
    text(out, value);
}

fn number(out: &mut ByteBuf, value: u64) {
    infallible(encode::write_uint(out, value));
}

fn optional_number(out: &mut ByteBuf, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => nil(out),
    }
}

fn nil(out: &mut ByteBuf) {
    infallible(encode::write_nil(out));
}

/// The bytes before and after the events of a published payload: `[ts, [event, …], rank]`.
#[must_use]
pub fn frame(num_events: u32, ts: f64, dp_rank: Option<u32>) -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut tail) = (ByteBuf::new(), ByteBuf::new());
    array(&mut head, 3);
    infallible(encode::write_f64(&mut head, ts));
    array(&mut head, num_events as usize);
    optional_number(&mut tail, dp_rank.map(u64::from));
    (head.into_vec(), tail.into_vec())
}
