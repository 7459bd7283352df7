//! How the hashes of a sparse store get their places. Unknown hashes wait in limbo with everything
//! that the store tells about them.

use std::ops::Range;

use super::naming::{Naming, StoreStart};
use crate::fleet::limbo::{PlacedBy, SparseStore};
use crate::fleet::pod::engine_chain::RootHashes;
use crate::fleet::presence::slots::{SlotId, Whereabouts};
use crate::fleet::rank::Rank;
use crate::prefix::{Step, plus};
use crate::wire::{ExtraKey, Stored};

/// The largest number of hashes of a sparse store whose places its tokens can tell: more than any
/// prompt has blocks.
const MOST_TOLD: u32 = 131_072;

/// Whether a sparse store is kept as a whole, with its tokens. A store that is too long for that
/// counts as single hashes, which may stand anywhere.
#[must_use]
pub(in crate::fleet) fn is_one(stored: &Stored) -> bool {
    !stored.tokens.is_empty() && stored.hashes.len <= MOST_TOLD
}

impl Naming<'_, '_> {
    /// Finds the slots of a sparse store, or of a part of one without tokens. Unknown hashes go to
    /// limbo.
    pub(in crate::fleet) fn sparse(
        &mut self,
        stored: &Stored,
        part: Range<usize>,
        out: &mut Vec<SlotId>,
    ) {
        let hashes = &self.batch.hashes_of(stored.hashes)[part];
        let first = out.len();
        let is_placed =
            |rank: &Rank, slot| matches!(rank.slots.whereabouts(slot), Whereabouts::Placed(_));
        let slots = hashes.iter().map_while(|&hash| {
            let slot = self.rank.slots.find(hash, self.shared.nodes);
            slot.filter(|&slot| is_placed(self.rank, slot))
        });
        out.extend(slots);
        if out.len() - first == hashes.len() {
            return;
        }
        out.truncate(first);
        let block_size = stored.block_size;
        let tells_blocks = is_one(stored)
            && block_size > 0
            && stored.tokens.len.is_multiple_of(block_size)
            && u64::from(stored.hashes.len) * u64::from(block_size) <= u64::from(stored.tokens.len)
            && !self.rank.saw_media
            && !self.has_media(stored);
        if tells_blocks && stored.parent.is_none() && self.rank.chain.is_sought(self.hash_block()) {
            let tokens = self.batch.tokens_of(stored.tokens);
            self.check_chain(stored, tokens, RootHashes::Somewhere(hashes));
        }
        let anchor = tells_blocks.then(|| self.anchor(stored, false));
        let salt = anchor.as_ref().map(|a| a.salt);
        for &hash in hashes {
            let Rank { slots, limbo, .. } = &mut *self.rank;
            out.push(slots.find(hash, self.shared.nodes).unwrap_or_else(|| {
                let entry = limbo.new_entry(hash, salt, slots);
                limbo.slot_of(entry)
            }));
        }
        if let Some(anchor) = anchor {
            self.add_span(stored, anchor, &out[first..]);
        }
        self.settle();
    }

    fn has_media(&mut self, stored: &Stored) -> bool {
        let (mut has_media, mut lacks_offset) = (false, false);
        for block in 0..stored.hashes.len as usize {
            for key in self.batch.extra_keys_of(stored, block) {
                match key {
                    ExtraKey::Item { .. } | ExtraKey::Digest(_) => has_media = true,
                    ExtraKey::Text(_) => lacks_offset |= stored.parent.is_some() || block > 0,
                }
            }
        }
        if lacks_offset {
            self.rank.contradict("media_without_offset");
        }
        self.rank.saw_media |= has_media || lacks_offset;
        has_media || lacks_offset
    }

    fn add_span(&mut self, stored: &Stored, anchor: StoreStart, slots: &[SlotId]) {
        self.index_first_token(stored, anchor.at);
        let tokens = self.batch.tokens_of(stored.tokens);
        let blocks = 0..tokens.len() / stored.block_size as usize;
        let wide: Vec<u64> = blocks
            .map(|block| self.wide_marks(stored, block, stored.block_size))
            .collect();
        let ends = self.units.with(stored.block_size, |unit| {
            let chunks = tokens.chunks_exact(stored.block_size as usize).zip(&wide);
            let ends = chunks.scan(Step::NONE, |end, (chunk, wide)| {
                end.tokens += stored.block_size;
                end.local = unit.advance(end.local, plus(unit.local(chunk), *wide));
                Some(*end)
            });
            ends.collect()
        });
        let listed: Vec<(SlotId, u64)> = slots
            .iter()
            .enumerate()
            .map(|(j, &slot)| (slot, self.ahead(stored, j)))
            .collect();
        let catalog = &self.rank.catalog;
        let tails = (stored.is_on_own_gpu())
            .then(|| catalog.tails(catalog.resolve(stored.group), stored.block_size))
            .flatten();
        let store = SparseStore {
            start: anchor.at,
            salt: anchor.salt,
            ends,
            listed: &listed,
            tails,
        };
        let bit = self.rank.column.bit;
        let Rank {
            slots,
            limbo,
            effort,
            ..
        } = &mut *self.rank;
        let mut context = Rank::limbo_context(slots, self.shared, bit, PlacedBy::Join, effort);
        limbo.add_span(store, &mut context);
    }
}
