//! How much memory an index may hold, and what it forgets above its limits.
//!
//! Invariant: above `memory_limit_bytes` the pod that holds the most forgets first. A pod below its share
//! of the limit therefore forgets nothing, whatever other pods do. Memory in use is brought under
//! four fifths of the limit. The last fifth is for spare capacity of tables, and for what was seen
//! before, which is never brought down. This happens in portions of a few milliseconds, and other
//! users of the index get a turn between two portions.

use super::Index;
use crate::fleet::ingest::intake::Intake;
use crate::fleet::model::Model;
use crate::fleet::presence::SharedPresence;
use crate::fleet::rank::{Rank, oldest};
use crate::prefix::plus;

/// The number of ranks that the payloads of one pod may name beyond those registered. With this
/// limit, an engine that invents ranks leaves room for the ranks of other pods.
pub(in crate::fleet) const NAMED_BY_PAYLOADS: usize = 256;

/// The bytes of arenas and buffers that are kept from batch to batch.
pub(in crate::fleet) const INTAKE_KEPT: usize = 16 << 20;

/// Memory is compared with its limit once per this many listed hashes, or once per
/// `BATCHES_A_CHECK` batches, because measuring visits every rank.
const HASHES_A_CHECK: usize = 65_536;
const BATCHES_A_CHECK: usize = 256;

/// The number of names that one portion forgets.
const PORTION: usize = 4096;
/// The number of nodes that one portion releases.
const RELEASED: usize = 1 << 15;

impl Index {
    /// The bytes held, by capacity and estimate.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.models.values().map(Model::bytes).sum::<usize>()
            + self.intake.as_ref().map_or(0, Intake::bytes)
            + self.seen.bytes()
    }

    /// Notes that a batch was applied.
    pub(in crate::fleet) fn note_taken_in(&mut self, stored: u64) {
        let stored = usize::try_from(stored).unwrap_or(HASHES_A_CHECK);
        self.unchecked += stored.min(HASHES_A_CHECK) + HASHES_A_CHECK / BATCHES_A_CHECK;
    }

    /// Makes the next `keep_limits` look at memory, which it otherwise does only from time to time.
    pub fn check_limits(&mut self) {
        self.unchecked = HASHES_A_CHECK;
    }

    /// Brings memory under its limits at once.
    pub fn enforce_limits(&mut self) {
        self.check_limits();
        while !self.keep_limits() {}
    }

    /// Does a portion of the remaining work: releases what was removed and, if it is time to look,
    /// brings memory under its limits. Returns true if nothing is left to do.
    pub fn keep_limits(&mut self) -> bool {
        self.note_gone();
        if (self.models.values_mut()).any(|model| model.nodes.release_some(RELEASED) > 0) {
            return false;
        }
        let limit = self.options.memory_limit_bytes;
        if limit == 0 || self.unchecked < HASHES_A_CHECK {
            return true;
        }
        if self.models.values_mut().any(Model::forget_doomed) {
            return false;
        }
        let idle: usize = self.models.values().map(Model::idle_bytes).sum();
        let (room, beside) = (limit / 5, idle + self.seen.bytes());
        if self.bound_limbos(limit / 2)
            || self.bytes() - beside > limit - room && self.forget_some()
            || beside > room && self.give_back_some()
        {
            return false;
        }
        self.unchecked = 0;
        true
    }

    /// Notes the boundaries that nobody names any longer, and those that were promised.
    pub(in crate::fleet) fn note_gone(&mut self) {
        for model in self.models.values_mut() {
            let term = model.term;
            model.nodes.take_gone(|key| self.seen.note(plus(key, term)));
        }
    }

    /// Keeps the undecided hashes of all ranks together below this many bytes. The rank with the
    /// most undecided hashes forgets them first, and no placed block is forgotten for them. Returns
    /// false if nothing had to be forgotten.
    fn bound_limbos(&mut self, most: usize) -> bool {
        let models = self.models.values();
        if models.map(Model::undecided_bytes).sum::<usize>() <= most {
            return false;
        }
        let most_undecided = |model: &&mut Model| model.most_undecided();
        if let Some(model) = self.models.values_mut().max_by_key(most_undecided) {
            let (_, column) = model.most_undecided();
            model.forget_undecided(column);
        }
        true
    }

    /// Makes the pod that holds the most forget a portion. Returns false if no pod holds anything.
    fn forget_some(&mut self) -> bool {
        let sizes = self.pods.in_order().filter_map(|pod| {
            let model = self.models.get(&pod.spec.model)?;
            let sizes = pod
                .columns
                .values()
                .map(|&column| (model.size(column), column));
            let all: usize = sizes.clone().map(|(size, _)| size.all()).sum();
            let (size, column) = sizes.max_by_key(|(size, _)| size.all())?;
            Some((all, &pod.spec.model, column, size))
        });
        let Some((all, model, column, size)) = sizes.max_by_key(|(all, ..)| *all) else {
            return false;
        };
        let model = model.clone();
        if let Some(model) = self.models.get_mut(&model) {
            model.forget_some(column, size);
        }
        all > 0
    }

    /// Makes the model with the most spare capacity give back a portion. Returns false if there is
    /// none.
    fn give_back_some(&mut self) -> bool {
        let models = self.models.values_mut();
        (models.max_by_key(|model| model.idle_bytes())).is_some_and(Model::give_back_some)
    }
}

/// An upper estimate of a rank's memory, by what would have to be forgotten to free it.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::fleet) struct Size {
    placed: usize,
    undecided: usize,
    channels: usize,
}

/// The largest number of bytes that a name takes, including its boundary; and those that an
/// undecided name takes in addition to its record in limbo.
const BYTES_PER_NAME: usize = 128;
const BYTES_PER_UNDECIDED: usize = 64;
/// Channels count only above this many bytes.
const MANY_CHANNELS: usize = 16 << 10;

impl Size {
    fn all(&self) -> usize {
        self.placed + self.undecided + self.channels
    }
}

impl Model {
    /// Forgets a portion of the slots that stand nowhere. Returns false if none is left.
    fn forget_doomed(&mut self) -> bool {
        let columns = 0..self.ranks.len();
        let forget =
            |rank: &mut Rank, shared: &mut SharedPresence<'_>| rank.forget_doomed(PORTION, shared);
        columns.into_iter().any(|column| {
            let forgotten = self.with_rank(column, forget);
            forgotten.is_some_and(|slots| slots > 0)
        })
    }

    fn undecided_bytes(&self) -> usize {
        let ranks = self.ranks.iter().flatten();
        ranks.map(|rank| rank.limbo.bytes()).sum()
    }

    /// The rank with the most undecided hashes, as their bytes and its column.
    fn most_undecided(&self) -> (usize, usize) {
        let ranks = self.ranks.iter().enumerate();
        let sizes = ranks.filter_map(|(at, rank)| Some((rank.as_ref()?.limbo.bytes(), at)));
        sizes.max().unwrap_or_default()
    }

    fn size(&self, column: usize) -> Size {
        let Some(rank) = &self.ranks[column] else {
            return Size::default();
        };
        let undecided = rank.limbo.num_hashes();
        let (copies, channels) = rank.slots.bytes_beside();
        let silent = rank.silent.as_ref().map_or(0, |silent| silent.bytes());
        let placed = match rank.slots.len() - undecided {
            0 => 0,
            names => names * BYTES_PER_NAME + copies + self.planes.paid_by(column) + silent,
        };
        Size {
            placed,
            undecided: rank.limbo.bytes() + undecided * BYTES_PER_UNDECIDED,
            channels: if channels > MANY_CHANNELS {
                channels
            } else {
                0
            },
        }
    }

    /// Forgets a portion of whatever takes the most memory of a rank.
    fn forget_some(&mut self, column: usize, size: Size) {
        let Size {
            placed,
            undecided,
            channels,
        } = size;
        if undecided > placed.max(channels) {
            self.forget_undecided(column);
            return;
        }
        self.with_rank(column, |rank, shared| {
            if placed >= channels {
                oldest::forget_oldest(rank, PORTION, shared);
            } else {
                rank.evict_everything(shared);
            }
        });
    }

    fn forget_undecided(&mut self, column: usize) {
        self.with_rank(column, |rank, _| {
            rank.counts
                .refuse("forgotten_undecided", u64::from(!rank.limbo.is_empty()));
            rank.evict_limbo();
        });
    }
}
