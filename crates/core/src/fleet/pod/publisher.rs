//! The engines whose events differ in what they mean.

use crate::fleet::tier::Tier;

/// What separates prefixes in a pod's caches although no event carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hidden {
    /// Requests have extra keys: what is held may be another key's, so nothing is promised.
    pub extra_keys: bool,
    /// Adapters are loaded again under their names: what is held for one may be of an earlier load.
    pub adapter_reloads: bool,
    /// Hashes cover extra keys and salts, as in SGLang's `dynamo` format of events.
    pub dynamo_format: bool,
}

/// Whose events a pod sends, as far as engines differ in what events mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publisher {
    /// vLLM, and what follows its wire: each group is told of, and each copy is counted.
    #[default]
    Vllm,
    /// `SGLang`. Only the full-attention component is told of, in pages of one size. A host copy is
    /// told again when its other components follow, and one removal ends it. A flush empties the
    /// host's memory before it is told of.
    Sglang,
}

impl Publisher {
    /// Whether no event tells of other groups than full attention.
    pub(in crate::fleet) fn tells_only_full(self) -> bool {
        self == Self::Sglang
    }

    /// Whether a second store of a hash on this tier is a second copy.
    pub(in crate::fleet) fn counts_copies(self, tier: Tier) -> bool {
        self == Self::Vllm || tier == Tier::Gpu
    }

    /// Whether a hash is stored once on this tier until it is removed, unless caches differ in
    /// something that is not told of.
    pub(in crate::fleet) fn stores_once(self, tier: Tier) -> bool {
        self == Self::Sglang && tier == Tier::Gpu
    }

    /// Whether hashes cover the load of an adapter, which no event names.
    pub(in crate::fleet) fn hashes_loads(self) -> bool {
        self == Self::Sglang
    }

    /// Whether a clear empties this tier.
    pub(in crate::fleet) fn clears(self, tier: Tier) -> bool {
        tier == Tier::Gpu || (self == Self::Sglang && tier == Tier::Cpu)
    }

    /// Whether windows are kept only where prompts end and fork, unless it is set otherwise: vLLM's
    /// `prefix_cache_retention_interval` is 0 by default.
    pub(in crate::fleet) fn keeps_sparsely(self) -> bool {
        self == Self::Vllm
    }

    /// Whether all blocks of a group are of one size, so a smaller one contradicts what is
    /// configured.
    pub(in crate::fleet) fn has_one_block_size(self) -> bool {
        self == Self::Sglang
    }
}
