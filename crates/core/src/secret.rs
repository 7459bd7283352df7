//! Random numbers that keep outsiders from choosing texts, tokens or hashes that collide.
//!
//! The maker of an index or a cache passes a [`Secret`]. Everything here is a function of the secret,
//! so one secret gives one behaviour, which tests use. It is never shown: not in an answer, not in an
//! error, not by `Debug`.

use sha2::{Digest as _, Sha256};

use crate::prefix::{KeyField, mul, plus, scatter};

/// `Debug` without any content.
macro_rules! never_shown {
    ($($type:ident),+) => {
        $(impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        })+
    };
}

never_shown!(Secret, Spreader, Mixer, TextHash, PayloadHash, KeyField);

/// 32 random bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Takes bytes that nobody else knows.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A number for one purpose; it reveals nothing about the number for another purpose.
    fn number(&self, purpose: &str) -> u128 {
        let hash = Sha256::new().chain_update(self.0).chain_update(purpose);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        u128::from_le_bytes(bytes)
    }

    /// The base of the prefix keys.
    #[must_use]
    pub fn field(&self) -> KeyField {
        KeyField::new(low(self.number("base of prefixes")))
    }

    /// How a table spreads its keys.
    #[must_use]
    pub(crate) fn spread(&self) -> Spreader {
        Spreader {
            times: self.number("multiplier of tables"),
            plus: self.number("offset of tables"),
        }
    }

    /// The function that turns a number into a summand of keys, for one purpose.
    #[must_use]
    pub(crate) fn mixer(&self, purpose: &str) -> Mixer {
        let number = self.number(purpose);
        Mixer {
            plus: scatter(low(number)),
            times: scatter(low(number >> 64)) | 1,
        }
    }

    /// A factor of summands of keys, for one purpose: a number of the field, but not 0.
    #[must_use]
    pub(crate) fn factor(&self, purpose: &str) -> u64 {
        scatter(low(self.number(purpose))).max(1)
    }

    /// The digest function of payloads.
    #[must_use]
    pub fn payload_hash(&self) -> PayloadHash {
        let mut bytes = [0; PAYLOAD_SECRET];
        for (part, chunk) in bytes.chunks_exact_mut(16).enumerate() {
            let number = self.number(&format!("digests of payloads, part {part}"));
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        PayloadHash(bytes)
    }

    /// A number that tells whether two secrets, and what was made with them, are the same. It is a
    /// function of two texts, and tells nothing about either or about the secret.
    #[must_use]
    pub(crate) fn check(&self, kind: &str, of: &str) -> u64 {
        low(self.number(&format!("check of {kind} {of}")))
    }

    /// A seal over bytes: HMAC-SHA256 with a key of its own.
    #[must_use]
    pub(crate) fn seal(&self, bytes: &[u8]) -> [u8; 32] {
        let key = Sha256::new()
            .chain_update(self.0)
            .chain_update("key of seals");
        let padded = |pad: u8| {
            let mut block = [pad; 64];
            for (byte, of_key) in block.iter_mut().zip(key.clone().finalize()) {
                *byte ^= of_key;
            }
            block
        };
        let inner = Sha256::new().chain_update(padded(0x36)).chain_update(bytes);
        let outer = Sha256::new().chain_update(padded(0x5C));
        outer.chain_update(inner.finalize()).finalize().into()
    }

    /// The function that turns texts into summands of keys.
    #[must_use]
    pub(crate) fn text_hash(&self) -> TextHash {
        TextHash(Sha256::new().chain_update(self.0).chain_update([0; 31]))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "half of the bits are what is wanted"
)]
const fn low(number: u128) -> u64 {
    number as u64
}

/// Spreads 64-bit keys over 32 bits: by multiplying, adding and taking the highest bits of 128, so
/// that any two keys, whoever chose them, agree with a probability of 2^-32.
#[derive(Clone, Copy)]
pub(crate) struct Spreader {
    times: u128,
    plus: u128,
}

impl Spreader {
    /// The bits of a key.
    #[inline]
    pub(crate) const fn tag(self, key: u64) -> u32 {
        let product = self.times.wrapping_mul(key as u128);
        (product.wrapping_add(self.plus) >> 96) as u32
    }
}

/// Turns numbers that others can choose into summands of keys that they cannot choose.
#[derive(Clone, Copy)]
pub(crate) struct Mixer {
    plus: u64,
    times: u64,
}

impl Mixer {
    /// The summand of a number below 2^61.
    #[inline]
    pub(crate) const fn mix(self, number: u64) -> u64 {
        scatter(mul(plus(number, self.plus), self.times))
    }
}

/// SHA-256 after the secret, one block of it, so that short texts cost one block more.
#[derive(Clone)]
pub(crate) struct TextHash(Sha256);

impl TextHash {
    /// The summand of a text, for one purpose.
    #[must_use]
    pub(crate) fn of(&self, purpose: u8, text: &[u8]) -> u64 {
        let hash = self.0.clone().chain_update([purpose]).chain_update(text);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hash.finalize()[..8]);
        scatter(u64::from_le_bytes(bytes))
    }
}

/// A digest of payloads in 64 bits: XXH3 with a secret of its own, several bytes per cycle.
#[derive(Clone)]
pub struct PayloadHash([u8; PAYLOAD_SECRET]);

/// The bytes that XXH3 mixes into its input; its own default has this length too.
const PAYLOAD_SECRET: usize = 192;

impl PayloadHash {
    /// The digest of a payload.
    #[must_use]
    pub fn of(&self, payload: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_secret(payload, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Secret = Secret::new([1; 32]);
    const TWO: Secret = Secret::new([2; 32]);

    #[test]
    fn two_secrets_agree_about_nothing() {
        assert_ne!(ONE.field(), TWO.field());
        assert_ne!(ONE.spread().tag(7), TWO.spread().tag(7));
        assert_ne!(ONE.mixer("salt").mix(7), TWO.mixer("salt").mix(7));
        let texts = [ONE, TWO].map(|secret| secret.text_hash().of(1, b"adapter"));
        assert_ne!(texts[0], texts[1]);
        for len in [0, 3, 16, 17, 200, 4096] {
            let digests = [ONE, TWO].map(|secret| secret.payload_hash().of(&vec![7; len]));
            assert_ne!(digests[0], digests[1], "{len} bytes");
        }
    }

    #[test]
    fn one_secret_agrees_with_itself_and_tells_purposes_apart() {
        assert_eq!(ONE.field(), Secret::new([1; 32]).field());
        assert_ne!(ONE.mixer("salt").mix(7), ONE.mixer("lookahead").mix(7));
        let hash = ONE.text_hash();
        assert_ne!(hash.of(1, b"x"), hash.of(2, b"x"));
        // Neither does a text run into the purpose before it.
        assert_ne!(hash.of(1, b""), hash.of(1, b"\0"));
    }

    #[test]
    fn payloads_that_differ_in_one_bit_have_two_digests() {
        let hash = ONE.payload_hash();
        for len in [1, 8, 16, 100, 240, 241, 3000] {
            let payload = vec![0; len];
            let digest = hash.of(&payload);
            assert_eq!(digest, ONE.payload_hash().of(&payload));
            for at in 0..len {
                let mut other = payload.clone();
                other[at] = 0x10;
                assert_ne!(hash.of(&other), digest, "byte {at} of {len}");
            }
        }
    }

    #[test]
    fn a_secret_is_never_printed() {
        let shown = [
            format!("{ONE:?}"),
            format!("{:?}", ONE.field()),
            format!("{:?}", ONE.spread()),
            format!("{:?}", ONE.mixer("salt")),
            format!("{:?}", ONE.text_hash()),
            format!("{:?}", ONE.payload_hash()),
        ];
        assert!(
            shown.iter().all(|text| !text.contains(char::is_numeric)),
            "{shown:?}"
        );
    }
}
