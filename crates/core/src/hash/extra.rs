//! What else than tokens goes into a block's hash, and into which blocks.
//!
//! Extra keys of a block, in this order; none at all are written as the absent value:
//!
//! | key | in |
//! |---|---|
//! | `("lora", name, path)` | every block |
//! | `("mm", identifier, offset - block start)` | every block that the item overlaps |
//! | `("cache_salt", salt)` | the first block |
//! | `("prompt_embeds", digest)` | every block |
//!
//! With a lookahead of L tokens, items and embeddings are taken over the block *and* its L tokens,
//! and the keys become `(keys or absent, t1, …, tL)`.

use super::encode::{Encode, Tag};
use crate::error::{Error, Result};
use sha2::Digest as _;
use smallvec::SmallVec;
use std::ops::Range;

/// One multimodal input among the request's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MediaItem<'a> {
    /// The engine's identifier of its content, as events show it.
    pub id: &'a str,
    /// First token of its placeholder, counted from the request's start.
    pub offset: u32,
    /// Tokens of its placeholder.
    pub length: u32,
}

impl MediaItem<'_> {
    fn start(&self) -> usize {
        self.offset as usize
    }

    fn end(&self) -> usize {
        self.start() + self.length as usize
    }
}

/// SHA-256 of the embeddings that one block's hash covers.
pub type EmbedsDigest = [u8; 32];

/// What separates a request's blocks from blocks of the same tokens; every part is optional.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtraKeys<'a> {
    /// Name and path of the adapter.
    pub lora: Option<(&'a str, &'a str)>,
    /// Isolates caches of the same tokens; an empty one counts as none.
    pub cache_salt: Option<&'a str>,
    /// In the order of their offsets.
    pub media: &'a [MediaItem<'a>],
    /// One digest per block; blocks past the end have the digest of no embeddings.
    pub prompt_embeds: Option<&'a [EmbedsDigest]>,
}

impl ExtraKeys<'_> {
    /// Refuses media that is not in the order of its offsets.
    pub(super) fn validate(&self) -> Result<()> {
        for (index, pair) in self.media.windows(2).enumerate() {
            if pair[0].offset > pair[1].offset {
                return Err(Error::InvalidValue(format!(
                    "media item {} has offset {}, the one before it {}; sort them by offset",
                    index + 1,
                    pair[1].offset,
                    pair[0].offset
                )));
            }
        }
        Ok(())
    }
}

/// Where the engine's walk over a request's media stands; blocks are visited in order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MediaCursor(usize);

pub(crate) type Overlapping<'a> = SmallVec<[&'a MediaItem<'a>; 4]>;

impl MediaCursor {
    /// The items that belong to the hash of `block` plus `ahead` tokens after it.
    ///
    /// This follows the engine's own walk: of items that overlap *each other* it does not list
    /// all of them, because it stops at the first one that continues after the block.
    pub(crate) fn advance<'a>(
        &mut self,
        media: &'a [MediaItem<'a>],
        block: &Range<usize>,
        ahead: usize,
    ) -> Overlapping<'a> {
        let mut found = Overlapping::new();
        let end = block.end + ahead;
        let all_passed = media.last().is_none_or(|last| last.end() <= block.start);
        while !all_passed && let Some(item) = media.get(self.0).filter(|item| item.start() < end) {
            if item.end() > block.start {
                found.push(item);
                if item.end() > end {
                    break;
                }
            }
            self.0 += 1;
        }
        // Items that only the lookahead has passed belong to the next block too.
        while ahead > 0 && self.0 > 0 && media[self.0 - 1].end() > block.end {
            self.0 -= 1;
        }
        found
    }
}

/// Writes the extra keys of the hash over `block` (token positions) and the tokens `ahead`.
pub(super) fn write<E: Encode>(
    encoder: &mut E,
    extra: &ExtraKeys<'_>,
    cursor: &mut MediaCursor,
    block: Range<usize>,
    ahead: &[u32],
) {
    if ahead.is_empty() {
        return write_keys(encoder, extra, cursor, &block, 0);
    }
    encoder.open(1 + ahead.len());
    write_keys(encoder, extra, cursor, &block, ahead.len());
    for token in ahead {
        encoder.int(i64::from(*token));
    }
    encoder.close(1 + ahead.len());
}

fn write_keys<E: Encode>(
    encoder: &mut E,
    extra: &ExtraKeys<'_>,
    cursor: &mut MediaCursor,
    block: &Range<usize>,
    ahead: usize,
) {
    let media = cursor.advance(extra.media, block, ahead);
    let salt = extra
        .cache_salt
        .filter(|salt| block.start == 0 && !salt.is_empty());
    let embeds = extra.prompt_embeds.map(|digests| embeds_of(digests, block));
    let count = usize::from(extra.lora.is_some())
        + media.len()
        + usize::from(salt.is_some())
        + usize::from(embeds.is_some());
    if count == 0 {
        return encoder.none();
    }
    encoder.open(count);
    if let Some((name, path)) = extra.lora {
        key(encoder, Tag::Lora, 3, |e| {
            e.text(name);
            e.text(path);
        });
    }
    for item in media {
        key(encoder, Tag::Media, 3, |e| {
            e.text(item.id);
            e.int(relative(item.offset, block.start));
        });
    }
    if let Some(salt) = salt {
        key(encoder, Tag::CacheSalt, 2, |e| e.text(salt));
    }
    if let Some(digest) = embeds {
        key(encoder, Tag::PromptEmbeds, 2, |e| e.bytes(&digest));
    }
    encoder.close(count);
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "a position in a slice of tokens is below 2^61"
)]
fn relative(offset: u32, block_start: usize) -> i64 {
    i64::from(offset) - block_start as i64
}

fn key<E: Encode>(encoder: &mut E, tag: Tag, len: usize, values: impl FnOnce(&mut E)) {
    encoder.open(len);
    encoder.tag(tag);
    values(encoder);
    encoder.close(len);
}

fn embeds_of(digests: &[EmbedsDigest], block: &Range<usize>) -> EmbedsDigest {
    let index = block.start / block.len();
    digests
        .get(index)
        .copied()
        .unwrap_or_else(|| sha2::Sha256::digest([]).into())
}
