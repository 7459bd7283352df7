//! What a caller asks of the index: the prompt, the pods, and how to score.

use super::answer::Weights;
use crate::fleet::keys::prompt::Prompt;
use crate::fleet::tier::TierSet;
use crate::names::names;

/// How `Row::score` is computed. The other fields of a row do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// The tokens that are likely reusable, each times the weight of its tier.
    #[default]
    Exact,
    /// The canonical blocks, each times the weight of its tier, as existing gateways count.
    WeightedBlocks,
}

names! { Strategy:
    Exact = "exact",
    WeightedBlocks = "weighted_blocks",
}

/// A request.
#[derive(Debug, Clone)]
pub struct ScoreRequest<'a> {
    /// The model whose pods are asked about.
    pub model: &'a str,
    /// The tokens, and everything else that separates caches.
    pub prompt: Prompt<'a>,
    /// The pods to answer for; `None` means all pods of the model.
    pub pods: Option<&'a [String]>,
    /// The tiers whose copies count for the main bounds and for weighted blocks. If the set is
    /// empty, the bounds are for the GPU, and weighted blocks count all tiers.
    pub tiers: TierSet,
    /// How the score of each row is computed.
    pub strategy: Strategy,
    /// The weight of a token on each tier, in the order of `Tier::ALL`; `None` means the index's.
    pub weights: [Option<f64>; 3],
}

/// How canonical blocks are counted.
#[derive(Debug, Clone, Copy)]
pub(in crate::fleet) struct CanonicalBlocks {
    /// Tokens per canonical block, at least 1.
    pub(in crate::fleet) block_size: u32,
    /// The tiers whose copies count.
    pub(in crate::fleet) tiers: TierSet,
}

/// A request in the form that the index answers: columns instead of names, with the defaults filled
/// in.
#[derive(Debug, Clone)]
pub(in crate::fleet) struct ResolvedRequest<'a> {
    /// The tokens, and everything else that separates caches.
    pub(in crate::fleet) prompt: Prompt<'a>,
    /// The columns to answer for, in the order of the answer.
    pub(in crate::fleet) columns: Vec<usize>,
    /// The tiers whose copies count for the main bounds.
    pub(in crate::fleet) tiers: TierSet,
    /// Whether only full-attention groups are evaluated (a shortcut that `replay --model full-only`
    /// shows).
    pub(in crate::fleet) only_full: bool,
    /// Whether the matched names count as just used when memory is short.
    pub(in crate::fleet) touch: bool,
    /// The weight of a token on each tier.
    pub(in crate::fleet) weights: Weights,
    /// If present, the score counts weighted canonical blocks instead of reusable tokens.
    pub(in crate::fleet) canonical_blocks: Option<CanonicalBlocks>,
}
