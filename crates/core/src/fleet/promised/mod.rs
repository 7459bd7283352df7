//! Prompts that were sent to pods and of which no event tells yet: what a pod will soon hold.
//!
//! Invariant: a promise changes no bound. It counts until its rank has stored the whole prompt, is
//! cleared, loses messages or starts anew, or until it is withdrawn; and together promises take
//! at most so many bytes: the oldest goes first, and is counted at its rank.
//!
//! - `paths`: the prefixes of prompts, each with the ranks that they were promised to.

mod paths;

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::fleet::presence::lanes::Lanes;
use crate::prefix::PrefixKey;
pub(in crate::fleet) use paths::Coming;
use paths::{PathId, Paths};

/// A prompt on its way into the cache of one rank.
#[derive(Debug)]
pub(in crate::fleet) struct Promise {
    /// The column of the rank.
    pub column: usize,
    /// Tokens from one key to the next.
    pub unit: u32,
    /// The keys of the prompt's boundaries, as the nodes there have them.
    pub keys: Vec<PrefixKey>,
    /// Where states will be kept, as numbers of keys, ascending: where the prompt leaves what the
    /// rank has, and where it ends, both on the grid of all groups.
    pub kept: SmallVec<[u32; 2]>,
}

/// A promise that counts.
#[derive(Debug)]
struct Open {
    column: usize,
    unit: u32,
    end: PathId,
    kept: SmallVec<[u32; 2]>,
    /// The key of the last boundary at which all groups will hold something, if there is one.
    last: Option<PrefixKey>,
}

/// What the promises of one model are.
#[derive(Debug, Default)]
pub(in crate::fleet) struct Promises {
    paths: HashMap<u32, Paths>,
    all: BTreeMap<u64, Open>,
    by_column: HashMap<usize, Vec<u64>>,
    /// The columns whose windows are kept where states are, and nowhere else.
    sparse: HashSet<usize>,
}

impl Promises {
    /// Notes a promise. One without a key promises nothing, and is not kept.
    pub(in crate::fleet) fn add(&mut self, id: u64, promise: Promise) {
        let Promise {
            column,
            unit,
            keys,
            kept,
        } = promise;
        if keys.is_empty() {
            return;
        }
        let last = kept.last().map(|end| keys[*end as usize - 1]);
        let paths = self.paths.entry(unit).or_default();
        let end = paths.add(&keys, &kept, column);
        let open = Open {
            column,
            unit,
            end,
            kept,
            last,
        };
        self.all.insert(id, open);
        self.by_column.entry(column).or_default().push(id);
    }

    /// Withdraws a promise. Returns whether it still counted.
    pub(in crate::fleet) fn withdraw(&mut self, id: u64) -> bool {
        let Some(open) = self.all.remove(&id) else {
            return false;
        };
        if let Some(own) = self.by_column.get_mut(&open.column) {
            own.retain(|other| *other != id);
            if own.is_empty() {
                self.by_column.remove(&open.column);
            }
        }
        if let Some(paths) = self.paths.get_mut(&open.unit) {
            paths.remove(open.end, &open.kept, open.column);
            if paths.is_empty() {
                self.paths.remove(&open.unit);
            }
        }
        true
    }

    /// Withdraws all promises of a rank.
    pub(in crate::fleet) fn withdraw_all(&mut self, column: usize) {
        for id in self.by_column.get(&column).cloned().unwrap_or_default() {
            self.withdraw(id);
        }
    }

    /// Withdraws those promises of a rank that it has fulfilled: it holds what ends at this key.
    pub(in crate::fleet) fn settle(&mut self, column: usize, holds: impl Fn(PrefixKey) -> bool) {
        let Some(own) = self.by_column.get(&column) else {
            return;
        };
        let is_fulfilled = |id: &u64| self.all[id].last.is_some_and(&holds);
        let fulfilled: Vec<u64> = own.iter().copied().filter(is_fulfilled).collect();
        for id in fulfilled {
            self.withdraw(id);
        }
    }

    /// Withdraws the oldest promise, and returns its column.
    pub(in crate::fleet) fn withdraw_oldest(&mut self) -> Option<usize> {
        let (&id, open) = self.all.first_key_value()?;
        let column = open.column;
        self.withdraw(id);
        Some(column)
    }

    /// Says whether the windows of a rank are kept everywhere, or only where states are.
    pub(in crate::fleet) fn set_sparse(&mut self, column: usize, is_sparse: bool) {
        if is_sparse {
            self.sparse.insert(column);
        } else {
            self.sparse.remove(&column);
        }
    }

    /// Of some ranks, those whose windows are kept only where states are.
    pub(in crate::fleet) fn sparse_of(&self, lanes: &Lanes) -> u64 {
        let sparse = lanes
            .ranks()
            .filter(|(column, _)| self.sparse.contains(column));
        sparse.fold(0, |word, (_, lane)| word | 1 << lane)
    }

    /// What is promised along a prompt to some ranks; `None` if nothing is.
    pub(in crate::fleet) fn along(
        &self,
        unit: u32,
        keys: impl Iterator<Item = PrefixKey>,
        lanes: &Lanes,
    ) -> Option<Coming> {
        let paths = self.paths.get(&unit)?;
        let keys: Vec<PrefixKey> = keys.collect();
        paths.along(&keys, lanes)
    }

    /// Whether anything is promised to a rank.
    #[must_use]
    pub(in crate::fleet) fn concern(&self, column: usize) -> bool {
        self.by_column.contains_key(&column)
    }

    /// Whether nothing is promised.
    #[must_use]
    pub(in crate::fleet) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number of promises that count.
    #[must_use]
    pub(in crate::fleet) fn len(&self) -> usize {
        self.all.len()
    }

    /// The bytes held, by capacity and estimate.
    #[must_use]
    pub(in crate::fleet) fn bytes(&self) -> usize {
        let paths: usize = self.paths.values().map(Paths::bytes).sum();
        paths + self.all.len() * (size_of::<Open>() + 3 * size_of::<u64>())
    }

    /// Panics unless paths, promises and columns agree.
    pub(in crate::fleet) fn check_integrity(&self) {
        for paths in self.paths.values() {
            paths.check_integrity();
        }
        let mut num_of_columns = 0;
        for (column, own) in &self.by_column {
            assert!(
                !own.is_empty(),
                "column {column} is listed without a promise"
            );
            num_of_columns += own.len();
            for id in own {
                assert_eq!(self.all[id].column, *column, "promise {id}");
            }
        }
        assert_eq!(num_of_columns, self.all.len(), "promises by column");
        for (unit, paths) in &self.paths {
            let own = self.all.values().filter(|open| open.unit == *unit);
            let ends: Vec<(PathId, &[u32], usize)> = own
                .map(|open| (open.end, open.kept.as_slice(), open.column))
                .collect();
            paths.check_counts(&ends);
        }
    }
}
