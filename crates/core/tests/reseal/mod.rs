//! The envelope of a snapshot as its page describes it, so that a test can change what is inside.
#![allow(dead_code, reason = "each binary uses its own part")]

use std::ops::Range;

use sha2::{Digest as _, Sha256};

const SEAL: usize = 32;
const HEADER: usize = 36;

/// The bytes of the body: its length, its text, the tables.
pub(crate) fn body(snapshot: &[u8]) -> Range<usize> {
    HEADER..snapshot.len() - SEAL
}

/// The text of a snapshot.
pub(crate) fn text(snapshot: &[u8]) -> Range<usize> {
    let start = HEADER + 8;
    let length: [u8; 8] = snapshot[HEADER..start].try_into().expect("eight bytes");
    let length = usize::try_from(u64::from_le_bytes(length)).expect("a length");
    start..start + length
}

/// Gives a snapshot that was changed the length and the seal of what it is now.
pub(crate) fn reseal(secret: [u8; 32], snapshot: &mut [u8]) {
    let length = snapshot.len() as u64;
    snapshot[12..20].copy_from_slice(&length.to_le_bytes());
    let end = snapshot.len() - SEAL;
    let key = Sha256::new()
        .chain_update(secret)
        .chain_update("key of seals")
        .finalize();
    let padded = |pad: u8| -> Vec<u8> {
        let key = key.iter().copied().chain([0; 32]);
        key.map(|byte| byte ^ pad).collect()
    };
    let inner = Sha256::new()
        .chain_update(padded(0x36))
        .chain_update(&snapshot[..end])
        .finalize();
    let outer = Sha256::new().chain_update(padded(0x5C)).chain_update(inner);
    snapshot[end..].copy_from_slice(&outer.finalize());
}
