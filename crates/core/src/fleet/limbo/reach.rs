//! Where undecided hashes may stand along one request. Upper bounds are made from this.
//!
//! Invariant: a hash that this search does not find cannot be on the request, or the answer says that
//! everything may be. An answer looks at its own boundaries and at a fixed number of further
//! things, because engines decide how much is undecided, and another party sends the request.
//!
//! A *look* is one unit of this work: it examines one hash, span or key ([`Looks`] limits how many
//! there are). The `look_*` functions each go through the undecided hashes of one sort and note the
//! boundaries of the request where each may stand.

use std::ops::RangeInclusive;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::fact::{ClassId, SpanId, TrieId};
use super::possible::{CopyKind, Possible};
use super::span::SparseSpan;
use super::taken::AskedSalt;
use super::{Limbo, LimboContext};
use crate::divisors::gcd;
use crate::fleet::effort::Effort;
use crate::fleet::keys::texts::SaltId;
use crate::fleet::presence::slots::{LimboId, SlotId, Whereabouts};
use crate::prefix::{PrefixKey, Step};

/// The number of entries that can be passed over at the cost of one look.
const ENTRIES_PER_UNIT: usize = 8;
/// The looks that comparing two keys costs: a power of the base is computed for it.
const LOOKS_PER_KEY: usize = 4;

/// The boundaries of one request, as limbo compares its positions with them.
pub(crate) struct PromptPositions<'a> {
    /// Tokens between the keys.
    pub unit: u32,
    /// Key of the empty prefix.
    pub seed: PrefixKey,
    /// Key at `(i + 1) * unit` tokens.
    pub keys: &'a [PrefixKey],
    /// All tokens of the request.
    pub tokens: &'a [u32],
    /// The request's salt.
    pub salt: SaltId,
}

impl PromptPositions<'_> {
    fn key_at(&self, tokens: u32) -> Option<PrefixKey> {
        if tokens == 0 {
            return Some(self.seed);
        }
        if !tokens.is_multiple_of(self.unit) {
            return None;
        }
        self.keys.get((tokens / self.unit - 1) as usize).copied()
    }

    /// Whether the request contains this position.
    fn reaches(&self, step: Step) -> bool {
        self.key_at(step.tokens) == Some(step.local)
    }

    /// The items of a table by prefix key that lie on the request, in the order of the request,
    /// each with its boundary. The function walks over the request or over the table, whichever is
    /// shorter.
    fn meets<T: Copy>(
        &self,
        table: &HashMap<PrefixKey, T>,
        effort: &Effort,
        step_of: impl Fn(T) -> Step,
    ) -> Vec<(usize, T)> {
        if table.len() > self.keys.len() {
            effort.note(self.keys.len() as u64);
            let steps = self.steps().enumerate();
            return steps
                .filter_map(|(at, step)| Some((at, *table.get(&step.local)?)))
                .collect();
        }
        effort.note(table.len() as u64);
        let all = table.values().map(|&item| (step_of(item), item));
        let mut met: Vec<(usize, T)> = all
            .filter(|(step, _)| self.reaches(*step))
            .map(|(step, item)| ((step.tokens / self.unit) as usize, item))
            .collect();
        met.sort_unstable_by_key(|(at, _)| *at);
        met
    }

    /// Every position of the request, including the start.
    fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let start = std::iter::once(&self.seed).chain(self.keys);
        (0u32..).zip(start).map(|(i, &local)| Step {
            tokens: i * self.unit,
            local,
        })
    }
}

/// The number of looks that one answer may spend in the limbo of one rank. A look examines one hash,
/// span or key.
#[derive(Debug)]
pub(crate) struct Looks {
    /// The effort for narrowing spans along the request.
    pub narrowing: Effort,
    /// The effort for finding where hashes may stand; `None` if the answer does not need to know.
    pub finding: Option<Effort>,
}

/// Finds where the hashes may stand along a request, and narrows spans on the way.
pub(in crate::fleet) fn possible(
    limbo: &mut Limbo,
    positions: &PromptPositions<'_>,
    context: &mut LimboContext<'_>,
    looks: &Looks,
) -> Possible {
    narrow_along(limbo, positions, context, &looks.narrowing);
    let Some(effort) = &looks.finding else {
        return Possible::default();
    };
    let mut reach = ReachSearch {
        limbo,
        positions,
        context,
        effort,
        found: Possible::along(positions.unit),
    };
    reach.look_anywhere();
    reach.look_along();
    reach.look_below_tries();
    reach.found.everything = effort.is_exhausted();
    reach.found
}

/// Rechecks the spans that start on the request until nothing narrows any further, because
/// boundaries may have been taken since the spans were last looked at. If there are too many
/// such spans for one answer, they stay as wide as they are.
fn narrow_along(
    limbo: &mut Limbo,
    positions: &PromptPositions<'_>,
    context: &mut LimboContext<'_>,
    effort: &Effort,
) {
    let mut spans: Vec<SpanId> = Vec::new();
    for (_, head) in starts_along(limbo, positions, effort) {
        for id in limbo.spans_beside(head) {
            if !effort.spend(cost_of_narrowing(limbo, id)) {
                return;
            }
            if positions.reaches(limbo.spans[id.0].end(limbo.field, 0)) {
                spans.push(id);
            }
        }
    }
    for id in spans {
        limbo.mark(id);
    }
    limbo.solve(context);
}

/// An estimate of the looks that one recheck of a span takes: for the first and the last block
/// of each of its hashes, it looks at every other span that lists the hash.
fn cost_of_narrowing(limbo: &Limbo, id: SpanId) -> usize {
    let listed = &limbo.spans[id.0].listed;
    let entries = listed.iter().filter_map(|l| l.entry);
    let of_hashes: usize = entries.map(|e| 2 * limbo.entries[e.0].spans.len()).sum();
    listed.len() + of_hashes
}

/// For each start that the request reaches, one of the spans that begin there.
fn starts_along(
    limbo: &Limbo,
    positions: &PromptPositions<'_>,
    effort: &Effort,
) -> Vec<(usize, SpanId)> {
    positions.meets(&limbo.by_start, effort, |id| limbo.spans[id.0].start.step)
}

/// For each position that the request reaches, one of the hashes that stand there.
fn hashes_along(
    limbo: &Limbo,
    positions: &PromptPositions<'_>,
    effort: &Effort,
) -> Vec<(usize, LimboId)> {
    positions.meets(&limbo.by_prefix, effort, |id| {
        limbo.entries[id.0].at.map_or(Step::NONE, |at| at.step)
    })
}

fn admits(limbo: &Limbo, class: ClassId, salt: SaltId) -> bool {
    limbo.label(class).is_none_or(|label| label == salt)
}

/// One search through the limbo of one rank along one request.
struct ReachSearch<'a, 'w> {
    limbo: &'a Limbo,
    positions: &'a PromptPositions<'a>,
    context: &'a LimboContext<'w>,
    effort: &'a Effort,
    found: Possible,
}

/// Blocks of a span that starts at `start`; each `period`th ends at one of the positions.
struct Blocks {
    start: Step,
    period: u32,
    range: RangeInclusive<u32>,
}

/// For each kind of copy and lookahead part, the first block that was not looked at yet.
type SeenBlocks = SmallVec<[((CopyKind, u64), u32); 2]>;

/// The block from which `range` still has to be looked at; the whole range counts as seen
/// afterwards. Within one span, the first blocks of successive ranges only grow.
fn next_unseen(seen: &mut SeenBlocks, like: (CopyKind, u64), range: &RangeInclusive<u32>) -> u32 {
    let (low, next) = (*range.start(), *range.end() + 1);
    if let Some((_, unseen)) = seen.iter_mut().find(|(other, _)| *other == like) {
        let from = low.max(*unseen);
        *unseen = next.max(*unseen);
        return from;
    }
    seen.push((like, next));
    low
}

impl ReachSearch<'_, '_> {
    /// Looks at the hashes about which nothing is known: they may stand at any boundary.
    fn look_anywhere(&mut self) {
        let num_entries = self.limbo.entries.len();
        if !self.effort.spend(num_entries / ENTRIES_PER_UNIT) {
            return;
        }
        for (_, entry) in self.limbo.entries.iter() {
            if entry.at.is_none()
                && entry.spans.is_empty()
                && admits(self.limbo, entry.class, self.positions.salt)
            {
                for kind in self.kinds(entry.slot) {
                    self.found.insert_anywhere(kind);
                }
            }
        }
    }

    /// Looks at the hashes and spans whose own absolute position is on the request.
    fn look_along(&mut self) {
        let limbo = self.limbo;
        for (at, head) in hashes_along(limbo, self.positions, self.effort) {
            for id in limbo.hashes_beside(head) {
                if !self.effort.spend(1) {
                    return;
                }
                let entry = &limbo.entries[id.0];
                if admits(limbo, entry.class, self.positions.salt) {
                    self.show(entry.slot, at);
                }
            }
        }
        for (_, head) in starts_along(limbo, self.positions, self.effort) {
            for span in limbo.spans_beside(head) {
                self.look_in_span(span, limbo.spans[span.0].start.step);
                if self.effort.is_exhausted() {
                    return;
                }
            }
        }
    }

    /// Looks at the floating tries, at every place where the request contains their first token. A
    /// trie floats below some hash, so the very start of the request is left out.
    fn look_below_tries(&mut self) {
        let limbo = self.limbo;
        if limbo.by_first_token.is_empty() {
            return;
        }
        for base in self.positions.steps().skip(1) {
            let Some(token) = self.positions.tokens.get(base.tokens as usize) else {
                return;
            };
            for trie in limbo.tries_from(*token) {
                self.look_below(trie, base);
                if self.effort.is_exhausted() {
                    return;
                }
            }
        }
    }

    /// Looks at the hashes and spans of a floating trie, as if it hung at the boundary `base`.
    fn look_below(&mut self, id: TrieId, base: Step) {
        let limbo = self.limbo;
        for member in limbo.members(id) {
            if !self.effort.spend(1) {
                return;
            }
            let entry = &limbo.entries[member.0];
            if let Some(at) = entry.at.map(|at| limbo.resolve(at))
                && let Some(at) = self.boundary(base, at.step)
                && admits(limbo, entry.class, self.positions.salt)
            {
                self.show(entry.slot, at);
            }
        }
        for span in limbo.spans_in(id) {
            if !self.effort.spend(1) {
                return;
            }
            let start = limbo.resolve(limbo.spans[span.0].start).step;
            let start = limbo.field.then(base, start);
            if self.positions.reaches(start) {
                self.look_in_span(span, start);
            }
        }
    }

    /// Looks at the hashes of a span that starts at `start`, at each block that is left to them.
    ///
    /// First and last blocks only grow along a span. So each block is looked at once for all hashes
    /// that are alike in kind and lookahead, instead of once for each hash.
    fn look_in_span(&mut self, id: SpanId, start: Step) {
        let limbo = self.limbo;
        let span = &limbo.spans[id.0];
        if !admits(limbo, span.class, self.positions.salt)
            || !self.effort.spend(1 + span.listed.len())
        {
            return;
        }
        let (period, reached) = self.reach_of(span, start);
        if reached == 0 {
            return;
        }
        let mut seen = SeenBlocks::new();
        for (slot, low, high) in span.open() {
            let ahead = match self.context.slots.whereabouts(slot) {
                Whereabouts::Limbo(entry) => limbo.entries[entry.0].ahead,
                Whereabouts::Placed(_) => 0,
            };
            for kind in self.kinds(slot) {
                if !self.effort.spend(seen.len() / 8) {
                    return;
                }
                let from = next_unseen(&mut seen, (kind, ahead), &(low..=high));
                let blocks = Blocks {
                    start,
                    period,
                    range: from..=high.min(reached - 1),
                };
                self.look_at(span, slot, kind, &blocks);
            }
        }
    }

    /// Looks at these blocks of a span for one hash, and notes where copies of one kind may stand.
    fn look_at(&mut self, span: &SparseSpan, slot: SlotId, kind: CopyKind, blocks: &Blocks) {
        let (from, last) = (*blocks.range.start(), *blocks.range.end());
        let beside = AskedSalt::beside(self.limbo, span);
        let places = self.found.places(kind);
        // Blocks that end between two positions are skipped.
        let first = (from + 1).next_multiple_of(blocks.period) - 1;
        for block in (first..=last).step_by(blocks.period as usize) {
            if !self.effort.spend(1) {
                return;
            }
            let tokens = blocks.start.tokens + span.end_from_start(block).tokens;
            let boundary = (tokens / self.positions.unit) as usize;
            // If the request reaches a block, the prefix there is the request's own.
            let local = self.positions.keys[boundary - 1];
            let at = Step { tokens, local };
            let is_taken =
                beside.is_some_and(|beside| beside.is_taken(self.limbo, slot, at, self.context));
            if !is_taken {
                places.insert(boundary);
            }
        }
    }

    /// How many blocks of a span lie between two positions, and how many of its first
    /// blocks the request reaches. If the request reaches one block, it also reaches all blocks
    /// before it.
    fn reach_of(&self, span: &SparseSpan, start: Step) -> (u32, u32) {
        let period = self.positions.unit / gcd(self.positions.unit, span.end_from_start(0).tokens);
        let ends = |nth: u32| {
            let end = span.end_from_start(nth * period - 1);
            self.boundary(start, end).is_some()
        };
        let num_blocks = u32::try_from(span.ends.len()).unwrap_or(u32::MAX);
        let (mut reached, mut beyond) = (0, num_blocks / period + 1);
        while beyond - reached > 1 {
            let middle = reached.midpoint(beyond);
            if ends(middle) {
                reached = middle;
            } else {
                beyond = middle;
            }
        }
        (period, reached * period)
    }

    /// The boundary, in units, that lies `step` after `base`, if it is on the request.
    fn boundary(&self, base: Step, step: Step) -> Option<usize> {
        let tokens = base.tokens.checked_add(step.tokens)?;
        // A position after the end of the request, or between its boundaries, is refused before any
        // key is computed.
        let key = self.positions.key_at(tokens)?;
        if !self.effort.spend(LOOKS_PER_KEY) {
            return None;
        }
        (self.limbo.field.then(base, step).local == key)
            .then_some((tokens / self.positions.unit) as usize)
    }

    /// Notes that copies of a hash may stand at a boundary, given in units; nothing stands at 0.
    fn show(&mut self, slot: SlotId, at: usize) {
        if at > 0 {
            for kind in self.kinds(slot) {
                self.found.places(kind).insert(at);
            }
        }
    }

    /// The kinds of a hash's copies, each once. Placeholders may be of both.
    fn kinds(&self, slot: SlotId) -> SmallVec<[CopyKind; 2]> {
        let slots = &self.context.slots;
        let mut kinds: SmallVec<[CopyKind; 2]> = SmallVec::new();
        for channel in slots.held_channels(slot) {
            let key = slots.channels.get(channel).key;
            let may_be_part = key.partial || slots.channels.has_placeholders(key);
            for partial in [key.partial, may_be_part] {
                let kind = CopyKind {
                    group: key.group,
                    partial,
                    tier: key.tier,
                };
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            if !self.effort.spend(kinds.len() / 2) {
                break;
            }
        }
        kinds
    }
}
