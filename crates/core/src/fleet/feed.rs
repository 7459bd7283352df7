//! What the feed of a rank tells: payloads, losses, restarts, and how far it knows the history.
//!
//! A payload may name another rank than its feed's: what the feed tells of itself is then told of that
//! rank too. Where several feeds write to one rank the worst of their states is the rank's. Bad
//! bytes are refused and counted, never an error.

use super::engine_chain::EngineChain;
use super::index::Index;
use super::intake::{Applied, Intake, Phase};
use super::limits::{INTAKE_KEPT, NAMED_BY_PAYLOADS};
use super::rank::Rank;
use super::registration::unknown_pod;
use super::state::State;
use crate::error::Result;
use crate::wire::MAX_RANKS;

impl Index {
    /// Takes in one published payload. Bad bytes are refused and counted, never an error.
    ///
    /// A batch that names another data-parallel rank than the feed's is that rank's; a rank that
    /// there is no room for is refused, with all that is said of it, and counted at the feed's.
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

    /// What a payload is decoded into, to be given back when the batch is in: its memory is kept.
    pub fn take_intake(&mut self) -> Intake {
        self.intake.take().unwrap_or_default()
    }

    /// Keeps the memory of an intake for the next batch, unless a long one left much of it. Then it
    /// is time for `keep_limits`.
    pub fn give_back(&mut self, intake: Intake) {
        self.note_taken_in(intake.applied().stored);
        if intake.bytes() <= INTAKE_KEPT {
            self.intake = Some(intake);
        }
    }

    /// Takes in the next slice of a batch that was read: about so many listed hashes. True: all of
    /// it is in. Until then only questions may be asked, and nothing else be changed (`intake`).
    ///
    /// # Errors
    /// As `apply`.
    pub fn advance(
        &mut self,
        name: &str,
        dp_rank: u32,
        intake: &mut Intake,
        work: usize,
    ) -> Result<bool> {
        let row = intake.dp_rank().unwrap_or(dp_rank);
        intake.progress.left = work.max(1);
        // Nearly every batch: its feed is known to write to this rank, which is looked up once.
        if let Ok((model, column)) = self.locate(name, row)
            && model.is_told_by(column, dp_rank)
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

    /// Whether a rank that a payload names has a row. One that nobody registered shows itself: it
    /// gets a row of its own, where there is room for one.
    fn has_row(&mut self, name: &str, row: u32, feed: u32) -> Result<bool> {
        let pod = self.pods.get(name).ok_or_else(|| unknown_pod(name))?;
        if !pod.columns.contains_key(&row) && row < MAX_RANKS {
            let named = pod.columns.len().saturating_sub(pod.spec.dp_size as usize);
            if named >= NAMED_BY_PAYLOADS || self.num_ranks() >= self.options.max_ranks {
                let (model, column) = self.locate(name, feed)?;
                if let Some(rank) = &mut model.ranks[column] {
                    rank.refuse("too_many_ranks", 1);
                }
                return Ok(false);
            }
            self.add_rank(name, row)?;
        }
        Ok(true)
    }

    /// Remembers which feeds write to a row. Two of them tell two histories as one.
    fn note_writer(&mut self, name: &str, row: u32, feed: u32) -> Result<()> {
        let (model, column) = self.locate(name, row)?;
        if let Some(rank) = &mut model.ranks[column]
            && !rank.told_by.contains(&feed)
        {
            rank.told_by.push(feed);
            if rank.told_by.len() > 1 {
                rank.contradict("rank_of_two_feeds");
            }
            if !rank.feeds.contains(&feed) {
                rank.feeds.push(feed);
                self.combine_states(name, row);
            }
        }
        Ok(())
    }

    /// The rows that a feed writes to: that of its own rank, and those that its payloads named.
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

    /// Makes the state of a row the worst of those of the feeds that write to it.
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
        (rank.feed_state, rank.feed_reason) =
            worst.cloned().unwrap_or((State::Exact, String::new()));
    }

    /// The engine of a feed restarted: the GPU tier of the ranks that it writes to is gone, other
    /// tiers are in doubt. A rank that another feed writes to as well is lost instead: what of it
    /// is gone nobody can say.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn reset(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        let (use_hash, pod) = (self.options.use_hash_functions, self.pods.get(name));
        let chain = match pod {
            Some(pod) if use_hash => EngineChain::new(pod.spec.algo, pod.spec.seed.as_deref()),
            Some(_) | None => EngineChain::off(),
        };
        self.locate(name, dp_rank)?;
        for row in self.rows_of(name, dp_rank) {
            let chain = chain.clone();
            let (model, column) = self.locate(name, row)?;
            model.with_rank(column, |rank, shared| {
                rank.told_by.retain(|feed| *feed != dp_rank);
                if rank.told_by.is_empty() {
                    rank.restart(shared, chain);
                } else {
                    rank.lose(shared);
                }
            });
        }
        Ok(())
    }

    /// Prepares a `reset`: of at most so many slots, copies on the CPU and storage tiers become doubts.
    /// Returns whether no such copies are left, so that the reset itself is quick.
    ///
    /// # Errors
    /// As `reset`.
    pub fn begin_reset(&mut self, name: &str, dp_rank: u32, most: usize) -> Result<bool> {
        self.locate(name, dp_rank)?;
        for row in self.rows_of(name, dp_rank) {
            let (model, column) = self.locate(name, row)?;
            let is_done = model.with_rank(column, |rank, shared| {
                let is_shared = rank.told_by.iter().any(|feed| *feed != dp_rank);
                rank.is_midway = !is_shared && !rank.clear_some(most, shared);
                !rank.is_midway
            });
            if is_done == Some(false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Messages of a feed were lost for good: what the ranks that it writes to hold is no longer
    /// known.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn lose(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        self.locate(name, dp_rank)?;
        for row in self.rows_of(name, dp_rank) {
            let (model, column) = self.locate(name, row)?;
            model.with_rank(column, Rank::lose);
        }
        Ok(())
    }

    /// A change of the ranks that a feed writes to panicked half way: everything that is known of them
    /// is forgotten, without a look at what is undecided, which may contradict itself.
    ///
    /// # Errors
    /// `Unknown` for a pod or rank that is not registered.
    pub fn discard(&mut self, name: &str, dp_rank: u32) -> Result<()> {
        self.locate(name, dp_rank)?;
        for row in self.rows_of(name, dp_rank) {
            let (model, column) = self.locate(name, row)?;
            model.with_rank(column, Rank::discard);
        }
        Ok(())
    }

    /// How far a feed knows the history of the ranks that it writes to.
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
