//! What tests ask an index: the exact answer of every pod of model `m`, on the GPU alone.

use kvbraid_core::fleet::{Prompt, ScoreRequest, Strategy, TierSet};

/// A request of plain tokens; a test replaces what it wants otherwise.
pub(crate) fn request(tokens: &[u32]) -> ScoreRequest<'_> {
    ScoreRequest {
        model: "m",
        prompt: Prompt {
            tokens,
            lora: None,
            salt: None,
            extra_key: None,
            media: &[],
            wide: &[],
        },
        pods: None,
        tiers: TierSet::GPU,
        strategy: Strategy::Exact,
        weights: [None; 3],
    }
}
