//! One request along one unit of tokens: its keys, and the nodes that stand at them.

use super::ahead::aheads;
use super::effort::Effort;
use super::limbo::Walk;
use super::nodes::{NodeId, Nodes, SaltId};
use super::texts::Marks;
use crate::hash::MediaItem;
use crate::prefix::{PrefixKey, Unit, plus};

/// A request as the index sees it.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// All tokens.
    pub tokens: &'a [u32],
    /// LoRA adapter.
    pub lora: Option<&'a str>,
    /// Cache salt.
    pub salt: Option<&'a str>,
    /// Multimodal items in the order of their offsets.
    pub media: &'a [MediaItem<'a>],
}

impl Prompt<'_> {
    /// The most tokens that anybody can reuse: one is left to compute.
    #[must_use]
    pub fn last_token(&self) -> u32 {
        u32::try_from(self.tokens.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// A multimodal item as keys see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct MediaMark {
    /// Its first token.
    pub(super) offset: u32,
    /// What it adds there.
    pub(super) extra: u64,
}

impl MediaMark {
    /// The items of a request, in its order.
    #[must_use]
    pub(super) fn of(marks: &Marks, prompt: &Prompt<'_>) -> Vec<Self> {
        let items = prompt.media.iter();
        items
            .map(|item| Self {
                offset: item.offset,
                extra: marks.media(item.id),
            })
            .collect()
    }
}

/// The keys and nodes of a request at multiples of one unit.
#[derive(Debug)]
pub(super) struct Ladder {
    unit: u32,
    lookahead: u32,
    seed: PrefixKey,
    prefixes: Vec<PrefixKey>,
    /// What lies after each boundary; of no use without a lookahead.
    aheads: Vec<u64>,
    /// The node at `(i + 1) * unit` tokens, where somebody named one; filled by `look_up`.
    pub nodes: Vec<Option<NodeId>>,
    is_looked_up: bool,
}

impl Ladder {
    /// The keys of a prompt, whose media are these, at every `unit` tokens.
    #[must_use]
    pub(super) fn new(
        marks: &Marks,
        prompt: &Prompt<'_>,
        media: &[MediaMark],
        (unit, lookahead): (u32, u32),
        effort: &Effort,
    ) -> Self {
        let mut ladder = Self {
            unit,
            lookahead,
            seed: marks.lora_seed(prompt.lora),
            prefixes: Vec::new(),
            aheads: Vec::new(),
            nodes: Vec::new(),
            is_looked_up: false,
        };
        // A step that the request does not reach needs no preparation: whatever an event or an
        // operator says of block sizes costs no more than the request's length.
        if unit as usize <= prompt.tokens.len() {
            ladder.fill(marks, (prompt.tokens, media), effort);
        }
        ladder
    }

    fn fill(&mut self, marks: &Marks, (tokens, media): (&[u32], &[MediaMark]), effort: &Effort) {
        let unit = Unit::new(marks.field(), self.unit);
        self.prefixes.reserve(tokens.len() / self.unit as usize);
        if media.is_empty() {
            unit.keys(self.seed, tokens, &mut self.prefixes);
        } else {
            keys_with_media(&unit, self.seed, (tokens, media), &mut self.prefixes);
        }
        if self.lookahead > 0 {
            let along = (&unit, self.lookahead);
            self.aheads = aheads(marks, (tokens, media), along, effort);
        }
    }

    /// Whether it has this unit and lookahead.
    #[must_use]
    pub(super) fn is(&self, unit: u32, lookahead: u32) -> bool {
        self.unit == unit && self.lookahead == lookahead
    }

    /// Tokens per step.
    #[must_use]
    pub(super) fn unit(&self) -> u32 {
        self.unit
    }

    /// The key of each boundary, salt and lookahead apart.
    #[must_use]
    pub(super) fn prefixes(&self) -> &[PrefixKey] {
        &self.prefixes
    }

    /// The request as limbo sees it.
    #[must_use]
    pub(super) fn walk<'a>(&'a self, prompt: &Prompt<'a>, salt: SaltId) -> Walk<'a> {
        let (unit, seed, keys) = (self.unit, self.seed, &self.prefixes);
        Walk {
            unit,
            seed,
            keys,
            tokens: prompt.tokens,
            salt,
        }
    }

    /// What the lookahead tokens behind boundary `i`, and media that begin there, add to its
    /// identity; `None` where the request ends before them, so that no hash of it exists.
    #[must_use]
    pub(super) fn ahead(&self, i: usize) -> Option<u64> {
        if self.lookahead == 0 {
            return Some(0);
        }
        self.aheads.get(i).copied()
    }

    /// Whether the nodes were found, if there are any.
    #[must_use]
    pub(super) fn is_looked_up(&self) -> bool {
        self.is_looked_up
    }

    /// Finds the nodes; what lies behind the last one is cut off.
    pub(super) fn look_up(&mut self, salt: SaltId, nodes: &Nodes) {
        let mut hint = None;
        self.is_looked_up = true;
        self.nodes.clear();
        self.nodes.reserve(self.prefixes.len());
        let salt = nodes.term(salt);
        for (i, &prefix) in self.prefixes.iter().enumerate() {
            let ahead = self.ahead(i);
            let node = ahead.and_then(|ahead| nodes.find(plus(plus(prefix, ahead), salt), hint));
            hint = node.or(hint);
            self.nodes.push(node);
        }
        let end = self
            .nodes
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |last| last + 1);
        self.nodes.truncate(end);
    }
}

fn keys_with_media(
    unit: &Unit,
    seed: PrefixKey,
    (tokens, media): (&[u32], &[MediaMark]),
    out: &mut Vec<PrefixKey>,
) {
    let mut items = media.iter().peekable();
    let mut key = seed;
    for (i, chunk) in tokens.chunks_exact(unit.tokens as usize).enumerate() {
        let mut local = unit.local(chunk);
        let start = u32::try_from(i)
            .unwrap_or(u32::MAX)
            .saturating_mul(unit.tokens);
        while let Some(item) = items.next_if(|item| item.offset < start + unit.tokens) {
            let after = unit.tokens - 1 - item.offset.saturating_sub(start);
            local = plus(local, unit.field.mark(item.extra, after));
        }
        key = unit.advance(key, local);
        out.push(key);
    }
}
