//! KV events: from MessagePack bytes, in every form that engines publish, to flat arenas.
//!
//! Invariant: a payload is decoded or refused, event by event. One bad event never costs the rest of its
//! batch; every refusal has a reason with a stable name. The decoder never panics, never recurses,
//! and holds at most `MAX_ARENA_BYTES_PER_BYTE` bytes of arenas per byte of the largest payload it
//! has seen. It never interprets: the index decides what a hash, a parent or a span of tokens means.
//!
//! A batch is an array `[ts, events, dp_rank?]`; an event is an array (tag first) or a map (tag
//! under `type`), and one batch may contain both. `fields` is the table of both spellings.
//!
//! In reading order:
//! - `event`: one event, from bytes to a draft and into the batch;
//! - `keys`: lists of hashes, tokens and extra keys;
//! - `values`: single values with a meaning of their own;
//! - `trailing_fields`: fields that repeat the previous event's;
//! - `draft`: an event while its fields are read;
//! - `fields`: the table of fields, by position and by name;
//! - `cursor`: the MessagePack reader;
//! - `batch`: what a decoded payload is;
//! - `tokens`: token ids in an arena;
//! - `component`: the parts of SGLang's blocks;
//! - `refusal`: why something was refused.

mod batch;
mod component;
mod cursor;
mod draft;
mod event;
mod fields;
mod keys;
mod refusal;
mod tokens;
mod trailing_fields;
mod values;

pub use batch::{Batch, Event, ExtraKey, Medium, Removed, Span, Stored, Untold};
pub use component::{Component, Components};
pub use refusal::{BatchRefusal, RefusalReason};
pub use tokens::TokenArena;

use cursor::{Cursor, Read};
use event::EventReader;

/// Bytes of arenas per byte of payload that no input exceeds (a list of empty extra keys
/// in a vector that has just doubled reaches 48).
pub const MAX_ARENA_BYTES_PER_BYTE: usize = 64;

/// Groups of one engine; no engine has more.
pub const MAX_GROUPS: u32 = 256;
/// Data-parallel ranks of one engine; no engine has more.
pub const MAX_RANKS: u32 = 4096;

/// What the decoder accepts; larger things are refused as `too_large`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one payload. Default 256 MiB; values above `u32::MAX` act as `u32::MAX`.
    pub max_payload_bytes: usize,
    /// Hashes of one event. Default 1 Mi: a whole cache announced or removed at once.
    pub max_hashes: usize,
    /// Tokens (or token pairs) of one event. Default 16 Mi: longer than any model's context.
    pub max_tokens: usize,
    /// Bytes of one text or digest. Default 64 KiB.
    pub max_text_bytes: usize,
    /// Arenas larger than this are given back before the next batch. Default 16 MiB.
    pub kept_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_payload_bytes: 256 << 20,
            max_hashes: 1 << 20,
            max_tokens: 1 << 24,
            max_text_bytes: 64 << 10,
            kept_bytes: 16 << 20,
        }
    }
}

/// A reusable decoder: its arenas are kept between calls, so a steady stream allocates nothing.
#[derive(Debug, Default)]
pub struct Decoder {
    limits: Limits,
    batch: Batch,
    /// Second tokens of pairs, after reading them and before they become lookaheads.
    seconds: TokenArena,
}

impl Decoder {
    /// A decoder with these limits and empty arenas.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Decodes one published payload; the answer lives until the next call.
    ///
    /// This never fails as a whole: the parts that could not be read are in `Batch::refused`.
    pub fn decode(&mut self, payload: &[u8]) -> &Batch {
        if self.arena_bytes() > self.limits.kept_bytes {
            self.batch = Batch::default();
            self.seconds = TokenArena::default();
        }
        self.batch.clear();
        if payload.len() > self.limits.max_payload_bytes.min(u32::MAX as usize) {
            self.batch
                .refuse(RefusalReason::TooLarge, None, Untold::Anything);
            return &self.batch;
        }
        let mut cursor = Cursor::new(payload);
        if let Err(index) = self.read_batch(&mut cursor) {
            self.batch
                .refuse(RefusalReason::MalformedBatch, index, Untold::Anything);
        } else if !cursor.is_at_end() {
            self.batch
                .refuse(RefusalReason::TrailingBytes, None, Untold::Anything);
        }
        &self.batch
    }

    /// What the last call decoded.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Bytes that the arenas occupy now, used or not.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        self.batch.arena_bytes() + self.seconds.bytes()
    }

    /// Reads `[ts, events, dp_rank?, …]`; the error is the index of the event where the bytes stop
    /// making sense, `None` outside the events. Events read before it stay in the batch.
    fn read_batch(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Option<u32>> {
        let fields = cursor.promised_array().map_err(|_| None)?;
        if fields < 2 {
            return Err(None);
        }
        match attempt(cursor, Cursor::number)? {
            Ok(ts) => self.batch.ts = ts,
            Err(_) => self
                .batch
                .refuse(RefusalReason::BadTimestamp, None, Untold::Anything),
        }
        let events = cursor.promised_array().map_err(|_| None)?;
        let mut reader =
            EventReader::new(*cursor, &self.limits, &mut self.batch, &mut self.seconds);
        for index in 0..events {
            reader.read(index).map_err(|_| Some(index))?;
        }
        *cursor = reader.cursor;
        if fields > 2 {
            match attempt(cursor, Cursor::u32)? {
                Ok(rank) if rank.is_none_or(|rank| rank < MAX_RANKS) => self.batch.dp_rank = rank,
                Ok(_) | Err(_) => self
                    .batch
                    .refuse(RefusalReason::BadRank, None, Untold::Anything),
            }
        }
        for _ in 3..fields {
            cursor.skip().map_err(|_| None)?;
        }
        Ok(())
    }
}

/// Reads a value or null, or steps over all of it and says why it was refused.
fn attempt<'p, T>(
    cursor: &mut Cursor<'p>,
    read: impl FnOnce(&mut Cursor<'p>) -> Read<T>,
) -> Result<Read<Option<T>>, Option<u32>> {
    let mut ahead = *cursor;
    let value = ahead.optional(read);
    if value.is_ok() {
        *cursor = ahead;
    } else {
        cursor.skip().map_err(|_| None)?;
    }
    Ok(value)
}
