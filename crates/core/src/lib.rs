//! The core of kvbraid, without torch: pure functions and plain data structures.
//!
//! It has everything that is large or hot: engine hashing, wire decoding, the resume rule, the
//! block cache and the fleet index. It never does I/O, never reads a clock, has no global state and
//! does not depend on Python.
//!
//! Read [`spec`] first (groups of layers, and what their blocks are), then [`rule`] (up to which
//! token a request can resume). The other modules apply the rule: [`fleet`] to what many engines
//! published, [`cache`] to the blocks of one engine (in [`adaptive`], one that chooses its eviction
//! policy while it runs), and [`recovery`] to the tables of requests whose
//! loads failed. [`blocks`] are those of one memory. [`prefix`] is our own key of a prefix, and
//! [`wide`] and [`token_json`] are about token ids. All of these may use what is small: [`ids`],
//! `names`, [`error`], [`secret`], `divisors`, `growing`, `key_table`. [`hash`] and [`wire`] implement
//! how engines name blocks and publish events about them:
//!
//! ```
//! use kvbraid_core::hash::HashAlgo;
//! use kvbraid_core::wire::{Decoder, Event, Limits};
//!
//! assert_eq!(HashAlgo::from_name("sha256"), Some(HashAlgo::Sha256));
//!
//! // A batch as an engine publishes it: its time, and one event that removes the blocks 1 and 2.
//! let mut decoder = Decoder::new(Limits::default());
//! decoder.decode(b"\x92\x00\x91\x92\xacBlockRemoved\x92\x01\x02");
//! let batch = decoder.batch();
//! let [Event::Removed(removed)] = batch.events.as_slice() else {
//!     panic!("one removal")
//! };
//! assert_eq!(batch.hashes_of(removed.hashes), [1, 2]);
//! ```

pub mod adaptive;
pub mod blocks;
pub mod cache;
mod divisors;
pub mod error;
pub mod fleet;
mod growing;
pub mod hash;
pub mod ids;
mod key_table;
mod names;
pub mod prefix;
pub mod recovery;
pub mod rule;
pub mod secret;
pub mod spec;
pub mod token_json;
pub mod wide;
pub mod wire;

pub use error::{Error, Result};
