//! The tokens of a request, and everything else that separates caches.

use super::texts::Marks;
use crate::hash::MediaItem;
use crate::wide::WideAt;

/// A request as the index sees it.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// All tokens of the prompt: of wide ones what 32 bits hold.
    pub tokens: &'a [u32],
    /// The name of the LoRA adapter.
    pub lora: Option<&'a str>,
    /// The cache salt, which separates whole caches.
    pub salt: Option<&'a str>,
    /// SGLang's extra key, which separates caches too.
    pub extra_key: Option<&'a str>,
    /// The multimodal items, in the order of their offsets.
    pub media: &'a [MediaItem<'a>],
    /// What those tokens have besides that 32 bits cannot hold, in the order of their places.
    pub wide: &'a [WideAt<'a>],
}

impl<'a> Prompt<'a> {
    /// The adapter. An empty name means none.
    pub(in crate::fleet) fn lora(&self) -> Option<&'a str> {
        self.lora.filter(|name| !name.is_empty())
    }

    /// The most tokens that any engine can reuse: one has to be left to compute.
    #[must_use]
    pub fn last_token(&self) -> u32 {
        u32::try_from(self.tokens.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// A multimodal item, or what a wide token has besides, as it enters keys.
#[derive(Debug, Clone, Copy)]
pub(in crate::fleet) struct MediaMark {
    /// The position of its first token.
    pub(in crate::fleet) offset: u32,
    /// The number that it adds to the key there.
    pub(in crate::fleet) extra: u64,
}

impl MediaMark {
    /// The items and the wide tokens of a request, in the order of their places.
    #[must_use]
    pub(in crate::fleet) fn of(marks: &Marks, prompt: &Prompt<'_>) -> Vec<Self> {
        let items = prompt.media.iter().map(|item| Self {
            offset: item.offset,
            extra: marks.media(item.id),
        });
        let wide = prompt.wide.iter().map(|wide| Self {
            offset: wide.at,
            extra: marks.wide(wide.token),
        });
        let mut found: Vec<Self> = items.chain(wide).collect();
        if !prompt.wide.is_empty() {
            found.sort_by_key(|mark| mark.offset);
        }
        found
    }
}
