//! What is known of one engine's hash function, which is the third means of placing a hash.
//!
//! A configured function counts at once; a documented default counts only once it is confirmed.
//! Every root store with a visible salt confirms or refutes the function by the store's first hash;
//! a sparse root store can only confirm it. If groups are learned from events, the first events do
//! not tell the hash block. It is then the divisor with which the function reproduces a store's own
//! hash. Until it is found the function is not used, because it would exclude hashes that it cannot
//! name.

use hashbrown::HashSet;
use serde::{Deserialize, Serialize};

use crate::hash::{ChainSpec, Digest, ExtraKeys, HashAlgo, none_hash};

/// One hash function: algorithm and seed hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) struct EngineHash {
    /// The algorithm.
    pub algo: HashAlgo,
    /// The digest that stands for the parent of a first block.
    pub none_hash: Digest,
}

/// How much a function is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fleet) enum Standing {
    /// No function is known, or `--keys join` switched it off.
    Unknown,
    /// The documented defaults, which no root store has confirmed yet.
    Assumed,
    /// The operator configured the function.
    Configured,
    /// A root store agreed with the function.
    Confirmed,
    /// A root store disagreed with the function.
    Refuted,
}

impl Standing {
    /// The name shown to users.
    #[must_use]
    pub(in crate::fleet) const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Assumed => "assumed",
            Self::Configured => "configured",
            Self::Confirmed => "confirmed",
            Self::Refuted => "refuted",
        }
    }
}

/// Tokens per hash of an engine's chain, as far as they are known without looking at hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fleet) enum HashBlock {
    /// The operator's value.
    Is(u32),
    /// A divisor of this number, which is a common divisor of all sizes seen.
    Divides(u32),
}

/// The hashes of a root store.
#[derive(Debug, Clone, Copy)]
pub(in crate::fleet) enum RootHashes<'a> {
    /// One hash, at the end of the tokens.
    AtTheEnd(u64),
    /// Hashes at the ends of some blocks. The salt may be hidden because the first block is not
    /// listed.
    Somewhere(&'a [u64]),
}

/// What a root store shows: enough to compute the hashes of its first blocks.
pub(in crate::fleet) struct RootStore<'a> {
    /// Tokens from the start of the prompt to a block's end.
    pub tokens: &'a [u32],
    /// Tokens per hash.
    pub unit: HashBlock,
    /// The LoRA name and path.
    pub lora: Option<(&'a str, &'a str)>,
    /// The salt.
    pub salt: Option<&'a str>,
    /// The hashes that the store lists along the tokens.
    pub shown: RootHashes<'a>,
}

/// What a root store says about a function.
enum Finding {
    Agrees(EngineHash, u32),
    Disagrees,
    Nothing,
}

/// The hash function of one engine, as far as it is known.
#[derive(Debug, Clone)]
pub(in crate::fleet) struct EngineChain {
    candidates: Vec<EngineHash>,
    standing: Standing,
    misses: u32,
    /// The hash block with which a store agreed.
    unit: Option<u32>,
    /// The effort left for stores that need not agree.
    effort: usize,
}

/// After this many root stores that disagree, assumed defaults are given up.
const MISSES: u32 = 16;
/// What stores that need not agree may cost during one life of an engine: the tokens hashed, plus
/// `TOKENS_PER_HASH` for each hash. The first store of a real engine costs a few thousand.
const EFFORT: usize = 1 << 20;
const TOKENS_PER_HASH: usize = 16;
/// The hash block is assumed to be no smaller than this fraction of the sizes seen.
const MOST_HASHES_PER_BLOCK: u32 = 1 << 12;

/// What a snapshot has of it: no seed, which is the operator's, and no digest of one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::fleet) struct SavedChain {
    algos: Vec<HashAlgo>,
    standing: Standing,
    misses: u32,
    unit: Option<u32>,
    effort: usize,
}

impl EngineChain {
    /// What a snapshot has of it.
    pub(in crate::fleet) fn saved(&self) -> SavedChain {
        let Self {
            candidates,
            standing,
            misses,
            unit,
            effort,
        } = self;
        SavedChain {
            algos: candidates.iter().map(|function| function.algo).collect(),
            standing: *standing,
            misses: *misses,
            unit: *unit,
            effort: *effort,
        }
    }

    /// A chain about which nothing is known yet, with what was read from a snapshot; `None` if that
    /// cannot be known of it.
    pub(in crate::fleet) fn restored(mut self, saved: SavedChain) -> Option<Self> {
        let SavedChain {
            algos,
            standing,
            misses,
            unit,
            effort,
        } = saved;
        (self.candidates).retain(|function| algos.contains(&function.algo));
        let is_known = self.candidates.iter().map(|f| f.algo).eq(algos)
            && misses <= MISSES
            && unit != Some(0)
            && effort <= EFFORT;
        is_known.then_some(Self {
            standing,
            misses,
            unit,
            effort,
            ..self
        })
    }

    /// An engine of which no function is known and none will be tried.
    #[must_use]
    pub(in crate::fleet) fn off() -> Self {
        Self::of(Vec::new(), Standing::Unknown)
    }

    fn of(candidates: Vec<EngineHash>, standing: Standing) -> Self {
        Self {
            candidates,
            standing,
            misses: 0,
            unit: None,
            effort: EFFORT,
        }
    }

    /// The configured function, else the engine's documented defaults (vLLM: SHA-256 kinds with
    /// the fixed seed string; the other kinds draw theirs at random).
    #[must_use]
    pub(in crate::fleet) fn new(algo: Option<HashAlgo>, seed: Option<&str>) -> Self {
        let function = |algo| none_hash(algo, seed).map(|none_hash| EngineHash { algo, none_hash });
        if let Some(function) = algo.and_then(function)
            && seed.is_some()
        {
            return Self::of(vec![function], Standing::Configured);
        }
        let algos = match algo {
            Some(algo) => vec![algo],
            None => vec![HashAlgo::Sha256, HashAlgo::Sha256Cbor],
        };
        let candidates: Vec<EngineHash> = algos.into_iter().filter_map(function).collect();
        let standing = if candidates.is_empty() {
            Standing::Unknown
        } else {
            Standing::Assumed
        };
        Self::of(candidates, standing)
    }

    /// How much the function is trusted.
    #[must_use]
    pub(in crate::fleet) fn standing(&self) -> Standing {
        self.standing
    }

    /// The function and its hash block, once both may be used.
    #[must_use]
    pub(in crate::fleet) fn usable(&self, configured: Option<u32>) -> Option<(EngineHash, u32)> {
        match self.standing {
            Standing::Configured | Standing::Confirmed => {
                Some((*self.candidates.first()?, configured.or(self.unit)?))
            }
            Standing::Unknown | Standing::Assumed | Standing::Refuted => None,
        }
    }

    /// Whether a store that can only confirm the function would tell anything new.
    #[must_use]
    pub(in crate::fleet) fn is_sought(&self, unit: HashBlock) -> bool {
        self.effort > 0
            && match self.standing {
                Standing::Assumed => true,
                Standing::Configured => matches!(unit, HashBlock::Divides(_)),
                Standing::Unknown | Standing::Confirmed | Standing::Refuted => false,
            }
    }

    /// Compares a root store with the function. Returns false if a trusted function is contradicted
    /// by it.
    pub(in crate::fleet) fn check(&mut self, root: &RootStore<'_>) -> bool {
        if matches!(self.standing, Standing::Unknown | Standing::Refuted) {
            return true;
        }
        let finding = match (root.unit, self.unit) {
            (HashBlock::Is(unit), _) | (HashBlock::Divides(_), Some(unit)) => {
                let is_free = matches!(root.shown, RootHashes::AtTheEnd(_));
                self.compare(root, unit, is_free)
            }
            (HashBlock::Divides(all), None) => self.find_unit(root, all),
        };
        match (finding, self.standing) {
            (Finding::Nothing, _) => {}
            (Finding::Disagrees, _) if matches!(root.shown, RootHashes::Somewhere(_)) => {}
            (Finding::Agrees(function, unit), _) => {
                self.candidates = vec![function];
                self.unit = Some(unit);
                self.standing = Standing::Confirmed;
            }
            (Finding::Disagrees, Standing::Assumed) => {
                self.misses += 1;
                if self.misses == MISSES {
                    self.standing = Standing::Unknown;
                }
            }
            (Finding::Disagrees, _) => {
                self.standing = Standing::Refuted;
                return false;
            }
        }
        true
    }

    /// Tries the divisors of the sizes seen, the largest first because it is the usual hash block.
    /// A store disagrees only if all divisors were tried.
    fn find_unit(&mut self, root: &RootStore<'_>, all: u32) -> Finding {
        for parts in (1..=all.min(MOST_HASHES_PER_BLOCK)).filter(|n| all.is_multiple_of(*n)) {
            match self.compare(root, all / parts, false) {
                Finding::Disagrees => {}
                other @ (Finding::Agrees(..) | Finding::Nothing) => return other,
            }
        }
        if all <= MOST_HASHES_PER_BLOCK && all > 0 {
            Finding::Disagrees
        } else {
            Finding::Nothing
        }
    }

    fn compare(&mut self, root: &RootStore<'_>, unit: u32, is_free: bool) -> Finding {
        let num_tokens = root.tokens.len();
        if unit == 0 || !num_tokens.is_multiple_of(unit as usize) {
            return Finding::Nothing;
        }
        if !is_free {
            let hashes = num_tokens / unit as usize;
            let cost = self.candidates.len() * (num_tokens + hashes * TOKENS_PER_HASH);
            let Some(left) = self.effort.checked_sub(cost) else {
                return Finding::Nothing;
            };
            self.effort = left;
        }
        match self.candidates.iter().find(|f| agrees(**f, root, unit)) {
            Some(function) => Finding::Agrees(*function, unit),
            None => Finding::Disagrees,
        }
    }
}

fn agrees(function: EngineHash, root: &RootStore<'_>, unit: u32) -> bool {
    let extra = ExtraKeys {
        lora: root.lora,
        cache_salt: root.salt,
        ..ExtraKeys::default()
    };
    let spec = ChainSpec::new(function.algo, function.none_hash, unit)
        .and_then(|spec| spec.with_extra(extra));
    let Ok(spec) = spec else { return false };
    let mut keys = Vec::new();
    crate::hash::chain_keys(&spec, root.tokens, &mut keys);
    match root.shown {
        RootHashes::AtTheEnd(key) => keys.last() == Some(&key),
        RootHashes::Somewhere(listed) => {
            let listed: HashSet<u64> = listed.iter().copied().collect();
            keys.iter().any(|key| listed.contains(key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGO: HashAlgo = HashAlgo::Sha256;

    fn configured() -> EngineChain {
        EngineChain::new(Some(ALGO), Some("0"))
    }

    fn keys(tokens: &[u32], unit: u32) -> Vec<u64> {
        let seed = none_hash(ALGO, Some("0")).expect("a cryptographic function");
        let spec = ChainSpec::new(ALGO, seed, unit).expect("a chain");
        let mut keys = Vec::new();
        crate::hash::chain_keys(&spec, tokens, &mut keys);
        keys
    }

    fn root<'a>(tokens: &'a [u32], unit: HashBlock, shown: RootHashes<'a>) -> RootStore<'a> {
        RootStore {
            tokens,
            unit,
            lora: None,
            salt: None,
            shown,
        }
    }

    #[test]
    fn a_block_of_several_hashes_tells_the_hash_block() {
        let tokens: Vec<u32> = (0..1056).collect();
        for unit in [1, 16, 33, 528, 1056] {
            let last = *keys(&tokens, unit).last().expect("a key");
            let mut chain = configured();
            assert!(chain.usable(None).is_none(), "before any store");
            let shown = RootHashes::AtTheEnd(last);
            assert!(chain.check(&root(&tokens, HashBlock::Divides(1056), shown)));
            assert_eq!(chain.usable(None).map(|(_, unit)| unit), Some(unit));
        }
    }

    #[test]
    fn a_sparse_store_confirms_and_never_refutes() {
        let tokens: Vec<u32> = (0..256).collect();
        let (right, wrong) = (keys(&tokens, 32), [1, 2, 3]);
        let unit = HashBlock::Divides(64);
        let mut chain = configured();
        assert!(chain.check(&root(&tokens, unit, RootHashes::Somewhere(&wrong))));
        assert_eq!(chain.standing(), Standing::Configured);
        assert!(chain.check(&root(&tokens, unit, RootHashes::Somewhere(&right[4..6]))));
        assert_eq!(chain.standing(), Standing::Confirmed);
    }

    #[test]
    fn what_stores_that_tell_nothing_cost_is_bounded_for_an_engine_s_whole_life() {
        let tokens: Vec<u32> = (0..4096).collect();
        let mut chain = EngineChain::new(None, None);
        let mut spent = Vec::new();
        for _ in 0..1000 {
            let before = chain.effort;
            let shown = RootHashes::Somewhere(&[1]);
            assert!(chain.check(&root(&tokens, HashBlock::Divides(64), shown)));
            spent.push(before - chain.effort);
        }
        assert!(spent.iter().sum::<usize>() <= EFFORT);
        assert_eq!(spent.last(), Some(&0), "later stores are not hashed");
        assert_eq!(chain.standing(), Standing::Assumed);
    }

    #[test]
    fn a_block_too_large_to_try_all_its_divisors_refutes_nothing() {
        let tokens: Vec<u32> = (0..1 << 16).collect();
        let mut chain = configured();
        let store = root(
            &tokens,
            HashBlock::Divides(1 << 16),
            RootHashes::AtTheEnd(1),
        );
        for _ in 0..20 {
            assert!(chain.check(&store));
        }
        assert!(chain.effort < EFFORT);
        assert_eq!(chain.standing(), Standing::Configured);
        assert!(chain.usable(None).is_none());
    }
}
