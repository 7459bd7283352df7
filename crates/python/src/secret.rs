//! The secrets of the core: random bytes of the operating system. They are drawn here because the
//! core does no I/O.

use std::hash::{BuildHasher, Hasher, RandomState};

use kvbraid_core::secret::Secret;

/// A new secret: four numbers of the standard library's own keyed hash, whose keys come from the
/// operating system.
pub(crate) fn draw() -> Secret {
    let mut bytes = [0; 32];
    for chunk in bytes.chunks_exact_mut(8) {
        let number = RandomState::new().build_hasher().finish();
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    Secret::new(bytes)
}
