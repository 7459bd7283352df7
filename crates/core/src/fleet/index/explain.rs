//! Why an answer is what it is: what each group holds along the request, and what it accepts.
//!
//! The facts from the index are noted while the answer is made: a [`Undrawn`] per rank, with the
//! words that the answer was read from. The strips are drawn from them afterwards, without the
//! index. However long the request, an explanation therefore holds the index no longer than a score
//! does.

use super::{Index, unknown_model};
use crate::error::{Error, Result};
use crate::fleet::query::answer::Answer;
use crate::fleet::query::request::{ScoreRequest, Strategy};
use crate::fleet::query::search::RequestSearch;
use crate::fleet::query::words::{ClassPresence, RankPresence};
use crate::fleet::rank::Rank;
use crate::rule::{self, Query, Unknown};
use crate::spec::GroupSpec;

/// One group of one rank along a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStrip {
    /// The group's index on the wire; `None` for events without an index.
    pub group: Option<u16>,
    /// The group's kind, block size and window.
    pub spec: GroupSpec,
    /// For each `j`, whether the block that ends at `(j + 1) * block_size` is held.
    pub held: Vec<bool>,
    /// The boundaries above 0, in tokens, that the group accepts; `None` if it never restricts.
    pub accepted: Option<Vec<u32>>,
}

/// What an explanation shows of one rank: a row of blocks for each group, in the engine's order.
pub type Strip = Vec<GroupStrip>;

/// One rank of an explanation that is not drawn yet.
#[derive(Debug, Clone, Default)]
pub(in crate::fleet) struct Undrawn {
    /// Why the answer is a bound, if it is.
    pub(in crate::fleet) reason: String,
    /// What the rank holds; `None` for a rank without any known group.
    pub(in crate::fleet) seen: Option<RankPresence>,
}

/// The largest number of blocks that one explanation shows, over all groups of all ranks. It bounds
/// the memory (some 50 bytes per block in Python) before anything is drawn.
const MAX_BLOCKS: u64 = 4 << 20;

/// An answer, and everything needed to explain it.
#[derive(Debug)]
pub struct Explained {
    /// The answer that is explained.
    pub answer: Answer,
    pub(in crate::fleet) num_tokens: u32,
    /// The drafts, in the order of the answer's rows.
    pub(in crate::fleet) drafts: Vec<Undrawn>,
}

impl Explained {
    /// Why the answer of each rank is a bound, if it is, in the order of the rows. Empty where only
    /// hashes without a place can be the reason.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.drafts.iter().map(|draft| draft.reason.as_str())
    }

    /// The strips of every rank, in the order of the rows. This looks at each block of each group
    /// of each rank, and does not need the index.
    #[must_use]
    pub fn strips(&self) -> Vec<Strip> {
        let mut scratch = rule::Scratch::default();
        let drafts = self.drafts.iter();
        drafts
            .map(|draft| match &draft.seen {
                Some(seen) => (seen.class).strip(seen.lane, self.num_tokens, &mut scratch),
                None => Vec::new(),
            })
            .collect()
    }
}

impl Index {
    /// What every rank holds along the request, group by group, and what each group accepts.
    ///
    /// The explanation is of the exact answer, whatever strategy the request names.
    ///
    /// # Errors
    /// The same as `score` with the exact strategy, and `InvalidValue` for more blocks than an
    /// explanation shows.
    pub fn explain(&mut self, request: &ScoreRequest<'_>) -> Result<Explained> {
        let request = &ScoreRequest {
            strategy: Strategy::Exact,
            ..request.clone()
        };
        let roster = self.roster(request)?;
        let resolved = self.resolve(request, &roster);
        let model = self
            .models
            .get_mut(request.model)
            .ok_or_else(|| unknown_model(request))?;
        let mut search = RequestSearch::new(model, &resolved).keeping_presence();
        let rows = search.rows(&mut self.scratch);
        let all_seen = search.seen.take().unwrap_or_default();
        let effort = search.effort.spent();
        let draft = |&column: &usize| {
            let rank = model.ranks[column].as_ref();
            let seen = all_seen.get(&column).cloned();
            let own = rank.map_or_else(String::new, Rank::reason_of_bound);
            Undrawn {
                reason: match &seen {
                    Some(seen) if own.is_empty() => seen.reason.to_owned(),
                    Some(_) | None => own,
                },
                seen,
            }
        };
        let explained = Explained {
            answer: Answer {
                roster,
                rows,
                effort,
            },
            num_tokens: u32::try_from(request.prompt.tokens.len()).unwrap_or(u32::MAX),
            drafts: resolved.columns.iter().map(draft).collect(),
        };
        explained.check_size()?;
        Ok(explained)
    }
}

impl Explained {
    fn check_size(&self) -> Result<()> {
        let seen = self.drafts.iter().filter_map(|draft| draft.seen.as_ref());
        let groups = seen.flat_map(|seen| &seen.class.view.topology.groups);
        let blocks: u64 = groups
            .map(|group| u64::from(self.num_tokens / group.block_size))
            .sum();
        if blocks > MAX_BLOCKS {
            let text = format!(
                "the explanation would show {blocks} blocks over all groups of all pods; at most \
                 {MAX_BLOCKS}: name fewer pods, or explain a shorter prompt"
            );
            return Err(Error::InvalidValue(text));
        }
        Ok(())
    }
}

impl ClassPresence {
    fn strip(&self, bit: u32, num_tokens: u32, scratch: &mut rule::Scratch) -> Strip {
        let query = Query {
            num_tokens,
            mask: 1 << bit,
            unknown: Unknown::Strict,
        };
        let topology = &self.view.topology;
        let groups = topology.groups.iter().enumerate();
        groups
            .map(|(group, &spec)| GroupStrip {
                group: Rank::group_name(self.view.groups[group]),
                spec,
                held: self.held(group, spec.block_size, bit, num_tokens),
                accepted: self.words.with_held(self.unit, |held| {
                    rule::accepted(topology, held, query, group, bit, scratch)
                }),
            })
            .collect()
    }

    fn held(&self, group: usize, block_size: u32, bit: u32, num_tokens: u32) -> Vec<bool> {
        let (whole, _) = self.words.of(group);
        let step = (block_size / self.unit) as usize;
        let is_held = |j: usize| {
            let word = whole.get((j + 1) * step - 1);
            word.is_some_and(|word| word & (1 << bit) != 0)
        };
        (0..(num_tokens / block_size) as usize)
            .map(is_held)
            .collect()
    }
}
