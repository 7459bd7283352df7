//! Where along one request undecided hashes may stand: the substance of upper bounds.

use super::{Limbo, SpanId, TrieId, World};
use crate::fleet::nodes::SaltId;
use crate::fleet::slots::SlotId;
use crate::prefix::{PrefixKey, Step};

/// One request as positions see it.
pub(crate) struct Walk<'a> {
    /// Tokens between the keys.
    pub unit: u32,
    /// Key of the empty prefix.
    pub seed: PrefixKey,
    /// Key at `(i + 1) * unit` tokens.
    pub keys: &'a [PrefixKey],
    /// All tokens.
    pub tokens: &'a [u32],
    /// The request's salt.
    pub salt: SaltId,
}

impl Walk<'_> {
    fn key_at(&self, tokens: u32) -> Option<PrefixKey> {
        if tokens == 0 {
            return Some(self.seed);
        }
        if !tokens.is_multiple_of(self.unit) {
            return None;
        }
        self.keys.get((tokens / self.unit - 1) as usize).copied()
    }

    /// Whether the request reaches this position.
    fn reaches(&self, step: Step) -> bool {
        self.key_at(step.tokens) == Some(step.local)
    }

    /// Every position of the request, the start included.
    fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let start = std::iter::once(&self.seed).chain(self.keys);
        (0u32..).zip(start).map(|(i, &local)| Step {
            tokens: i * self.unit,
            local,
        })
    }
}

/// Boundaries of a request where undecided hashes may stand.
#[derive(Debug, Default)]
pub(crate) struct Possible {
    /// (hash, boundary in tokens).
    pub at: Vec<(SlotId, u32)>,
    /// Hashes of which nothing is known: they may stand at any boundary.
    pub anywhere: Vec<SlotId>,
}

impl Limbo {
    /// Finds where the hashes may stand along a request; narrows spans on the way.
    pub(crate) fn possible(&mut self, walk: &Walk<'_>, world: &mut World<'_>) -> Possible {
        self.narrow_along(walk, world);
        let mut found = Possible::default();
        for (_, entry) in self.entries.iter() {
            if entry.at.is_none() && entry.spans.is_empty() && self.admits(entry.class, walk.salt) {
                found.anywhere.push(entry.slot);
            }
        }
        for step in walk.steps() {
            for id in self.at_prefix(step.local) {
                let entry = &self.entries[id.0];
                if self.admits(entry.class, walk.salt) {
                    found.at.push((entry.slot, step.tokens));
                }
            }
            for span in self.spans_from(step.local) {
                self.span_possible(span, step, walk, world, &mut found);
            }
        }
        self.tries_possible(walk, world, &mut found);
        found
    }

    /// Rechecks the spans that start on the request until nothing narrows any more: boundaries
    /// may have been taken since they were last looked at.
    fn narrow_along(&mut self, walk: &Walk<'_>, world: &mut World<'_>) {
        let starts = walk.steps().flat_map(|step| self.spans_from(step.local));
        let spans: Vec<SpanId> = starts
            .filter(|id| walk.reaches(self.spans[id.0].end(self.field, 0)))
            .collect();
        for id in spans {
            self.mark(id);
        }
        self.solve(world);
    }

    fn admits(&self, class: super::ClassId, salt: SaltId) -> bool {
        self.label(class).is_none_or(|label| label == salt)
    }

    fn span_possible(
        &self,
        id: SpanId,
        start: Step,
        walk: &Walk<'_>,
        world: &World<'_>,
        found: &mut Possible,
    ) {
        let span = &self.spans[id.0];
        if !self.admits(span.class, walk.salt)
            || !walk.reaches(self.field.then(start, span.end_from_start(0)))
        {
            return;
        }
        for (slot, low, high) in span.open() {
            for block in low..=high {
                let end = self.field.then(start, span.end_from_start(block));
                if walk.reaches(end) && !self.is_taken(span, slot, block, world) {
                    found.at.push((slot, end.tokens));
                }
            }
        }
    }

    /// Floating tries, wherever their first token stands in the request: below some hash, so that
    /// it is never the very first.
    fn tries_possible(&self, walk: &Walk<'_>, world: &World<'_>, found: &mut Possible) {
        if self.by_first_token.is_empty() {
            return;
        }
        for base in walk.steps().skip(1) {
            let Some(token) = walk.tokens.get(base.tokens as usize) else {
                return;
            };
            for trie in self.tries_from(*token) {
                self.trie_possible(trie, base, walk, world, found);
            }
        }
    }

    fn trie_possible(
        &self,
        id: TrieId,
        base: Step,
        walk: &Walk<'_>,
        world: &World<'_>,
        found: &mut Possible,
    ) {
        for member in self.members(id) {
            let entry = &self.entries[member.0];
            if let Some(at) = entry.at.map(|at| self.resolve(at))
                && walk.reaches(self.field.then(base, at.step))
                && self.admits(entry.class, walk.salt)
            {
                found.at.push((entry.slot, base.tokens + at.step.tokens));
            }
        }
        for span in self.spans_in(id) {
            let start = self.resolve(self.spans[span.0].start).step;
            let start = self.field.then(base, start);
            if walk.reaches(start) {
                self.span_possible(span, start, walk, world, found);
            }
        }
    }
}
