//! What each simulated cache has saved lately, and which leads are more than chance.

/// A lead counts from this share of all compute on.
const LEAST_LEAD: f64 = 0.003;

/// What the simulated caches have saved, where older requests count less.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    /// What is kept of all sums with each request.
    keeps: f64,
    /// What each has saved, and all that could be saved.
    saved: Vec<f64>,
    all: f64,
    /// The squares of the differences between each two of them, one row for each.
    squares: Vec<f64>,
}

impl Evidence {
    /// The weight of a request falls to 1/e while `memory` others are added.
    pub(super) fn new(num_caches: usize, memory: f64) -> Self {
        Self {
            keeps: 1.0 - 1.0 / memory,
            saved: vec![0.0; num_caches],
            all: 0.0,
            squares: vec![0.0; num_caches * num_caches],
        }
    }

    /// Adds what each saved of a request, and all that could be saved of it.
    pub(super) fn add(&mut self, saved: &[f64], all: f64) {
        self.all = self.all * self.keeps + all;
        for (sum, one) in self.saved.iter_mut().zip(saved) {
            *sum = *sum * self.keeps + one;
        }
        let pairs = saved.iter().flat_map(|a| saved.iter().map(move |b| a - b));
        for (sum, difference) in self.squares.iter_mut().zip(pairs) {
            *sum = *sum * self.keeps + difference * difference;
        }
    }

    /// Whether all have saved the same of every request.
    pub(super) fn tells_nothing(&self) -> bool {
        self.squares.iter().all(|square| *square == 0.0)
    }

    /// The simulated cache that has saved most, if its lead over another one is larger than what chance would
    /// make of equals. Of equals it is the first.
    pub(super) fn better(&self, than: usize) -> Option<usize> {
        let mut best = than;
        for (index, saved) in self.saved.iter().enumerate() {
            if *saved > self.saved[best] {
                best = index;
            }
        }
        let chance = self.squares[best * self.saved.len() + than].sqrt();
        (self.lead(best, than) > chance.max(LEAST_LEAD * self.all)).then_some(best)
    }

    /// By how much one has saved more than another one.
    pub(super) fn lead(&self, one: usize, other: usize) -> f64 {
        self.saved[one] - self.saved[other]
    }

    /// The share that each has saved of all that could be saved.
    pub(super) fn shares(&self) -> impl Iterator<Item = f64> {
        let all = self.all.max(f64::MIN_POSITIVE);
        self.saved.iter().map(move |saved| saved / all)
    }

    /// Panics if one has saved more than there was.
    pub(super) fn check_integrity(&self) {
        let most = self.all * (1.0 + 1e-9);
        let is_possible = self.saved.iter().all(|saved| *saved <= most);
        assert!(is_possible, "a simulated cache saved more than all");
    }
}
