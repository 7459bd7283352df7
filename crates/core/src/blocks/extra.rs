//! What separates a request's cache from that of other requests with the same tokens.

use crate::hash::{EmbedsDigest, ExtraKeys, MediaItem};

/// What separates a request's cache from that of other requests with the same tokens, and what its
/// events say about that.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// The name and the path of the LoRA adapter.
    pub lora: Option<(String, String)>,
    /// The engine's number for the adapter.
    pub lora_id: Option<i64>,
    /// A text that keeps caches of the same tokens apart.
    pub cache_salt: Option<String>,
    /// The identifier, first token and length of each multimodal item, ordered by first token.
    pub media: Vec<(String, u32, u32)>,
    /// The digests of prompt embeddings, one per hash block.
    pub prompt_embeds: Option<Vec<EmbedsDigest>>,
    /// The session, which is only shown in events.
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

    /// The same data in the form that the hash function takes; `media` are the items as
    /// `media_items` lists them.
    pub(crate) fn keys<'a>(&'a self, media: &'a [MediaItem<'a>]) -> ExtraKeys<'a> {
        let lora = self.lora.as_ref();
        ExtraKeys {
            lora: lora.map(|(name, path)| (name.as_str(), path.as_str())),
            cache_salt: self.cache_salt.as_deref(),
            media,
            prompt_embeds: self.prompt_embeds.as_deref(),
        }
    }

    /// The digest of the embeddings of the block that starts at `start`, for blocks that are hash
    /// blocks.
    pub(crate) fn embeds_of(&self, start: usize, block_size: u32) -> Option<EmbedsDigest> {
        let digests = self.prompt_embeds.as_ref()?;
        digests.get(start / block_size as usize).copied()
    }
}
