//! The engines' chained block hashes, byte for byte, from tokens and extra keys.
//!
//! Holds the four algorithms, the digest type and the chain. Invariant: hash `n` is the algorithm
//! applied to the serialised triple `(hash n-1, tokens of block n, extra keys of block n or none)`,
//! where hash -1 is the engine's seed hash; only whole blocks are hashed. It never invents a seed:
//! if an engine draws one at random, the caller has to know it. `digest` is one hash and `extra`
//! what tokens do not tell; `encode` is what `cbor` and `pickle` have to offer.
//!
//! ```text
//!  tokens   |<- block_size ->|<- block_size ->|<- rest ->
//!  hash 0    ^^^^^^^^^^^^^^^^ ++                            ++ = lookahead tokens, if configured
//!  hash 1    (hash 0)         ^^^^^^^^^^^^^^^^ ++
//! ```

use serde::{Deserialize, Serialize};

mod cbor;
mod digest;
mod encode;
mod extra;
mod pickle;

pub(crate) use crate::error::{Error, Result};
use crate::names::names;
use cbor::Cbor;
pub use digest::Digest;
use encode::Encode;
pub(crate) use extra::MediaCursor;
pub use extra::{EmbedsDigest, ExtraKeys, MediaItem};
use pickle::Pickle;
use sha2::Digest as _;

/// How an engine serialises and hashes a block, spelled as in `HashAlgo::NAMES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HashAlgo {
    /// SHA-256 of pickle protocol 5: the default.
    Sha256,
    /// SHA-256 of canonical CBOR.
    Sha256Cbor,
    /// XXH3-128 of pickle protocol 5.
    Xxhash,
    /// XXH3-128 of canonical CBOR.
    XxhashCbor,
}

/// The seed that engines hash if none is configured and the function is cryptographic.
const DEFAULT_SEED: &str = "vllm-none-hash";

names! { HashAlgo:
    Sha256 = "sha256",
    Sha256Cbor = "sha256_cbor",
    Xxhash = "xxhash",
    XxhashCbor = "xxhash_cbor",
}

impl HashAlgo {
    /// Bytes of a digest: 32 or 16.
    #[must_use]
    pub fn digest_len(self) -> usize {
        if self.is_cryptographic() { 32 } else { 16 }
    }

    fn is_cryptographic(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha256Cbor)
    }

    fn digest(self, message: &[u8]) -> Digest {
        match self {
            Self::Sha256 | Self::Sha256Cbor => {
                Digest::from_array(sha2::Sha256::digest(message).into())
            }
            Self::Xxhash | Self::XxhashCbor => {
                Digest::from_array(xxhash_rust::xxh3::xxh3_128(message).to_be_bytes())
            }
        }
    }

    fn hash_text(self, text: &str) -> Digest {
        match self {
            Self::Sha256 | Self::Xxhash => self.digest(text_message(&mut Pickle::new(), text)),
            Self::Sha256Cbor | Self::XxhashCbor => {
                self.digest(text_message(&mut Cbor::new(), text))
            }
        }
    }
}

fn text_message<'e, E: Encode>(encoder: &'e mut E, text: &str) -> &'e [u8] {
    encoder.start();
    encoder.text(text);
    encoder.finish()
}

/// The parent of a chain's first block: the hash of the seed (`PYTHONHASHSEED` in the engine's
/// environment), or of the engine's fixed default.
///
/// `None` if the engine would draw a random seed: there is no seed, and the function is not
/// cryptographic.
#[must_use]
pub fn none_hash(algo: HashAlgo, seed: Option<&str>) -> Option<Digest> {
    match seed {
        Some(seed) => Some(algo.hash_text(seed)),
        None => algo
            .is_cryptographic()
            .then(|| algo.hash_text(DEFAULT_SEED)),
    }
}

/// One engine's hash function and the extra keys of one request. Build it with `ChainSpec::new`.
#[derive(Debug, Clone)]
pub struct ChainSpec<'a> {
    algo: HashAlgo,
    none_hash: Digest,
    block_size: usize,
    lookahead: usize,
    extra: ExtraKeys<'a>,
}

impl<'a> ChainSpec<'a> {
    /// A chain of blocks of `block_size` tokens (the engine's *hash* block), no lookahead, no
    /// extra keys.
    ///
    /// # Errors
    /// `InvalidValue` for an empty block, or a seed hash that is not one of this algorithm.
    pub fn new(algo: HashAlgo, none_hash: Digest, block_size: u32) -> Result<Self> {
        if block_size == 0 {
            return Err(Error::InvalidValue(
                "block_size is 0; give the engine's hash block size in tokens".into(),
            ));
        }
        if none_hash.as_bytes().len() != algo.digest_len() {
            return Err(Error::InvalidValue(format!(
                "the seed hash has {} bytes, {} digests have {}; take it from none_hash with the \
                 same algorithm",
                none_hash.as_bytes().len(),
                algo.name(),
                algo.digest_len()
            )));
        }
        let extra = ExtraKeys::default();
        Ok(Self {
            algo,
            none_hash,
            block_size: block_size as usize,
            lookahead: 0,
            extra,
        })
    }

    /// Each hash also covers this many tokens after its block, and exists only once they do.
    #[must_use]
    pub fn with_lookahead(self, lookahead: u32) -> Self {
        Self {
            lookahead: lookahead as usize,
            ..self
        }
    }

    /// Adds the extra keys that separate this request's blocks from those of the same tokens.
    ///
    /// # Errors
    /// `InvalidValue` for media out of order, with the position and both offsets.
    pub fn with_extra(self, extra: ExtraKeys<'a>) -> Result<Self> {
        extra.validate()?;
        Ok(Self { extra, ..self })
    }

    /// How many hashes a request of this many tokens has.
    #[must_use]
    pub fn num_blocks(&self, num_tokens: usize) -> usize {
        num_tokens.saturating_sub(self.lookahead) / self.block_size
    }
}

/// A chain that grows with its request. It keeps the last hash, not the tokens.
#[derive(Debug, Clone)]
pub struct Chain {
    parent: Digest,
    num_blocks: usize,
    media: MediaCursor,
}

impl Chain {
    /// An empty chain.
    #[must_use]
    pub fn new(spec: &ChainSpec<'_>) -> Self {
        Self {
            parent: spec.none_hash,
            num_blocks: 0,
            media: MediaCursor::default(),
        }
    }

    /// The chain that continues after `num_blocks` blocks, the last of which has the hash `parent`.
    #[must_use]
    pub fn resume(parent: Digest, num_blocks: usize) -> Self {
        Self {
            parent,
            num_blocks,
            media: MediaCursor::default(),
        }
    }

    /// Hashes every whole block of `tokens` not hashed before and hands each hash to `sink`.
    ///
    /// `tokens` is the whole request so far, from its first token; those already hashed are not
    /// read again. `spec` must be the one that the chain was made with.
    pub fn extend(&mut self, spec: &ChainSpec<'_>, tokens: &[u32], sink: impl FnMut(Digest)) {
        match spec.algo {
            HashAlgo::Sha256 | HashAlgo::Xxhash => {
                self.extend_with(&mut Pickle::new(), spec, tokens, sink);
            }
            HashAlgo::Sha256Cbor | HashAlgo::XxhashCbor => {
                self.extend_with(&mut Cbor::new(), spec, tokens, sink);
            }
        }
    }

    fn extend_with<E: Encode>(
        &mut self,
        encoder: &mut E,
        spec: &ChainSpec<'_>,
        tokens: &[u32],
        mut sink: impl FnMut(Digest),
    ) {
        for index in self.num_blocks..spec.num_blocks(tokens.len()) {
            let start = index * spec.block_size;
            let end = start + spec.block_size;
            let ahead = &tokens[end..end + spec.lookahead];
            encoder.start();
            encoder.open(3);
            encoder.bytes(self.parent.as_bytes());
            encoder.tokens(&tokens[start..end]);
            extra::write(encoder, &spec.extra, &mut self.media, start..end, ahead);
            encoder.close(3);
            self.parent = spec.algo.digest(encoder.finish());
            self.num_blocks = index + 1;
            sink(self.parent);
        }
    }
}

/// Appends the integer form of the hash of every whole block of `tokens` to `out`.
pub fn chain_keys(spec: &ChainSpec<'_>, tokens: &[u32], out: &mut Vec<u64>) {
    out.reserve(spec.num_blocks(tokens.len()));
    Chain::new(spec).extend(spec, tokens, |digest| out.push(digest.key()));
}

#[cfg(test)]
mod tests;
