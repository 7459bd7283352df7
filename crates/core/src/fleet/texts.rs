//! Interned texts (salts, LoRA names, owners), and the keys that texts add to prefixes.

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::nodes::SaltId;
use crate::prefix::{PrefixKey, scatter};

/// The texts of one model; 0 stands for none.
#[derive(Debug, Default)]
pub(super) struct Texts {
    ids: HashMap<Box<str>, u32>,
}

impl Texts {
    /// The number of a text, made when it is new; 0 for none or an empty one.
    pub(super) fn intern(&mut self, text: Option<&str>) -> u32 {
        let Some(text) = text.filter(|t| !t.is_empty()) else {
            return 0;
        };
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = u32::try_from(self.ids.len() + 1).expect("fewer than 2^32 texts");
        self.ids.insert(text.into(), id);
        id
    }

    /// The salt of a text.
    pub(super) fn salt(&mut self, text: Option<&str>) -> SaltId {
        SaltId(self.intern(text))
    }

    /// The salt of a text that some event or request showed before; `None` for a new one.
    #[must_use]
    pub(super) fn known_salt(&self, text: Option<&str>) -> Option<SaltId> {
        match text.filter(|t| !t.is_empty()) {
            None => Some(SaltId::NONE),
            Some(text) => self.ids.get(text).map(|&id| SaltId(id)),
        }
    }

    /// Bytes held, by estimate.
    #[must_use]
    pub(super) fn bytes(&self) -> usize {
        self.ids.allocation_size() + self.ids.keys().map(|t| t.len()).sum::<usize>()
    }
}

/// The key of the empty prefix under a LoRA adapter.
#[must_use]
pub(super) fn lora_seed(name: Option<&str>) -> PrefixKey {
    name.filter(|n| !n.is_empty())
        .map_or(0, |n| scatter(xxh3_64_with_seed(n.as_bytes(), 0x10AA)))
}

/// What a multimodal item adds at its first token.
#[must_use]
pub(super) fn media_mark(identifier: &str) -> u64 {
    scatter(xxh3_64_with_seed(identifier.as_bytes(), 0x3D1A))
}

/// What prompt embeddings add at the first token of their block.
#[must_use]
pub(super) fn digest_mark(digest: &[u8]) -> u64 {
    scatter(xxh3_64_with_seed(digest, 0xE3BD))
}

/// What lookahead tokens add to a block's identity.
#[must_use]
pub(super) fn lookahead_mark(tokens: &[u32]) -> u64 {
    if tokens.is_empty() {
        return 0;
    }
    let step = crate::prefix::step_of(tokens);
    scatter(step.local ^ (u64::from(step.tokens) << 61))
}
