//! What the feed of a rank tells: payloads, losses, restarts, and how completely it knows the
//! history.
//!
//! A payload may name another rank than the feed's own. What the feed says about itself then also
//! holds for that rank. If several feeds write to one rank, the worst of their states is the rank's
//! state. Bad bytes are refused and counted; they never raise an error.

use super::Index;
use super::limits::{INTAKE_KEPT, NAMED_BY_PAYLOADS};
use super::registration::unknown_pod;
use crate::error::Result;
use crate::fleet::ingest::intake::{Applied, Intake, Phase};
use crate::fleet::pod::engine_chain::EngineChain;
use crate::fleet::presence::SharedPresence;
use crate::fleet::rank::Rank;
use crate::fleet::state::State;
use crate::wire::MAX_RANKS;

impl Index {
    /// Applies one published payload. Bad bytes are refused and counted; they never raise an error.
    ///
    /// A batch that names another data-parallel rank than the feed's belongs to that rank. If there
    /// is no room for that rank, the whole batch is refused, and the refusal is counted at the
    /// feed's rank.
    ///
    /// # Errors
    /// `Unknown` for a pod that is not registered.
    pub fn apply(&mut self, name: &str, dp_rank: u32, payload: &[u8]) -> Result<Applied> {
        let mut intake = self.take_intake();
        intake.read(payload);
        let result = self.advance(name, dp_rank, &mut intake, usize::MAX);
        let applied = intake.applied();
        self.give_back(intake);
        while !self.keep_limits() {}
        result.map(|_| applied)
    }

    /// Hands out the buffers into which a payload is decoded. They are to be given back after the
    /// batch, so their memory can be used again.
    pub fn take_intake(&mut self) -> Intake {
        self.intake.take().unwrap_or_default()
    }

    /// Keeps the memory of an intake for the next batch, unless a long batch has left it large. The
    /// caller should then call `keep_limits`.
    pub fn give_back(&mut self, intake: Intake) {
        self.note_taken_in(intake.applied().stored);
        if intake.bytes() <= INTAKE_KEPT {
            self.intake = Some(intake);
        }
    }

    /// Applies the next slice of a batch that was read: about this many listed hashes. Returns true
    /// if the whole batch is applied. Until then only questions may be asked, and nothing else may
    /// be changed (`intake`).
    ///
    /// # Errors
    /// The same as for `apply`.
    pub fn advance(
        &mut self,
        name: &str,
        dp_rank: u32,
        intake: &mut Intake,
        work: usize,
    ) -> Result<bool> {
        let row = intake.dp_rank().unwrap_or(dp_rank);
        intake.progress.left = work.max(1);
        // The usual case: the feed is known to write to this rank, so the rank is looked up once.
        if let Ok((model, column)) = self.locate(name, row)
            && model.has_history_of(column, dp_rank)
        {
            return Ok(model.advance(column, intake));
        }
        if intake.progress.phase == Phase::Begin {
            if !self.has_row(name, row, dp_rank)? {
                intake.progress.refuse();
                return Ok(true);
            }
            self.note_writer(name, row, dp_rank)?;
        }
        let (model, column) = self.locate(name, row)?;
        Ok(model.advance(column, intake))
    }

    /// Whether a rank that a payload names has a row. A rank that was not registered gets a row of
    /// its own here, if there is room for one.
    fn has_row(&mut self, name: &str, row: u32, feed: u32) -> Result<bool> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        if !pod.columns.contains_key(&row) && row < MAX_RANKS {
            let named = pod.columns.len().saturating_sub(pod.spec.dp_size as usize);
            if named >= NAMED_BY_PAYLOADS || self.num_ranks() >= self.options.max_ranks {
                let (model, column) = self.locate(name, feed)?;
                if let Some(rank) = &mut model.ranks[column] {
                    rank.counts.refuse("too_many_ranks", 1);
                }
                return Ok(false);
            }
            self.add_rank(name, row)?;
        }
        Ok(true)
    }

    /// Remembers which feeds write to a row. With two feeds, the row mixes two histories.
    fn note_writer(&mut self, name: &str, row: u32, feed: u32) -> Result<()> {
        let (model, column) = self.locate(name, row)?;
        if let Some(rank) = &mut model.ranks[column]
            && !rank.feeds_with_history.contains(&feed)
        {
            rank.feeds_with_history.push(feed);
            if rank.feeds_with_history.len() > 1 {
                rank.contradict("rank_of_two_feeds");
            }
            if !rank.feeds.contains(&feed) {
                rank.feeds.push(feed);
                self.combine_states(name, row);
            }
        }
        Ok(())
    }

    /// The rows that a feed writes to: the row of its own rank, and those that its payloads named.
    fn rows_of(&self, name: &str, feed: u32) -> Vec<u32> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        let ranks = self.models.get(&pod.spec.model).map(|model| &model.ranks);
        let is_written = |column: usize| {
            ranks
                .and_then(|ranks| ranks[column].as_ref())
                .is_some_and(|rank| rank.feeds.contains(&feed))
        };
        let rows = pod.columns.iter();
        rows.filter(|&(&row, &column)| row == feed || is_written(column))
            .map(|(&row, _)| row)
            .collect()
    }

    /// Takes something from each rank that a feed writes to, and what was promised to it.
    fn with_each_row(
        &mut self,
        name: &str,
        feed: u32,
        change: impl Fn(&mut Rank, &mut SharedPresence<'_>),
    ) -> Result<()> {
        self.locate(name, feed)?;
        for row in self.rows_of(name, feed) {
            let (model, column) = self.locate(name, row)?;
            model.promises.withdraw_all(column);
            model.with_rank(column, &change);
        }
        Ok(())
    }

    /// Sets the state of a row to the worst state of the feeds that write to it.
    fn combine_states(&mut self, name: &str, row: u32) {
        let Some(pod) = self.pods.get(name) else {
            return;
        };
        let (Some(&column), Some(model)) =
            (pod.columns.get(&row), self.models.get_mut(&pod.spec.model))
        else {
            return;
        };
        let Some(rank) = &mut model.ranks[column] else {
            return;
        };
        let own = (row < pod.spec.dp_size).then_some(row);
        let feeds = own.iter().chain(&rank.feeds);
        let worst = feeds
            .filter_map(|feed| pod.feeds.get(feed))
            .max_by_key(|(state, _)| state.severity());
        (rank.state.feed_state, rank.state.feed_reason) =
            worst.cloned().unwrap_or((State::Exact, String::new()));
        rank.note_feed_state();
    }

    /// Handles a restart of the engine of a feed: what the ranks that it writes to held on the GPU
    /// is gone, and the other tiers are in doubt. A rank that another feed also writes to is
    /// treated as lost instead, because the index cannot know which part of its blocks is gone.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn reset(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        let (use_hash, pod) = (self.options.use_hash_functions, self.pods.get(name));
        let chain = match pod {
            Some(pod) if use_hash => EngineChain::new(pod.spec.algo, pod.spec.seed.as_deref()),
            Some(_) | None => EngineChain::off(),
        };
        self.with_each_row(name, dp_rank, |rank, shared| {
            rank.feeds_with_history.retain(|feed| *feed != dp_rank);
            if rank.feeds_with_history.is_empty() {
                rank.restart(shared, chain.clone());
            } else {
                rank.lose(shared);
            }
        })
    }

    /// Prepares a `reset`: at most this many slots are looked at, and their copies on the CPU and
    /// storage tiers become doubts. Returns whether no such copies are left, so the reset itself is
    /// quick.
    ///
    /// # Errors
    /// The same as for `reset`.
    pub fn begin_reset(&mut self, name: &str, dp_rank: u32, most: usize) -> Result<bool> {
        self.locate(name, dp_rank)?;
        for row in self.rows_of(name, dp_rank) {
            let (model, column) = self.locate(name, row)?;
            let is_done = model.with_rank(column, |rank, shared| {
                let is_shared = rank.feeds_with_history.iter().any(|feed| *feed != dp_rank);
                rank.state.is_midway = !is_shared && !rank.clear_some(most, shared);
                !rank.state.is_midway
            });
            if is_done == Some(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Handles messages of a feed that are lost for good: what the ranks that it writes to hold is
    /// no longer known.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn lose(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        self.with_each_row(name, dp_rank, Rank::lose)
    }

    /// Handles a panic in the middle of a change to the ranks that a feed writes to. Everything
    /// known of these ranks is forgotten, without looking at what is undecided, because that may be
    /// inconsistent.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn discard(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        self.with_each_row(name, dp_rank, Rank::discard)
    }

    /// Sets how completely a feed knows the history of the ranks that it writes to.
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
        self.locate(name, dp_rank)?;
        if let Some(pod) = self.pods.get_mut(name) {
            pod.feeds.insert(dp_rank, (state, reason));
        }
        for row in self.rows_of(name, dp_rank) {
            self.combine_states(name, row);
        }
        Ok(())
    }

    /// Counts a refusal that happened in the feed.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn note_refused(&mut self, name: &str, dp_rank: u32, reason: &str) -> Result<()> {
        let (model, column) = self.locate(name, dp_rank)?;
        if let Some(rank) = &mut model.ranks[column] {
            *rank
                .counts
                .refused_outside
                .entry(reason.to_owned())
                .or_insert(0) += 1;
        }
        Ok(())
    }
}
