//! What separates a request's cache from that of the same tokens, kept with the request.

use crate::hash::{EmbedsDigest, ExtraKeys, MediaItem};

/// What separates a request's cache from that of the same tokens, and what its events say of it.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Name and path of the adapter.
    pub lora: Option<(String, String)>,
    /// The engine's number of the adapter.
    pub lora_id: Option<i64>,
    /// Keeps caches of the same tokens apart.
    pub cache_salt: Option<String>,
    /// Identifier, first token and length of each multimodal item, ordered by first token.
    pub media: Vec<(String, u32, u32)>,
    /// One digest per hash block.
    pub prompt_embeds: Option<Vec<EmbedsDigest>>,
    /// Shown in events.
    pub session_id: Option<String>,
}

impl Extra {
    pub(crate) fn media_items<'a>(&'a self) -> Vec<MediaItem<'a>> {
        let item = |(id, offset, length): &'a (String, u32, u32)| MediaItem {
            id,
            offset: *offset,
            length: *length,
        };
        self.media.iter().map(item).collect()
    }

    /// The same, as the hash function takes it; `media` are the items as `media_items` lists them.
    pub(crate) fn keys<'a>(&'a self, media: &'a [MediaItem<'a>]) -> ExtraKeys<'a> {
        let lora = self.lora.as_ref();
        ExtraKeys {
            lora: lora.map(|(name, path)| (name.as_str(), path.as_str())),
            cache_salt: self.cache_salt.as_deref(),
            media,
            prompt_embeds: self.prompt_embeds.as_deref(),
        }
    }

    /// The digest of a block's embeddings, where blocks are hash blocks.
    pub(crate) fn embeds_of(&self, start: usize, block_size: u32) -> Option<EmbedsDigest> {
        let digests = self.prompt_embeds.as_ref()?;
        digests.get(start / block_size as usize).copied()
    }
}
