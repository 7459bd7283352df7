//! Which boundaries of a request become checkpoints, under retention by value.

use smallvec::SmallVec;

use super::allocate::Store;
use super::checkpoints::{Checkpoints, Origin};
use super::group::Kind;
use super::request::Request;
use crate::blocks::{BlockId, Pool};

impl Store {
    /// A request resumes at a boundary, having reused so many tokens.
    pub(super) fn note_resume(&mut self, request: &mut Request, num_tokens: u32) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let boundary = num_tokens + self.config.topology.replay_tokens;
        request.ending = checkpoints.resume(&mut self.pool, request, boundary);
        request.num_checked = boundary;
    }

    /// More of a request is registered: up to `num_tokens`.
    pub(super) fn note_progress(&mut self, request: &mut Request, num_tokens: u32) {
        if !self
            .checkpoints
            .as_ref()
            .is_some_and(Checkpoints::are_sparse)
        {
            return;
        }
        let (from, to) = (request.num_checked, self.settled(num_tokens));
        if to <= from {
            return;
        }
        request.num_checked = to;
        for (end, origin) in self.expected(request, (from, to)) {
            self.keep(request, end, origin);
        }
    }

    /// A request is about to give its blocks back: its last boundary is a checkpoint.
    pub(super) fn note_end(&mut self, request: &Request) {
        let end = self.settled(request.num_computed_tokens.min(request.num_tokens()));
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.end(&mut self.pool, request, end);
        }
    }

    fn keep(&mut self, request: &Request, end: u32, origin: Origin) {
        if let Some(checkpoints) = &mut self.checkpoints
            && end > 0
        {
            checkpoints.keep(&mut self.pool, request, end, origin);
        }
    }

    /// The last boundary of so many tokens at which a hit can be, now that they are registered.
    fn settled(&self, num_tokens: u32) -> u32 {
        let topology = &self.config.topology;
        let late = topology
            .hash_lookahead
            .max(self.config.num_reprefillable_tokens);
        let unit = self.config.hit_alignment();
        let dropped = if self.has_eagle() { unit } else { 0 };
        (num_tokens.saturating_sub(late) / unit * unit).saturating_sub(dropped)
    }

    /// Boundaries behind `from` and up to `to` at which requests are expected to resume, in order.
    fn expected(&self, request: &Request, (from, to): (u32, u32)) -> SmallVec<[(u32, Origin); 8]> {
        let unit = self.config.hit_alignment();
        let interval = self.checkpoints.as_ref().map_or(0, Checkpoints::interval);
        let multiples = (from / interval.max(1) + 1..).map(|count| count.saturating_mul(interval));
        let multiples = multiples.take_while(|&end| interval > 0 && end <= to);
        let others = self.boundaries(request).into_iter().map(|boundary| {
            let is_junction = boundary == request.junction;
            let origin = if is_junction {
                Origin::Junction
            } else {
                Origin::End
            };
            (boundary / unit * unit, origin)
        });
        let all = multiples.map(|end| (end, Origin::Interval)).chain(others);
        let mut ends: SmallVec<_> = all.filter(|&(end, _)| from < end && end <= to).collect();
        ends.sort_by_key(|&(end, _)| end);
        ends
    }

    /// A block is about to lose a hash: what needs it is no checkpoint any more.
    pub(super) fn drop_checkpoints_of(&mut self, block: BlockId) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.forget(&mut self.pool, block);
        }
    }

    pub(super) fn forget_checkpoints(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.clear(&mut self.pool);
        }
    }

    /// Gives all blocks of a request back, tails first. Blocks that lead to no checkpoint are worth
    /// nothing: they are evicted before those which some boundary can still be resumed with.
    pub(super) fn give_back(&mut self, request: &mut Request) {
        self.forget_kept_states(request.id);
        self.note_end(request);
        let mut tables = request.clear_tables();
        for (group, table) in self.groups.iter().zip(&mut tables) {
            if self.checkpoints.is_some() && group.kind == Kind::Full {
                free_worthless(&mut self.pool, table);
            }
        }
        for blocks in tables {
            self.pool.free(blocks.into_iter().rev());
        }
    }
}

/// Frees the blocks at the end of a full group's table that no checkpoint needs.
fn free_worthless(pool: &mut Pool, table: &mut Vec<BlockId>) {
    let is_worthless = |block: &&BlockId| !pool.is_kept(**block);
    let count = table.iter().rev().take_while(is_worthless).count();
    for block in table.split_off(table.len() - count) {
        pool.free([block]);
        pool.expedite(block);
    }
}
