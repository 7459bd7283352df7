//! The caches that SGLang's `dynamo` format of events keeps apart: by extra key and salt.
//!
//! There, hashes cover both, and salts alone are told. Given the first page of a request, its salt and
//! its extra key, the hash of that page can be computed as the engine does. So a prompt's cache is known
//! by its first hash: chains of text stand under a salt that is made of it, and a request looks under the
//! salt made of its own. What is told of adapters is not enough to compute theirs: their chains stand
//! under the salt that is told.

use sha2::{Digest as _, Sha256};

use crate::fleet::keys::prompt::Prompt;
use crate::fleet::keys::texts::Marks;
use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::slots::EngineKey;
use crate::fleet::rank::Rank;
use crate::wire::{Batch, Stored};

/// What a salt adds to a hash, in every format.
const SALT_TAG: &[u8] = b"sglang-cache-salt-v1\0";
/// What an extra key and a salt add to a hash, in the `dynamo` format.
const NAMESPACE_TAG: &[u8] = b"sglang-kv-event-namespace-v1";

/// The hash of the first page of a prompt, as the `dynamo` format has it.
#[must_use]
fn first_hash(page: &[u32], salt: Option<&str>, extra_key: Option<&str>) -> EngineKey {
    let mut chain = Sha256::new();
    if let Some(salt) = salt {
        let seed = Sha256::new().chain_update(SALT_TAG).chain_update(salt);
        chain.update(seed.finalize());
    }
    for token in page {
        chain.update(token.to_le_bytes());
    }
    let hash = key(chain);
    if salt.is_none() && extra_key.is_none() {
        return hash;
    }
    let mut seed = Sha256::new().chain_update(NAMESPACE_TAG);
    for part in [extra_key, salt] {
        match part {
            None => seed.update([0]),
            Some(text) => {
                seed.update([1]);
                seed.update((text.len() as u64).to_le_bytes());
                seed.update(text);
            }
        }
    }
    let space = Sha256::new().chain_update(seed.finalize());
    key(space.chain_update(hash.to_be_bytes()))
}

/// The first eight bytes of a digest.
fn key(hash: Sha256) -> EngineKey {
    let digest = hash.finalize();
    digest
        .iter()
        .take(8)
        .fold(0, |key, byte| key << 8 | u64::from(*byte))
}

/// The salt that the chains of a request stand under; `None` if its first hash cannot be computed.
#[must_use]
pub(in crate::fleet) fn of_request(
    marks: &Marks,
    prompt: &Prompt<'_>,
    page: usize,
) -> Option<SaltId> {
    let first = prompt.tokens.get(..page)?;
    let is_text = prompt.wide.iter().all(|wide| wide.at as usize >= page);
    let hash = || first_hash(first, not_empty(prompt.salt), not_empty(prompt.extra_key));
    (is_text && prompt.media.is_empty()).then(|| marks.space(hash()))
}

fn not_empty(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// The salt that the chain of a root store without an adapter stands under, if the hash of its first block gives it.
pub(in crate::fleet) fn space_of(
    rank: &mut Rank,
    marks: &Marks,
    batch: &Batch,
    stored: &Stored,
) -> Option<SaltId> {
    let is_apart = rank.catalog.config.hidden.dynamo_format;
    let hash = *batch
        .hashes_of(stored.hashes)
        .first()
        .filter(|_| is_apart)?;
    let page = batch
        .tokens_of(stored.tokens)
        .get(..stored.block_size as usize);
    if let (false, Some(page)) = (rank.is_format_confirmed, page) {
        let salt = stored.salt.map(|salt| batch.text(salt));
        rank.is_format_confirmed = first_hash(page, not_empty(salt), None) == hash;
    }
    Some(marks.space(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_keys_and_joined_ones_differ() {
        let page = [1, 2];
        let hashes = [
            first_hash(&page, None, None),
            first_hash(&page, Some("a"), None),
            first_hash(&page, None, Some("a")),
            first_hash(&page, Some("bc"), Some("a")),
            first_hash(&page, Some("c"), Some("ab")),
        ];
        for (i, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..i].contains(hash), "{i}");
        }
    }
}
