//! The lists inside a store: tokens, pairs of tokens, extra keys, lookaheads.
//!
//! Each function reads one value into the arenas of the batch and returns the span. After a failed
//! read the caller truncates the arenas.

use crate::wire::cursor::{Cursor, Head, Read};
use crate::wire::tokens::{TokenArena, WideSink};
use crate::wire::{Batch, ExtraKey, Limits, RefusalReason, Span};

/// Reads block hashes.
pub(super) fn hashes(cursor: &mut Cursor<'_>, batch: &mut Batch, limits: &Limits) -> Read<Span> {
    let count = cursor.array()?;
    within(count, limits.max_hashes)?;
    let start = batch.hashes.len();
    batch.hashes.reserve(count as usize);
    for _ in 0..count {
        batch.hashes.push(cursor.hash()?);
    }
    Ok(Span::between(start, batch.hashes.len()))
}

/// Reads token ids. For pairs `[t, next]` the first ones are the tokens; the second ones go to
/// `seconds`, which is left empty otherwise.
pub(super) fn tokens(
    cursor: &mut Cursor<'_>,
    batch: &mut Batch,
    limits: &Limits,
    seconds: &mut TokenArena,
) -> Read<Span> {
    seconds.clear();
    if cursor.take_null() {
        return Ok(Span::default());
    }
    let count = cursor.array()?;
    within(count, limits.max_tokens)?;
    let start = batch.tokens.ids.len();
    let Batch { tokens, texts, .. } = &mut *batch;
    if count > 0 && is_array(*cursor) {
        tokens.ids.reserve(count as usize);
        seconds.ids.reserve(count as usize);
        for _ in 0..count {
            if cursor.array().map_err(|_| RefusalReason::BadTokens)? != 2 {
                return Err(RefusalReason::BadTokens);
            }
            for TokenArena { ids, wide } in [&mut *tokens, &mut *seconds] {
                let mut rest = WideSink {
                    wide,
                    texts,
                    max_text_bytes: limits.max_text_bytes,
                };
                ids.push(cursor.token(&mut rest, ids.len())?);
            }
        }
    } else {
        token_list(cursor, batch, limits, count)?;
    }
    Ok(Span::between(start, batch.tokens.ids.len()))
}

fn token_list(cursor: &mut Cursor<'_>, batch: &mut Batch, limits: &Limits, count: u32) -> Read<()> {
    let TokenArena { ids, wide } = &mut batch.tokens;
    let mut rest = WideSink {
        wide,
        texts: &mut batch.texts,
        max_text_bytes: limits.max_text_bytes,
    };
    cursor.tokens(count, ids, &mut rest)
}

/// Reads the extra keys of `blocks` blocks. `lora` is left out if it is the first of a block's list.
pub(super) fn extra_keys(
    cursor: &mut Cursor<'_>,
    batch: &mut Batch,
    limits: &Limits,
    (blocks, lora): (u32, Option<Span>),
) -> Read<Span> {
    let start = batch.extra_blocks.len();
    let count = cursor.array().map_err(as_bad_extra_keys)?;
    if count != blocks {
        return Err(RefusalReason::BadExtraKeys);
    }
    if cursor.take_nulls(count as usize) {
        return Ok(Span::between(start, start));
    }
    batch.extra_blocks.reserve(count as usize);
    for _ in 0..count {
        let first = batch.extras.len();
        let keys = match cursor.peek() {
            Some(0xc0) => u32::from(!cursor.take_null()),
            _ if is_array(*cursor) => cursor.array()?,
            _ => 1, // Older engines write a single identifier without a list.
        };
        for position in 0..keys {
            if position == 0 && lora.is_some_and(|name| take_text(cursor, batch.text(name))) {
                continue;
            }
            let key = extra_key(cursor, batch, limits).map_err(as_bad_extra_keys)?;
            batch.extras.push(key);
        }
        batch
            .extra_blocks
            .push(Span::between(first, batch.extras.len()));
    }
    Ok(Span::between(start, batch.extra_blocks.len()))
}

fn extra_key(cursor: &mut Cursor<'_>, batch: &mut Batch, limits: &Limits) -> Read<ExtraKey> {
    let mut ahead = *cursor;
    match ahead.head()? {
        Head::Str(_) => Ok(ExtraKey::Text(text(cursor, batch, limits)?)),
        Head::Bin(_) => {
            let start = batch.digests.len();
            batch
                .digests
                .extend_from_slice(cursor.bin(limits.max_text_bytes)?);
            Ok(ExtraKey::Digest(Span::between(start, batch.digests.len())))
        }
        Head::Array(2) => {
            *cursor = ahead;
            let id = text(cursor, batch, limits)?;
            Ok(ExtraKey::Item {
                id,
                offset: cursor.i64()?,
            })
        }
        Head::Array(_)
        | Head::Nil
        | Head::Bool
        | Head::Int(_)
        | Head::Float(_)
        | Head::Map(_)
        | Head::Ext(_) => Err(RefusalReason::BadExtraKeys),
    }
}

/// Reads TensorRT-LLM's keys of media of `blocks` blocks, a list for each, as digests: `None` if no
/// block has one.
pub(super) fn mm_keys(
    cursor: &mut Cursor<'_>,
    batch: &mut Batch,
    limits: &Limits,
    blocks: u32,
) -> Read<Option<Span>> {
    let (start, keys) = (batch.extra_blocks.len(), batch.extras.len());
    if cursor.array()? != blocks {
        return Err(RefusalReason::BadExtraKeys);
    }
    for _ in 0..blocks {
        let first = batch.extras.len();
        for _ in 0..cursor.array()? {
            let key = mm_key(cursor, batch, limits)?;
            batch.extras.push(key);
        }
        let of_block = Span::between(first, batch.extras.len());
        batch.extra_blocks.push(of_block);
    }
    let all = Span::between(start, batch.extra_blocks.len());
    Ok((batch.extras.len() > keys).then_some(all))
}

/// Reads one key: the hash of an item, and where in the item the block's part of it begins.
fn mm_key(cursor: &mut Cursor<'_>, batch: &mut Batch, limits: &Limits) -> Read<ExtraKey> {
    let Head::Map(len) = cursor.head()? else {
        return Err(RefusalReason::BadExtraKeys);
    };
    let start = batch.digests.len();
    let mut offset = None;
    for _ in 0..len {
        match cursor.str_bytes()? {
            b"hash" if batch.digests.len() == start => {
                let hash = cursor.text(limits.max_text_bytes)?;
                batch.digests.extend_from_slice(hash.as_bytes());
            }
            b"start_offset" => offset = Some(cursor.u32()?),
            _ => cursor.skip()?,
        }
    }
    match offset {
        Some(offset) if batch.digests.len() > start => {
            batch.digests.extend_from_slice(&offset.to_be_bytes());
            Ok(ExtraKey::Digest(Span::between(start, batch.digests.len())))
        }
        Some(_) | None => Err(RefusalReason::BadExtraKeys),
    }
}

/// Reads the lookahead tokens of `blocks` blocks.
pub(super) fn lookahead(
    cursor: &mut Cursor<'_>,
    batch: &mut Batch,
    limits: &Limits,
    blocks: u32,
) -> Read<Span> {
    let start = batch.lookahead_blocks.len();
    if cursor.array().map_err(|_| RefusalReason::BadLookahead)? != blocks {
        return Err(RefusalReason::BadLookahead);
    }
    batch.lookahead_blocks.reserve(blocks as usize);
    for _ in 0..blocks {
        let count = cursor.array().map_err(|_| RefusalReason::BadLookahead)?;
        let first = batch.tokens.ids.len();
        token_list(cursor, batch, limits, count)?;
        batch
            .lookahead_blocks
            .push(Span::between(first, batch.tokens.ids.len()));
    }
    Ok(Span::between(start, batch.lookahead_blocks.len()))
}

/// The lookahead that pairs imply: the second token of the last pair of each block.
pub(super) fn lookahead_of_pairs(
    batch: &mut Batch,
    seconds: &TokenArena,
    (blocks, block_size): (u32, u32),
) -> Read<Span> {
    let start = batch.lookahead_blocks.len();
    if block_size == 0 || seconds.ids.len() != blocks as usize * block_size as usize {
        return Err(RefusalReason::BadLookahead);
    }
    for block in 1..=blocks as usize {
        let first = batch.tokens.ids.len();
        batch.tokens.copy(seconds, block * block_size as usize - 1);
        batch.lookahead_blocks.push(Span::between(first, first + 1));
    }
    Ok(Span::between(start, batch.lookahead_blocks.len()))
}

/// Reads a text.
pub(super) fn text(cursor: &mut Cursor<'_>, batch: &mut Batch, limits: &Limits) -> Read<Span> {
    let text = cursor.text(limits.max_text_bytes)?;
    let start = batch.texts.len();
    batch.texts.push_str(text);
    Ok(Span::between(start, batch.texts.len()))
}

fn within(count: u32, limit: usize) -> Read<()> {
    if count as usize > limit {
        Err(RefusalReason::TooLarge)
    } else {
        Ok(())
    }
}

fn is_array(mut cursor: Cursor<'_>) -> bool {
    matches!(cursor.head(), Ok(Head::Array(_)))
}

/// Steps over this text if it stands here.
fn take_text(cursor: &mut Cursor<'_>, text: &str) -> bool {
    let mut ahead = *cursor;
    let is_same = ahead
        .str_bytes()
        .is_ok_and(|bytes| bytes == text.as_bytes());
    if is_same {
        *cursor = ahead;
    }
    is_same
}

/// A wrong type among the keys is refused as such; more specific reasons (size, UTF-8) stay.
pub(super) fn as_bad_extra_keys(reason: RefusalReason) -> RefusalReason {
    if reason == RefusalReason::MalformedEvent {
        RefusalReason::BadExtraKeys
    } else {
        reason
    }
}
