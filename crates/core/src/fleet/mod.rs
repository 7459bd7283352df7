//! What every pod of a fleet holds, from the engines' own events, and what a request can reuse.
//!
//! [`Index`] owns everything; it takes bytes and tokens in and gives numbers out. Nothing here does
//! I/O or reads a clock. A batch goes through `apply`, `naming` (places of hashes, with `limbo` for
//! what is undecided), then `slots`, `nodes` and `planes` (copies, boundaries, bits). A request goes
//! through `search` (with `walk` for its keys and nodes), then `rows` (the rule, `bounds` and scores).
//! Imports between the files go one way: data first, then what works on it, then [`Index`].

mod ahead;
mod answer;
mod apply;
mod bounds;
mod canonical_blocks;
mod catalog;
mod copies;
mod divisors;
mod effort;
mod engine_chain;
mod explain;
mod feed;
mod idle;
mod index;
mod info;
mod intake;
mod json;
mod limbo;
mod limits;
mod loss;
mod model;
mod moved;
mod naming;
mod nodes;
mod oldest;
mod planes;
mod pod;
mod probe;
mod prompt;
mod rank;
mod registration;
mod request;
mod rows;
mod search;
mod sharing;
mod shown;
mod slots;
mod sparse_naming;
mod state;
mod texts;
mod tier;
mod tier_score;
mod undecided;
mod units;
mod view;
mod walk;
mod words;

pub use answer::{Answer, Bounds, Exactness, Limiting, Row};
pub use catalog::PodConfig;
pub use explain::{Explained, GroupStrip, Strip};
pub use index::{Index, Options};
pub use info::{GroupInfo, RankInfo};
pub use intake::{Applied, Intake, SLICE};
pub use pod::{Member, PodSpec};
pub use prompt::Prompt;
pub use rank::Placed;
pub use request::{Request, Strategy};
pub use state::State;
pub use tier::{Tier, TierSet};
