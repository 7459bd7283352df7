//! What a store's blocks have besides tokens of 32 bits, as summands of their keys: extra keys, wide
//! tokens, and what their hashes cover beyond their ends.

use super::naming::Naming;
use crate::prefix::plus;
use crate::wire::{ExtraKey, Span, Stored};

impl Naming<'_, '_> {
    /// What the extra keys of a block, except salts, and its wide tokens add to its local part.
    pub(in crate::fleet) fn marks(
        &mut self,
        stored: &Stored,
        block: usize,
        block_size: u32,
    ) -> u64 {
        let is_root = stored.parent.is_none() && block == 0;
        let mut sum = self.wide_marks(stored, block, block_size);
        for key in self.batch.extra_keys_of(stored, block) {
            let (extra, offset) = match *key {
                // The salt of a root's first block is not part of its position.
                ExtraKey::Text(_) if is_root => continue,
                ExtraKey::Text(text) => {
                    self.rank.contradict("media_without_offset");
                    (self.marks.media(self.batch.text(text)), 0)
                }
                ExtraKey::Item { id, offset } => match u32::try_from(offset) {
                    Ok(offset) if offset < block_size => {
                        (self.marks.media(self.batch.text(id)), offset)
                    }
                    // The item begins in the lookahead, or began in an earlier block.
                    Ok(_) | Err(_) => continue,
                },
                ExtraKey::Digest(digest) => (self.marks.embeddings(self.batch.digest(digest)), 0),
            };
            self.rank.saw_media = true;
            let after = (block_size - 1).saturating_sub(offset);
            sum = plus(sum, self.marks.field().mark(extra, after));
        }
        sum
    }

    /// What the wide tokens of a block of the span, listed or not, add to its local part.
    pub(in crate::fleet) fn wide_marks(
        &self,
        stored: &Stored,
        block: usize,
        block_size: u32,
    ) -> u64 {
        let start = u32::try_from(block).unwrap_or(u32::MAX) * block_size;
        let tokens = Span {
            start: stored.tokens.start + start,
            len: block_size,
        };
        let field = self.marks.field();
        self.batch.wide_of(tokens).fold(0, |sum, wide| {
            let extra = self.marks.wide(wide.token);
            plus(sum, field.mark(extra, block_size - 1 - wide.at))
        })
    }

    /// The lookahead part of a block's hash: its lookahead tokens, and the media that begin there.
    #[inline]
    pub(in crate::fleet) fn ahead(&self, stored: &Stored, block: usize) -> u64 {
        if stored.lookahead.is_empty() && stored.extra_keys.is_none_or(Span::is_empty) {
            return 0;
        }
        self.ahead_of_some(stored, block)
    }

    fn ahead_of_some(&self, stored: &Stored, block: usize) -> u64 {
        let span = self.batch.lookahead_span(stored, block);
        let wide = self.batch.wide_of(span);
        let tokens = wide.fold(
            self.marks.lookahead(self.batch.tokens_of(span)),
            |sum, wide| plus(sum, self.marks.ahead(self.marks.wide(wide.token), wide.at)),
        );
        let block_size = i64::from(stored.block_size);
        let keys = self.batch.extra_keys_of(stored, block).iter();
        keys.filter_map(|key| match *key {
            ExtraKey::Item { id, offset } => Some((id, u32::try_from(offset - block_size).ok()?)),
            ExtraKey::Text(_) | ExtraKey::Digest(_) => None,
        })
        .fold(tokens, |sum, (id, offset)| {
            let extra = self.marks.media(self.batch.text(id));
            plus(sum, self.marks.ahead(extra, offset))
        })
    }
}
