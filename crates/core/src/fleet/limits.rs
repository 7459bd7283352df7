//! How much an index holds, and what it forgets above its limits.
//!
//! Law: above `memory_limit_bytes` the pod that holds most forgets first, so that a pod below its
//! share of the limit forgets nothing, whatever others do. What is in use comes under four fifths of
//! the limit, and what tables keep ready for more under the last fifth. It is done in portions of a
//! few milliseconds, between which whoever shares the index gets a turn.

use super::index::Index;
use super::intake::Intake;
use super::model::Model;
use super::rank::{Rank, Shared};

/// Ranks that the payloads of one pod may name beyond those registered: an engine that makes ranks
/// up leaves room for those of other pods.
pub(super) const NAMED_BY_PAYLOADS: usize = 256;

/// Arenas and buffers that are kept from batch to batch.
pub(super) const INTAKE_KEPT: usize = 16 << 20;

/// Memory is compared with its limit once in so many listed hashes, or in so many batches: measuring
/// walks every rank.
const HASHES_A_CHECK: usize = 65_536;
const BATCHES_A_CHECK: usize = 256;

/// Names that one portion forgets.
const PORTION: usize = 4096;
/// Nodes that one portion releases.
const RELEASED: usize = 1 << 15;

impl Index {
    /// Bytes held, by capacity and estimate.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.models.values().map(Model::bytes).sum::<usize>()
            + self.intake.as_ref().map_or(0, Intake::bytes)
    }

    /// A batch was taken in.
    pub(super) fn note_taken_in(&mut self, stored: u64) {
        let stored = usize::try_from(stored).unwrap_or(HASHES_A_CHECK);
        self.unchecked += stored.min(HASHES_A_CHECK) + HASHES_A_CHECK / BATCHES_A_CHECK;
    }

    /// It is time for `keep_limits` to look at memory (it comes by itself from time to time).
    pub fn check_limits(&mut self) {
        self.unchecked = HASHES_A_CHECK;
    }

    /// Brings memory under its limits now.
    pub fn enforce_limits(&mut self) {
        self.check_limits();
        while !self.keep_limits() {}
    }

    /// Does a portion of what is left to do: what was removed is released, and memory brought under its
    /// limits where it is time to look. True: nothing is left.
    pub fn keep_limits(&mut self) -> bool {
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
        let room = limit / 5;
        if self.bound_limbos(limit / 2)
            || self.bytes() - idle > limit - room && self.forget_some()
            || idle > room && self.give_back_some()
        {
            return false;
        }
        self.unchecked = 0;
        true
    }

    /// What is undecided of all ranks together takes so many bytes at most: the rank that has most of
    /// it forgets it first, and nobody's placed blocks go for it.
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

    /// The pod that holds most forgets a portion of it. False: nobody holds anything.
    fn forget_some(&mut self) -> bool {
        let sizes = self.pods.values().filter_map(|pod| {
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

    /// The model whose tables keep most ready gives a portion of it back. False: there is nothing to
    /// give back.
    fn give_back_some(&mut self) -> bool {
        let models = self.models.values_mut();
        (models.max_by_key(|model| model.idle_bytes())).is_some_and(Model::give_back_some)
    }
}

/// What a rank takes up at most, by what would have to go for it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    placed: usize,
    undecided: usize,
    channels: usize,
}

/// What a name takes at most, that of its boundary included, and an undecided name beside what limbo
/// takes for it.
const BYTES_PER_NAME: usize = 128;
const BYTES_PER_UNDECIDED: usize = 64;
/// Channels that are worth a thought.
const MANY_CHANNELS: usize = 16 << 10;

impl Size {
    fn all(&self) -> usize {
        self.placed + self.undecided + self.channels
    }
}

impl Model {
    /// Forgets a portion of what stands nowhere. False: nothing is left.
    fn forget_doomed(&mut self) -> bool {
        let columns = 0..self.ranks.len();
        let forget = |rank: &mut Rank, shared: &mut Shared<'_>| rank.forget_doomed(PORTION, shared);
        columns.into_iter().any(|column| {
            let forgotten = self.with_rank(column, forget);
            forgotten.is_some_and(|slots| slots > 0)
        })
    }

    fn undecided_bytes(&self) -> usize {
        let ranks = self.ranks.iter().flatten();
        ranks.map(|rank| rank.limbo.bytes()).sum()
    }

    /// The rank of which most is undecided: how many bytes, and its column.
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
        let placed = match rank.slots.len() - undecided {
            0 => 0,
            names => names * BYTES_PER_NAME + copies + self.planes.paid_by(column),
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

    /// Forgets a portion of what takes most of a rank.
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
                rank.forget_oldest(PORTION, shared);
            } else {
                rank.evict_everything(shared);
            }
        });
    }

    fn forget_undecided(&mut self, column: usize) {
        self.with_rank(column, |rank, _| {
            rank.refuse("forgotten_undecided", u64::from(!rank.limbo.is_empty()));
            rank.evict_limbo();
        });
    }
}
