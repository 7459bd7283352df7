//! What is known of one engine's hash function: the third means of placing a hash.
//!
//! A configured function counts at once, a documented default only once confirmed. Every root
//! store whose salt is visible confirms or refutes it, by its first hash.

use crate::hash::{ChainSpec, Digest, ExtraKeys, HashAlgo, none_hash};

/// One hash function: algorithm and seed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HashFunction {
    /// The algorithm.
    pub algo: HashAlgo,
    /// What stands for the parent of a first block.
    pub none_hash: Digest,
}

/// How much a function is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is known, or `--keys join` switched it off.
    Unknown,
    /// Documented defaults that no root store has confirmed yet.
    Assumed,
    /// The operator says so.
    Configured,
    /// A root store agreed.
    Confirmed,
    /// A root store disagreed.
    Refuted,
}

impl Standing {
    /// The name shown to users.
    #[must_use]
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Assumed => "assumed",
            Self::Configured => "configured",
            Self::Confirmed => "confirmed",
            Self::Refuted => "refuted",
        }
    }
}

/// What a root store shows: enough to hash its first block.
pub(super) struct RootStore<'a> {
    /// Tokens of the first block of its group.
    pub tokens: &'a [u32],
    /// Tokens per hash of the engine's chain; divides their number.
    pub unit: u32,
    /// LoRA name and path.
    pub lora: Option<(&'a str, &'a str)>,
    /// The salt.
    pub salt: Option<&'a str>,
    /// The hash of that block.
    pub key: u64,
}

/// The function of one engine, as far as known.
#[derive(Debug, Clone)]
pub(super) struct EngineChain {
    candidates: Vec<HashFunction>,
    standing: Standing,
    misses: u32,
}

/// So many root stores may disagree before assumed defaults are given up.
const MISSES: u32 = 16;

impl EngineChain {
    /// Nothing known, and nothing will be tried.
    #[must_use]
    pub(super) fn off() -> Self {
        Self {
            candidates: Vec::new(),
            standing: Standing::Unknown,
            misses: 0,
        }
    }

    /// The configured function, else the engine's documented defaults (vLLM: SHA-256 kinds with
    /// the fixed seed string; the other kinds draw theirs at random).
    #[must_use]
    pub(super) fn new(algo: Option<HashAlgo>, seed: Option<&str>) -> Self {
        let function =
            |algo| none_hash(algo, seed).map(|none_hash| HashFunction { algo, none_hash });
        if let Some(function) = algo.and_then(function)
            && seed.is_some()
        {
            return Self {
                candidates: vec![function],
                standing: Standing::Configured,
                misses: 0,
            };
        }
        let algos = match algo {
            Some(algo) => vec![algo],
            None => vec![HashAlgo::Sha256, HashAlgo::Sha256Cbor],
        };
        let candidates: Vec<HashFunction> = algos.into_iter().filter_map(function).collect();
        let standing = if candidates.is_empty() {
            Standing::Unknown
        } else {
            Standing::Assumed
        };
        Self {
            candidates,
            standing,
            misses: 0,
        }
    }

    /// How much it is trusted.
    #[must_use]
    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// The function, once it may be used.
    #[must_use]
    pub(super) fn usable(&self) -> Option<HashFunction> {
        match self.standing {
            Standing::Configured | Standing::Confirmed => self.candidates.first().copied(),
            Standing::Unknown | Standing::Assumed | Standing::Refuted => None,
        }
    }

    /// Compares a root store with the function. False: a trusted function is contradicted now.
    pub(super) fn check(&mut self, root: &RootStore<'_>) -> bool {
        match self.standing {
            Standing::Unknown | Standing::Refuted => true,
            Standing::Configured | Standing::Confirmed => {
                let agrees = self.candidates.first().is_some_and(|f| agrees(*f, root));
                self.standing = if agrees {
                    Standing::Confirmed
                } else {
                    Standing::Refuted
                };
                agrees
            }
            Standing::Assumed => {
                if let Some(i) = self.candidates.iter().position(|f| agrees(*f, root)) {
                    self.candidates = vec![self.candidates[i]];
                    self.standing = Standing::Confirmed;
                } else {
                    self.misses += 1;
                    if self.misses == MISSES {
                        self.standing = Standing::Unknown;
                    }
                }
                true
            }
        }
    }
}

fn agrees(function: HashFunction, root: &RootStore<'_>) -> bool {
    let extra = ExtraKeys {
        lora: root.lora,
        cache_salt: root.salt,
        ..ExtraKeys::default()
    };
    let spec = ChainSpec::new(function.algo, function.none_hash, root.unit)
        .and_then(|spec| spec.with_extra(extra));
    let Ok(spec) = spec else { return false };
    let mut keys = Vec::new();
    crate::hash::chain_keys(&spec, root.tokens, &mut keys);
    keys.last() == Some(&root.key)
}
