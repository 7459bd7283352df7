//! A cache that chooses its eviction policy while the engine runs.
//!
//! Small simulated caches replay finished requests, one cache per policy, and the cache copies the
//! best. [`crate::cache`] knows nothing of this: it says which requests have finished, shows its
//! checkpoints, and imitates others.
//!
//! - `choice` decides which policy to follow; read it first.
//! - `evidence` says which simulated cache has saved more than chance would explain.
//! - `recorded_request` is what remains of a finished request until it is replayed.
//! - `sample` says which requests are replayed, in caches too large to replay all.
//! - `replay_schedule` says when.
//! - `simulated_cache` replays them.

mod choice;
mod evidence;
mod recorded_request;
mod replay_schedule;
mod sample;
mod simulated_cache;

use std::ops::{Deref, DerefMut};

use self::choice::Adaptation;
pub use self::choice::{PolicyChoice, Saved};
use crate::blocks::BlockId;
use crate::cache::{Cache, CacheConfig, FinishedRequest};
use crate::error::Result;
use crate::secret::Secret;

/// A [`Cache`] that learns from its finished requests which policy is best, unless its policy is
/// fixed. Every other call is the cache's own.
#[derive(Debug, Clone)]
pub struct AdaptiveCache {
    cache: Cache,
    adaptation: Option<Box<Adaptation>>,
}

impl AdaptiveCache {
    /// An empty cache. `secret` makes the layout of its hash tables unpredictable.
    ///
    /// # Errors
    /// The same as for [`Cache::new`].
    pub fn new(config: CacheConfig, secret: &Secret) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            adaptation: Adaptation::new(&config, secret).map(Box::new),
            cache: Cache::new(config, secret)?,
        })
    }

    /// See [`Cache::release`].
    ///
    /// # Errors
    /// The same as for [`Cache::release`].
    pub fn release(&mut self, ids: &[u64], step_failed: bool) -> Result<()> {
        let finished = self.cache.release(ids, step_failed)?;
        finished.iter().for_each(|request| self.learn_from(request));
        Ok(())
    }

    /// See [`Cache::pop_blocks`].
    ///
    /// # Errors
    /// The same as for [`Cache::pop_blocks`].
    pub fn pop_blocks(&mut self, id: u64) -> Result<Vec<BlockId>> {
        let (blocks, finished) = self.cache.pop_blocks(id)?;
        self.learn_from(&finished);
        Ok(blocks)
    }

    fn learn_from(&mut self, request: &FinishedRequest) {
        if let Some(adaptation) = &mut self.adaptation
            && let Some(retention) = self.cache.retention()
            && let Some((other, interval)) = adaptation.learn_from_finished(request, retention)
        {
            self.cache.imitate(other, interval);
        }
    }

    /// The policy that the cache follows, and why; `None` if it is fixed.
    #[must_use]
    pub fn policy_choice(&self) -> Option<PolicyChoice> {
        Some(self.adaptation.as_ref()?.policy_choice())
    }

    /// The bytes of [`Cache::memory_bytes`], and those of the simulated caches.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let adaptation = self.adaptation.as_ref();
        self.cache.memory_bytes() + adaptation.map_or(0, |adaptation| adaptation.bytes())
    }

    /// Checks everything. `outside` are the references that the caller holds.
    ///
    /// # Panics
    /// Unless blocks, hashes, requests and simulated caches agree.
    pub fn check_integrity(&self, outside: &[BlockId]) {
        self.cache.check_integrity(outside);
        if let Some(adaptation) = &self.adaptation {
            adaptation.check_integrity();
        }
    }
}

impl Deref for AdaptiveCache {
    type Target = Cache;

    fn deref(&self) -> &Cache {
        &self.cache
    }
}

impl DerefMut for AdaptiveCache {
    fn deref_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }
}
