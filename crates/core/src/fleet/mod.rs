//! What every pod of a fleet holds, from the engines' own events, and what a request can reuse.
//!
//! [`Index`] owns everything; it takes bytes and tokens in and gives numbers out. Nothing here does
//! I/O or reads a clock. These are the rooms in reading order; each imports only rooms below it:
//!
//! - `index`: pods come and go, feeds report, limits are kept.
//! - `query`: from a request to the rows of an answer; begin at `rows`.
//! - `model`: the pods of one model, which `ingest` writes and `query` reads.
//! - `promised`: prompts that were sent to pods, and of which no event tells yet.
//! - `seen`: prompts that were there once, or were promised.
//! - `ingest`: from a decoded batch to the places and copies of its hashes; begin at `apply`.
//! - `rank`: one data-parallel rank, its copies, and what it loses.
//! - `pod`: what is known of one engine: its groups, its dialect, its hash function.
//! - `silent`: groups without events, inferred from what others store.
//! - `limbo`: hashes whose place is undecided, and where they may stand.
//! - `presence`: who holds what, as slots, bits and boundaries.
//! - `keys`: what the keys of requests and stores are made from.
//! - `snapshot`: what a pod's snapshot is made of.
//! - `effort`: counted work.
//! - `tier`: where a copy is kept.
//! - `state`: how completely the history of a rank is known.
//!
//! ```
//! use kvbraid_core::fleet::{Index, Options, PodSpec, Prompt, ScoreRequest, Strategy, TierSet};
//! use kvbraid_core::secret::Secret;
//!
//! let mut index = Index::new(Options::new(Secret::new([7; 32])));
//! let spec = PodSpec { model: "m".to_owned(), dp_size: 1, ..PodSpec::default() };
//! index.register("a", spec)?;
//!
//! // What the pod's engine published: the blocks 1 to 4, of two tokens each, of group 0.
//! let payload = b"\x92\x00\x91\x9b\xabBlockStored\x94\x01\x02\x03\x04\xc0\x98\x05\x06\x07\
//!                 \x08\x09\x0a\x0b\x0c\x02\xc0\xa3GPU\xc0\xc0\x00\xaefull_attention";
//! assert_eq!(index.apply("a", 0, payload)?.stored, 4);
//!
//! let prompt = Prompt { tokens: &[5, 6, 7, 8, 9, 10, 11, 12, 13], lora: None, salt: None, extra_key: None, media: &[], wide: &[] };
//! let request = ScoreRequest {
//!     model: "m",
//!     prompt,
//!     pods: None,
//!     tiers: TierSet::default(),
//!     strategy: Strategy::Exact,
//!     weights: [None; 3],
//! };
//! let answer = index.score(&request)?;
//! assert!(answer.rows[0].is_exact());
//! assert_eq!(answer.rows[0].bounds.lower, 8);
//! # Ok::<(), kvbraid_core::Error>(())
//! ```

mod effort;
mod index;
mod ingest;
mod keys;
mod limbo;
mod model;
mod pod;
mod presence;
mod promised;
mod query;
mod rank;
mod seen;
mod silent;
mod snapshot;
mod state;
mod tier;

pub use index::explain::{Explained, GroupStrip, Strip};
pub use index::info::{GroupInfo, RankInfo};
pub use index::snapshots::{Saving, Unplaced, Unread, Unsealed, load, save};
pub use index::{Asked, Index, Options};
pub use ingest::intake::{Applied, Intake, SLICE};
pub use keys::prompt::Prompt;
pub use pod::catalog::PodConfig;
pub use pod::page::GroupOfModel;
pub use pod::publisher::{Hidden, Publisher};
pub use pod::{Member, PodSpec};
pub use query::answer::{Answer, Bounds, Exactness, Limiting, Row};
pub use query::prompt_keys::RequestKeys;
pub use query::request::{ScoreRequest, Strategy};
pub use query::seen::SeenBefore;
pub use rank::counts::Placed;
pub use silent::SilentPools;
pub use snapshot::Unfit;
pub use state::State;
pub use tier::{Tier, TierSet};
