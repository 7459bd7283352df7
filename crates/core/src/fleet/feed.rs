//! What the feed of a rank tells: payloads, losses, restarts, and how far it knows the history.
//!
//! Bad bytes are refused and counted, never an error.

use super::engine_chain::EngineChain;
use super::limits::{CHECK_EVERY, MAX_RANKS};
use super::model::Model;
use super::rank::{Rank, State};
use super::registration::unknown_pod;
use super::{Applied, Index};
use crate::error::Result;

impl Index {
    /// Takes in one published payload. Bad bytes are refused and counted, never an error.
    ///
    /// A batch that names another data-parallel rank than the feed's is that rank's.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered.
    pub fn apply(&mut self, name: &str, dp_rank: u32, payload: &[u8]) -> Result<Applied> {
        let mut decoder = std::mem::take(&mut self.decoder);
        let batch = decoder.decode(payload);
        let rank = batch.dp_rank.unwrap_or(dp_rank);
        let result = self
            .column_for(name, rank, dp_rank)
            .map(|(model, column)| model.apply(column, batch));
        self.decoder = decoder;
        self.batches_to_check -= 1;
        if self.batches_to_check == 0 {
            self.batches_to_check = CHECK_EVERY;
            self.enforce_limits();
        }
        result
    }

    fn column_for(
        &mut self,
        name: &str,
        dp_rank: u32,
        feed_rank: u32,
    ) -> Result<(&mut Model, usize)> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        if !pod.columns.contains_key(&dp_rank) && dp_rank < MAX_RANKS {
            // A rank nobody registered shows itself: it gets a row of its own.
            let (state, reason) = self.state_of(name, feed_rank);
            self.add_rank(name, dp_rank)?;
            self.set_state(name, dp_rank, state, reason)?;
        }
        self.locate(name, dp_rank)
    }

    fn state_of(&mut self, name: &str, dp_rank: u32) -> (State, String) {
        self.locate(name, dp_rank)
            .ok()
            .and_then(|(model, column)| model.ranks[column].as_ref())
            .map_or((State::Exact, String::new()), |r| {
                (r.feed_state, r.feed_reason.clone())
            })
    }

    /// The engine of a rank restarted: its GPU tier is gone, other tiers are in doubt.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn reset(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        let (use_hash, pod) = (self.options.use_hash_functions, self.pods.get(name));
        let chain = match pod {
            Some(pod) if use_hash => EngineChain::new(pod.spec.algo, pod.spec.seed.as_deref()),
            Some(_) | None => EngineChain::off(),
        };
        let (model, column) = self.locate(name, dp_rank)?;
        model.with_rank(column, |rank, shared| rank.restart(shared, chain));
        Ok(())
    }

    /// Messages of a rank were lost for good: what it holds is no longer known.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn lose(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        model.with_rank(column, Rank::lose);
        Ok(())
    }

    /// How far the feed knows a rank's history.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn set_state(
        &mut self,
        name: &str,
        dp_rank: u32,
        state: State,
        reason: String,
    ) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        if let Some(rank) = &mut model.ranks[column] {
            rank.feed_state = state;
            rank.feed_reason = reason;
        }
        Ok(())
    }

    /// Counts a refusal that the feed saw.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn note_refused(&mut self, name: &str, dp_rank: u32, reason: &str) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        if let Some(rank) = &mut model.ranks[column] {
            *rank.refused_outside.entry(reason.to_owned()).or_insert(0) += 1;
        }
        Ok(())
    }
}
