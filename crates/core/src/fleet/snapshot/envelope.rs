//! The envelope of a snapshot: what it is, which version, whose it is, and a seal over all of it.
//!
//! ```text
//!  0  8   the bytes "kvbsnap" and a newline
//!  8  4   version
//! 12  8   length of the whole, the seal included
//! 20  8   check of the secret
//! 28  8   check of the pod: its name and how it is registered
//! 36      body
//! -32 32  seal: HMAC-SHA256 of everything before, with a key made of the secret
//! ```
//! Numbers are little-endian. The seal is looked at before the body, so only who has the secret can
//! write a body that is read.

use super::bytes::Reader;
use crate::error::{Error, Result};
use crate::secret::Secret;

const MAGIC: &[u8; 8] = b"kvbsnap\n";
/// The version that is written, and the only one that is read. Every change of what is kept is a new one.
pub(in crate::fleet) const VERSION: u32 = 2;
const HEADER: usize = 36;
const SEAL: usize = 32;

/// Why bytes are not taken for a snapshot of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// They do not begin as a snapshot does.
    Foreign,
    /// Their version is a later one than this build writes.
    Newer,
    /// Their version is an earlier one.
    Older,
    /// They end too early, or go on after the end.
    Cut,
    /// They were written with another secret.
    OtherSecret,
    /// They are of another pod, or of one that is registered in another way.
    OtherPod,
    /// Some of them were changed.
    Damaged,
    /// What they say cannot be.
    Impossible,
}

impl Unfit {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Foreign,
        Self::Newer,
        Self::Older,
        Self::Cut,
        Self::OtherSecret,
        Self::OtherPod,
        Self::Damaged,
        Self::Impossible,
    ];

    /// The name under which a refusal is counted.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::Newer => "newer",
            Self::Older => "older",
            Self::Cut => "cut",
            Self::OtherSecret => "other_secret",
            Self::OtherPod => "other_pod",
            Self::Damaged => "damaged",
            Self::Impossible => "impossible",
        }
    }
}

/// The error for bytes that are no snapshot of a pod.
pub(in crate::fleet) fn unfit(pod: &str, reason: Unfit, what: &str) -> Error {
    Error::Snapshot {
        reason,
        text: format!(
            "snapshot of pod {pod:?} is refused ({}): {what}; remove it, and the pod is rebuilt from what \
             its engine still has",
            reason.name()
        ),
    }
}

/// A pod as a snapshot names it: its name, and a text of everything that its content depends on.
#[derive(Debug, Clone, Copy)]
pub(in crate::fleet) struct Owner<'a> {
    pub(in crate::fleet) pod: &'a str,
    pub(in crate::fleet) registered: &'a str,
}

impl Owner<'_> {
    fn check(self, secret: &Secret) -> u64 {
        secret.check(
            &format!("pod {} {}", self.pod.len(), self.pod),
            self.registered,
        )
    }

    fn unfit(self, reason: Unfit, what: &str) -> Error {
        unfit(self.pod, reason, what)
    }
}

/// Begins a snapshot; the body is appended, and `seal` ends it.
pub(in crate::fleet) fn begin(secret: &Secret, owner: Owner<'_>) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend(secret.check("snapshots", "").to_le_bytes());
    out.extend(owner.check(secret).to_le_bytes());
    out
}

/// Ends a snapshot: writes its length into the header, and appends the seal.
pub(in crate::fleet) fn seal(secret: &Secret, mut bytes: Vec<u8>) -> Vec<u8> {
    let length = (bytes.len() + SEAL) as u64;
    bytes[12..20].copy_from_slice(&length.to_le_bytes());
    let seal = secret.seal(&bytes);
    bytes.extend(seal);
    bytes
}

/// The body of a snapshot of this pod.
///
/// # Errors
/// `Snapshot` that names what is wrong: the first thing that is.
pub(in crate::fleet) fn open<'a>(
    secret: &Secret,
    owner: Owner<'_>,
    bytes: &'a [u8],
) -> Result<&'a [u8]> {
    let mut reader = Reader(bytes);
    if reader.bytes(MAGIC.len()) != Some(MAGIC.as_slice()) {
        return Err(owner.unfit(Unfit::Foreign, "it does not begin as snapshots do"));
    }
    let is_cut = || owner.unfit(Unfit::Cut, &format!("it has {} bytes", bytes.len()));
    let version = reader.u32().ok_or_else(is_cut)?;
    if version != VERSION {
        let reason = if version > VERSION {
            Unfit::Newer
        } else {
            Unfit::Older
        };
        let what = format!("version {version}; this build reads version {VERSION}");
        return Err(owner.unfit(reason, &what));
    }
    let length = reader.u64().ok_or_else(is_cut)?;
    if length != bytes.len() as u64 || bytes.len() < HEADER + SEAL {
        let what = format!("{} bytes of {length}", bytes.len());
        return Err(owner.unfit(Unfit::Cut, &what));
    }
    let (of_secret, of_pod) = (reader.u64(), reader.u64());
    if of_secret != Some(secret.check("snapshots", "")) {
        return Err(owner.unfit(Unfit::OtherSecret, "it was written with another secret"));
    }
    if of_pod != Some(owner.check(secret)) {
        let what = "it is of another pod, or the pod was registered in another way";
        return Err(owner.unfit(Unfit::OtherPod, what));
    }
    let (sealed, seal) = bytes.split_at(bytes.len() - SEAL);
    if secret.seal(sealed) != seal {
        return Err(owner.unfit(Unfit::Damaged, "its seal does not fit its content"));
    }
    Ok(&sealed[HEADER..])
}
