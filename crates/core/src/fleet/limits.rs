//! How much an index holds, and what it forgets above its limits.

use super::Index;
use super::intake::Intake;
use super::model::Model;

/// Ranks that the payloads of one pod may name beyond those registered: an engine that makes ranks
/// up leaves room for those of other pods.
pub(super) const NAMED_BY_PAYLOADS: usize = 256;

/// Memory is compared with its limit once in so many batches: measuring walks every rank.
pub(super) const CHECK_EVERY: u32 = 256;

impl Index {
    /// Bytes held, by capacity and estimate.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.models.values().map(Model::bytes).sum::<usize>()
            + self.intake.as_ref().map_or(0, Intake::bytes)
    }

    /// Brings memory under its limits now (it happens by itself from time to time).
    pub fn enforce_limits(&mut self) {
        if self.options.memory_limit_bytes > 0 {
            self.bound_limbos(self.options.memory_limit_bytes / 2);
        }
        if self.options.memory_limit_bytes > 0 && self.bytes() > self.options.memory_limit_bytes {
            self.models.values_mut().for_each(Model::forget_oldest);
        }
    }

    /// What is undecided of all ranks together takes so many bytes at most: the ranks that have
    /// most of it forget theirs first, and nobody's placed blocks go for it.
    fn bound_limbos(&mut self, most: usize) {
        let mut sizes: Vec<(usize, &str, usize)> = Vec::new();
        for (name, model) in &self.models {
            let ranks = model.ranks.iter().enumerate();
            let ranks = ranks.filter_map(|(i, rank)| Some((i, rank.as_ref()?)));
            sizes.extend(ranks.map(|(i, rank)| (rank.limbo.bytes(), name.as_str(), i)));
        }
        let mut sum: usize = sizes.iter().map(|(bytes, ..)| bytes).sum();
        sizes.sort_unstable();
        let mut doomed: Vec<(String, usize)> = Vec::new();
        while sum > most
            && let Some((bytes, name, column)) = sizes.pop()
        {
            sum -= bytes;
            doomed.push((name.to_owned(), column));
        }
        for (name, column) in doomed {
            if let Some(model) = self.models.get_mut(&name) {
                model.with_rank(column, |rank, shared| {
                    rank.evict_limbo(shared);
                    rank.refuse("forgotten_undecided", 1);
                });
            }
        }
    }
}
