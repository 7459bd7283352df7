//! From a request to the rows of an answer.
//!
//! - `probe`: engine chains, computed only where they can place a hash;
//! - `rows`: the rule, once for each class of ranks and set of tiers;
//! - `bounds`: the bounds of one rank whose answer is not exact;
//! - `canonical_blocks`: the strategy `weighted_blocks`;
//! - `tier_score`: the score of the strategy `exact`;
//! - `expected`: the tokens that a rank likely reuses;
//! - `soon`: the tokens that a rank will reuse once it has what was promised to it;
//! - `seen`: the tokens that were ever shown of a request;
//! - `reasons`: why an answer is a bound;
//! - `by_column`: the rows, found by the columns of their ranks;
//! - `search`: the keys, nodes and words of one request;
//! - `request`: what a caller asks;
//! - `json`: the body of an answer;
//! - `answer`: what a caller gets;
//! - `words`: what the ranks of one class hold along a request;
//! - `prompt_keys`: the keys and nodes of a request along one unit of tokens.

pub(in crate::fleet) mod answer;
pub(in crate::fleet) mod bounds;
pub(in crate::fleet) mod by_column;
pub(in crate::fleet) mod canonical_blocks;
pub(in crate::fleet) mod expected;
pub(in crate::fleet) mod json;
pub(in crate::fleet) mod probe;
pub(in crate::fleet) mod prompt_keys;
pub(in crate::fleet) mod reasons;
pub(in crate::fleet) mod request;
pub(in crate::fleet) mod rows;
pub(in crate::fleet) mod search;
pub(in crate::fleet) mod seen;
pub(in crate::fleet) mod soon;
pub(in crate::fleet) mod tier_score;
pub(in crate::fleet) mod words;
