//! What tests ask an index: the exact answer of every pod of model `m`, on the GPU alone.
#![allow(dead_code, reason = "each test binary uses its own part")]

use kvbraid_core::fleet::{Index, Options, PodSpec, Prompt, ScoreRequest, Strategy, TierSet};
use kvbraid_core::secret::Secret;

/// The default options, with a secret that is always the same.
pub(crate) fn options() -> Options {
    Options::new(Secret::new([7; 32]))
}

/// A pod of one rank, of which nothing but its model is known; a test replaces what it wants
/// otherwise.
pub(crate) fn pod() -> PodSpec {
    PodSpec {
        model: "m".to_owned(),
        dp_size: 1,
        ..PodSpec::default()
    }
}

/// An index that follows such pods.
pub(crate) fn index_of(options: Options, pods: &[&str]) -> Index {
    let mut index = Index::new(options);
    for name in pods {
        index.register(name, pod()).expect("a pod");
    }
    index
}

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
