//! Texts in the index: each text becomes a number that is made with a secret.
//!
//! No text is kept. Equal texts have equal numbers, and without the secret it is not possible to
//! find two texts with the same number. Texts therefore take no memory, however many of them are
//! sent.

use crate::prefix::{KeyField, PrefixKey, Step, mul};
use crate::secret::{Mixer, Secret, TextHash};
use crate::wide::WideToken;
use serde::{Deserialize, Serialize};

/// The numbers that texts, and tokens after a boundary, add to keys. Without the secret it is not
/// possible to choose two sums that are equal.
#[derive(Debug, Clone)]
pub(in crate::fleet) struct Marks {
    field: KeyField,
    texts: TextHash,
    ahead: Mixer,
    /// What the upper half of a wide token is multiplied by.
    upper: u64,
    /// What a mark beyond a block's end is multiplied by: the same mark in the block is another number.
    beyond: u64,
}

/// The number of a cache salt, or of another text that separates whole caches; 0 means no salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::fleet) struct SaltId(pub u64);

impl SaltId {
    /// No salt.
    pub(in crate::fleet) const NONE: Self = Self(0);
}

/// What a text is used for, so an adapter and an image of the same name add different numbers.
#[derive(Clone, Copy)]
enum Purpose {
    Lora = 1,
    Media,
    Embeddings,
    Salt,
    Owner,
    Token,
    Space,
    Model,
}

impl Marks {
    /// The marks that are made with this secret.
    #[must_use]
    pub(in crate::fleet) fn new(secret: &Secret) -> Self {
        Self {
            field: secret.field(),
            texts: secret.text_hash(),
            ahead: secret.mixer("lookahead"),
            upper: secret.factor("upper halves of tokens"),
            beyond: secret.factor("marks in a lookahead"),
        }
    }

    /// The field in which prefix keys are computed.
    #[must_use]
    pub(in crate::fleet) fn field(&self) -> KeyField {
        self.field
    }

    /// The number of a text; 0 for an absent or an empty text.
    fn number(&self, purpose: Purpose, text: Option<&str>) -> u64 {
        text.filter(|text| !text.is_empty()).map_or(0, |text| {
            self.texts.of(purpose as u8, text.as_bytes()).max(1)
        })
    }

    /// The salt that a text names.
    #[must_use]
    pub(in crate::fleet) fn salt(&self, text: Option<&str>) -> SaltId {
        SaltId(self.number(Purpose::Salt, text))
    }

    /// The salt that stands for the cache of which a first hash is known.
    #[must_use]
    pub(in crate::fleet) fn space(&self, hash: u64) -> SaltId {
        SaltId(
            self.texts
                .of(Purpose::Space as u8, &hash.to_be_bytes())
                .max(1),
        )
    }

    /// The owner that a text names.
    #[must_use]
    pub(in crate::fleet) fn owner(&self, text: Option<&str>) -> u64 {
        self.number(Purpose::Owner, text)
    }

    /// The key of the empty prefix under a LoRA adapter.
    #[must_use]
    pub(in crate::fleet) fn lora_seed(&self, name: Option<&str>) -> PrefixKey {
        self.number(Purpose::Lora, name)
    }

    /// What sets the keys of a model apart from those of others.
    #[must_use]
    pub(in crate::fleet) fn model(&self, name: &str) -> PrefixKey {
        self.texts.of(Purpose::Model as u8, name.as_bytes())
    }

    /// What a multimodal item adds at its first token.
    #[must_use]
    pub(in crate::fleet) fn media(&self, identifier: &str) -> u64 {
        self.texts.of(Purpose::Media as u8, identifier.as_bytes())
    }

    /// What prompt embeddings add at the first token of their block.
    #[must_use]
    pub(in crate::fleet) fn embeddings(&self, digest: &[u8]) -> u64 {
        self.texts.of(Purpose::Embeddings as u8, digest)
    }

    /// What a wide token adds in its place, besides the 32 bits there (`wide` says why that is enough).
    #[must_use]
    pub(in crate::fleet) fn wide(&self, token: WideToken<'_>) -> u64 {
        match token {
            WideToken::High(high) => mul(u64::from(high), self.upper),
            WideToken::Text(text) => self.texts.of(Purpose::Token as u8, text.as_bytes()),
        }
    }

    /// What a mark on the token `offset` tokens after a block's end adds to the block's identity.
    #[must_use]
    pub(in crate::fleet) fn ahead(&self, extra: u64, offset: u32) -> u64 {
        self.ahead_sum(self.field.mark(extra, offset))
    }

    /// The same for a sum of marks that are already at their offsets.
    #[must_use]
    pub(in crate::fleet) fn ahead_sum(&self, marks: u64) -> u64 {
        mul(marks, self.beyond)
    }

    /// What lookahead tokens add to a block's identity: of wide ones what 32 bits hold.
    #[must_use]
    pub(in crate::fleet) fn lookahead(&self, tokens: &[u32]) -> u64 {
        if tokens.is_empty() {
            return 0;
        }
        self.lookahead_step(self.field.step_of(tokens))
    }

    /// What the lookahead tokens add, of which there is at least one, given their step.
    #[must_use]
    pub(in crate::fleet) fn lookahead_step(&self, step: Step) -> u64 {
        self.ahead.mix(step.local)
    }
}
