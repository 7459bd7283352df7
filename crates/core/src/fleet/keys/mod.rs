//! What the keys of requests and stores are made from.
//!
//! - `ahead`: tokens after a boundary that belong to a hash;
//! - `prompt`: a request as the index sees it;
//! - `step`: at which boundaries a prompt has keys;
//! - `texts`: a number for each text: adapters, salts, media;
//! - `units`: prepared steps, by block size.

pub(in crate::fleet) mod ahead;
pub(in crate::fleet) mod prompt;
pub(in crate::fleet) mod step;
pub(in crate::fleet) mod texts;
pub(in crate::fleet) mod units;
