//! The blocks of one memory, without any request: which blocks are free, which hash finds which
//! block, and the events that tell about them.
//!
//! [`crate::ids`] names a block, `hash_index` finds blocks by hash, `pool` counts references and
//! orders the free blocks for eviction, and `events` records which blocks became findable and which
//! no longer are. `extra` separates requests with the same tokens. `block_set` answers which entries
//! of a table are among some blocks.
//! The engine's cache has one pool, on the GPU.
//!
//! ```
//! use kvbraid_core::blocks::{Author, BlockId, Pool};
//! use kvbraid_core::hash::Digest;
//! use kvbraid_core::secret::Secret;
//!
//! // Eight blocks, of which block 0 is never handed out, for a model with two groups.
//! let mut pool = Pool::new(8, 2, &Secret::new([7; 32]));
//! let block = pool.take(|_, _| unreachable!("nothing was found in it"));
//! assert_eq!(block, BlockId(1));
//!
//! // The block holds the first 16 tokens of some prompt, in group 0.
//! let hash = Digest::from_bytes(&[42; 32]).unwrap();
//! let key = pool.key_of(&hash, 0, None);
//! pool.register(block, key, 16, Author::NOBODY);
//! pool.free([block]);
//!
//! // A free block is found until it is evicted, and it is evicted after those without a hash.
//! let entry = pool.index.find(&hash).unwrap();
//! assert_eq!(pool.index.row(entry), [block, BlockId(0)]);
//! assert_eq!(pool.queue().last(), Some(block));
//! ```

mod block_set;
mod events;
mod extra;
mod hash_index;
mod pool;

pub use block_set::{BlockSet, Ranks};
pub use events::{EventLog, ListedBlock, Source, StoreEvent, frame};
pub use extra::Extra;
pub use hash_index::{Entries, EntryId, HashIndex, Key};
pub use pool::{Author, Pool};

pub use crate::ids::{BlockId, NULL_BLOCK};
pub(crate) use crate::ids::{count, signed};
