//! What a caller asks of the index: tokens, for whom, and how to score.

use super::answer::TierSet;
use super::walk::Prompt;

/// How `Row::score` is computed; everything else of a row is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Reusable tokens, each times the weight of its tier.
    #[default]
    Exact,
    /// Canonical blocks, each times the weight of its tier, as existing gateways count.
    WeightedBlocks,
}

impl Strategy {
    /// Name of each strategy, in the order of the enum.
    pub const NAMES: [(&'static str, Strategy); 2] = [
        ("exact", Self::Exact),
        ("weighted_blocks", Self::WeightedBlocks),
    ];

    /// The strategy with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, s)| *s)
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a str,
    /// Tokens and what else separates caches.
    pub prompt: Prompt<'a>,
    /// Pods to answer for; `None` = all of the model.
    pub pods: Option<&'a [String]>,
    /// Tiers whose copies count for the main bounds, and for weighted blocks. Without any it is
    /// GPU for the bounds, and all tiers for weighted blocks.
    pub tiers: TierSet,
    /// How to score.
    pub strategy: Strategy,
}
