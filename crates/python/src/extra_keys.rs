//! What separates the caches of equal tokens, read from `kvbraid.hashing.ExtraKeys` by attribute
//! name.

use kvbraid_core::blocks::Extra;
use kvbraid_core::hash::{EmbedsDigest, ExtraKeys, MediaItem};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

use crate::errors::InvalidValueError;

/// `kvbraid.hashing.ExtraKeys`.
#[derive(FromPyObject)]
pub(crate) struct ExtraKeysArg {
    lora: Option<LoraArg>,
    cache_salt: Option<PyBackedStr>,
    media: Vec<MediaArg>,
    prompt_embeds: Option<Vec<PyBackedBytes>>,
}

#[derive(FromPyObject)]
struct LoraArg {
    name: PyBackedStr,
    path: PyBackedStr,
}

/// `kvbraid.hashing.MediaItem`.
#[derive(FromPyObject)]
pub(crate) struct MediaArg {
    identifier: PyBackedStr,
    offset: u32,
    length: u32,
}

impl MediaArg {
    pub(crate) fn item(&self) -> MediaItem<'_> {
        MediaItem {
            id: &self.identifier,
            offset: self.offset,
            length: self.length,
        }
    }
}

impl ExtraKeysArg {
    /// Calls `run` with the keys in the form that the hash functions take.
    pub(crate) fn with<T>(&self, run: impl FnOnce(ExtraKeys<'_>) -> PyResult<T>) -> PyResult<T> {
        let media: Vec<_> = self.media.iter().map(MediaArg::item).collect();
        let embeds = self.embeds()?;
        run(ExtraKeys {
            lora: self.lora.as_ref().map(|lora| (&*lora.name, &*lora.path)),
            cache_salt: self.cache_salt.as_deref(),
            media: &media,
            prompt_embeds: embeds.as_deref(),
        })
    }

    /// The keys in the form that a cache keeps; what only events show about the request is left
    /// out.
    pub(crate) fn into_extra(self) -> PyResult<Extra> {
        let media = self.media.iter();
        Ok(Extra {
            lora: self
                .lora
                .as_ref()
                .map(|lora| (lora.name.to_string(), lora.path.to_string())),
            cache_salt: self.cache_salt.as_ref().map(ToString::to_string),
            media: media
                .map(|item| (item.identifier.to_string(), item.offset, item.length))
                .collect(),
            prompt_embeds: self.embeds()?,
            ..Extra::default()
        })
    }

    fn embeds(&self) -> PyResult<Option<Vec<EmbedsDigest>>> {
        let digest_of = |(index, bytes): (usize, &PyBackedBytes)| {
            EmbedsDigest::try_from(&**bytes).map_err(|_| {
                InvalidValueError::new_err(format!(
                    "embeddings digest {index} has {} bytes; expected the 32 of SHA-256",
                    bytes.len()
                ))
            })
        };
        let all =
            |digests: &Vec<PyBackedBytes>| digests.iter().enumerate().map(digest_of).collect();
        self.prompt_embeds.as_ref().map(all).transpose()
    }
}
