//! One block hash: 16 or 32 bytes, never anything else.

use crate::error::{Error, Result};

/// An engine's hash of one block, of 16 (XXH3-128) or 32 (SHA-256) bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    bytes: [u8; 32],
    len: u8,
}

impl Digest {
    /// The digest with these bytes.
    ///
    /// # Errors
    /// `InvalidValue` unless there are 16 or 32 of them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match bytes.len() {
            16 | 32 => Ok(Self::copied(bytes)),
            n => Err(Error::InvalidValue(format!(
                "a digest of {n} bytes; engines' digests have 16 (xxhash) or 32 (sha256)"
            ))),
        }
    }

    pub(super) fn from_array<const N: usize>(bytes: [u8; N]) -> Self {
        const { assert!(N == 16 || N == 32) };
        Self::copied(&bytes)
    }

    fn copied(source: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..source.len()].copy_from_slice(source);
        // 16 and 32 are the only lengths that reach this line.
        let len = if source.len() == 16 { 16 } else { 32 };
        Self { bytes, len }
    }

    /// The bytes as the engine publishes them in the byte form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The integer form on the wire: the last 8 bytes, big-endian.
    #[must_use]
    pub fn key(&self) -> u64 {
        let end = usize::from(self.len);
        self.bytes[end - 8..end]
            .iter()
            .fold(0, |key, byte| key << 8 | u64::from(*byte))
    }
}
