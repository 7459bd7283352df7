//! Interned texts (salts, LoRA names, owners), and the keys that texts add to prefixes.

use hashbrown::HashMap;

use super::nodes::SaltId;
use crate::prefix::{Field, PrefixKey, Step};
use crate::secret::{Mixer, Secret, TextHash};

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

/// What texts, and tokens after a boundary, add to keys. Nobody who does not know the secret can
/// choose two sums that are equal.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    field: Field,
    texts: TextHash,
    ahead: Mixer,
}

/// What a text is, so that an adapter and an image of one name add different numbers.
#[derive(Clone, Copy)]
enum Purpose {
    Lora = 1,
    Media,
    Embeddings,
}

impl Marks {
    /// The marks of a secret.
    #[must_use]
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            field: secret.field(),
            texts: secret.text_hash(),
            ahead: secret.mixer("lookahead"),
        }
    }

    /// What prefixes are made in.
    #[must_use]
    pub(super) fn field(&self) -> Field {
        self.field
    }

    /// The key of the empty prefix under a LoRA adapter.
    #[must_use]
    pub(super) fn lora_seed(&self, name: Option<&str>) -> PrefixKey {
        name.filter(|n| !n.is_empty())
            .map_or(0, |n| self.texts.of(Purpose::Lora as u8, n.as_bytes()))
    }

    /// What a multimodal item adds at its first token.
    #[must_use]
    pub(super) fn media(&self, identifier: &str) -> u64 {
        self.texts.of(Purpose::Media as u8, identifier.as_bytes())
    }

    /// What prompt embeddings add at the first token of their block.
    #[must_use]
    pub(super) fn embeddings(&self, digest: &[u8]) -> u64 {
        self.texts.of(Purpose::Embeddings as u8, digest)
    }

    /// What lookahead tokens add to a block's identity.
    #[must_use]
    pub(super) fn lookahead(&self, tokens: &[u32]) -> u64 {
        if tokens.is_empty() {
            return 0;
        }
        self.lookahead_step(self.field.step_of(tokens))
    }

    /// What lookahead tokens (at least one) add, by their step.
    #[must_use]
    pub(super) fn lookahead_step(&self, step: Step) -> u64 {
        self.ahead.mix(step.local)
    }
}
