//! The tokens of a request, and everything else that separates caches.

use super::texts::Marks;
use crate::hash::MediaItem;

/// A request as the index sees it.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// All tokens of the prompt.
    pub tokens: &'a [u32],
    /// The name of the LoRA adapter.
    pub lora: Option<&'a str>,
    /// The cache salt, which separates whole caches.
    pub salt: Option<&'a str>,
    /// The multimodal items, in the order of their offsets.
    pub media: &'a [MediaItem<'a>],
}

impl Prompt<'_> {
    /// The most tokens that any engine can reuse: one has to be left to compute.
    #[must_use]
    pub fn last_token(&self) -> u32 {
        u32::try_from(self.tokens.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// A multimodal item, as it enters keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct MediaMark {
    /// The position of its first token.
    pub(super) offset: u32,
    /// The number that it adds to the key there.
    pub(super) extra: u64,
}

impl MediaMark {
    /// The items of a request, in the request's order.
    #[must_use]
    pub(super) fn of(marks: &Marks, prompt: &Prompt<'_>) -> Vec<Self> {
        let items = prompt.media.iter();
        items
            .map(|item| Self {
                offset: item.offset,
                extra: marks.media(item.id),
            })
            .collect()
    }
}
