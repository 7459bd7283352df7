//! What every pod of a fleet holds, from the engines' own events, and what a request can reuse.
//!
//! [`Index`] owns everything; it takes bytes and tokens in and gives numbers out. Nothing here does
//! I/O or reads a clock. A batch goes through `apply`, `naming` (places of hashes, with `limbo` for
//! what is undecided), then `slots`, `nodes` and `planes` (copies, boundaries, bits). A request goes
//! through `search` (with `walk` for its keys and nodes), then `rows` (the rule, `bounds` and scores).
//! Imports between the files go one way: data first, then what works on it, then [`Index`].
//!
//! ```
//! use kvbraid_core::fleet::{Index, Options, PodSpec, Prompt, Request, Strategy, TierSet};
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
//! let request = Request {
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

mod adapters;
mod ahead;
mod answer;
mod apply;
mod bounds;
mod by_column;
mod canonical_blocks;
mod catalog;
mod components;
mod copies;
mod effort;
mod engine_chain;
mod expected;
mod explain;
mod feed;
mod idle;
mod index;
mod infer;
mod info;
mod intake;
mod json;
mod limbo;
mod limits;
mod loads;
mod loss;
mod model;
mod moved;
mod namespace;
mod naming;
mod nodes;
mod oldest;
mod page;
mod planes;
mod pod;
mod pool;
mod probe;
mod prompt;
mod publisher;
mod rank;
mod reach;
mod reasons;
mod registration;
mod request;
mod routed;
mod rows;
mod search;
mod sharing;
mod shown;
mod silent;
mod sizes;
mod slots;
mod sparse_naming;
mod state;
mod store_marks;
mod texts;
mod tier;
mod tier_score;
mod undecided;
mod units;
mod unknown;
mod view;
mod walk;
mod words;

pub use answer::{Answer, Bounds, Exactness, Limiting, Row};
pub use catalog::PodConfig;
pub use explain::{Explained, GroupStrip, Strip};
pub use index::{Index, Options};
pub use info::{GroupInfo, RankInfo};
pub use intake::{Applied, Intake, SLICE};
pub use page::GroupOfModel;
pub use pod::{Member, PodSpec};
pub use prompt::Prompt;
pub use publisher::{Hidden, Publisher};
pub use rank::Placed;
pub use request::{Request, Strategy};
pub use silent::SilentPools;
pub use state::State;
pub use tier::{Tier, TierSet};
