//! What a caller asks of the index: tokens, for whom, and how to score.

use super::answer::Weights;
use super::prompt::Prompt;
use super::tier::TierSet;
use crate::names::named;

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
        named(&Self::NAMES, name)
    }
}

/// A request.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The model whose pods are asked for.
    pub model: &'a str,
    /// The tokens, and what else separates caches.
    pub prompt: Prompt<'a>,
    /// Pods to answer for; `None` = all of the model.
    pub pods: Option<&'a [String]>,
    /// Tiers whose copies count for the main bounds, and for weighted blocks. Without any it is
    /// GPU for the bounds, and all tiers for weighted blocks.
    pub tiers: TierSet,
    /// How the score of each row is computed.
    pub strategy: Strategy,
}

/// How to count blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct CanonicalBlocks {
    /// Tokens per canonical block; at least 1.
    pub(super) block_size: u32,
    /// Tiers whose copies count.
    pub(super) tiers: TierSet,
}

/// A request as the index answers it: names are columns, and what was left open is filled in.
#[derive(Debug, Clone)]
pub(super) struct ResolvedRequest<'a> {
    /// Its tokens, and what else separates caches.
    pub(super) prompt: Prompt<'a>,
    /// Columns to answer for, in the order of the answer.
    pub(super) columns: Vec<usize>,
    /// Tiers whose copies count for the main bounds.
    pub(super) tiers: TierSet,
    /// Only full-attention groups are evaluated (a shortcut that `replay --model full-only` shows).
    pub(super) only_full: bool,
    /// Keep what was matched when memory is short.
    pub(super) touch: bool,
    /// What a token is worth on each tier.
    pub(super) weights: Weights,
    /// Score by weighted canonical blocks instead of by reusable tokens.
    pub(super) canonical_blocks: Option<CanonicalBlocks>,
}
