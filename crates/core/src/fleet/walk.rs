//! One request along one unit of tokens: its keys, and the nodes that stand at them.

use std::sync::Arc;

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

/// The keys and nodes of a request at multiples of one unit.
#[derive(Debug)]
pub(super) struct Ladder {
    marks: Arc<Marks>,
    unit: Unit,
    lookahead: u32,
    seed: PrefixKey,
    prefixes: Vec<PrefixKey>,
    /// The node at `(i + 1) * unit` tokens, where somebody named one; filled by `look_up`.
    pub nodes: Vec<Option<NodeId>>,
}

impl Ladder {
    /// The keys of a prompt at every `unit` tokens.
    #[must_use]
    pub(super) fn new(marks: &Arc<Marks>, prompt: &Prompt<'_>, unit: u32, lookahead: u32) -> Self {
        let unit = Unit::new(marks.field(), unit);
        let seed = marks.lora_seed(prompt.lora);
        let mut prefixes = Vec::with_capacity(prompt.tokens.len() / unit.tokens as usize);
        if prompt.media.is_empty() {
            unit.keys(seed, prompt.tokens, &mut prefixes);
        } else {
            keys_with_media(marks, &unit, (seed, prompt), &mut prefixes);
        }
        Self {
            marks: Arc::clone(marks),
            unit,
            lookahead,
            seed,
            prefixes,
            nodes: Vec::new(),
        }
    }

    /// Whether it has this unit and lookahead.
    #[must_use]
    pub(super) fn is(&self, unit: u32, lookahead: u32) -> bool {
        self.unit.tokens == unit && self.lookahead == lookahead
    }

    /// Tokens per step.
    #[must_use]
    pub(super) fn unit(&self) -> u32 {
        self.unit.tokens
    }

    /// The key of each boundary, salt and lookahead apart.
    #[must_use]
    pub(super) fn prefixes(&self) -> &[PrefixKey] {
        &self.prefixes
    }

    /// The request as limbo sees it.
    #[must_use]
    pub(super) fn walk<'a>(&'a self, prompt: &Prompt<'a>, salt: SaltId) -> Walk<'a> {
        let (unit, seed, keys) = (&self.unit, self.seed, &self.prefixes);
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
    pub(super) fn ahead(&self, prompt: &Prompt<'_>, i: usize) -> Option<u64> {
        if self.lookahead == 0 {
            return Some(0);
        }
        let end = (i + 1) * self.unit.tokens as usize;
        let tokens = prompt.tokens.get(end..end + self.lookahead as usize)?;
        let end = u32::try_from(end).ok()?;
        let behind = prompt.media.iter().filter_map(|item| {
            let offset = item
                .offset
                .checked_sub(end)
                .filter(|&o| o < self.lookahead)?;
            let extra = self.marks.media(item.id);
            Some(self.marks.field().mark(extra, offset))
        });
        Some(behind.fold(self.marks.lookahead(tokens), plus))
    }

    /// Finds the nodes; what lies behind the last one is cut off.
    pub(super) fn look_up(&mut self, prompt: &Prompt<'_>, salt: SaltId, nodes: &Nodes) {
        let mut hint = None;
        self.nodes.clear();
        self.nodes.reserve(self.prefixes.len());
        let salt = nodes.term(salt);
        for (i, &prefix) in self.prefixes.iter().enumerate() {
            let ahead = self.ahead(prompt, i);
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
    marks: &Marks,
    unit: &Unit,
    (seed, prompt): (PrefixKey, &Prompt<'_>),
    out: &mut Vec<PrefixKey>,
) {
    let mut items = prompt.media.iter().peekable();
    let mut key = seed;
    for (i, chunk) in prompt.tokens.chunks_exact(unit.tokens as usize).enumerate() {
        let mut local = unit.local(chunk);
        let start = u32::try_from(i)
            .unwrap_or(u32::MAX)
            .saturating_mul(unit.tokens);
        while let Some(item) = items.next_if(|item| item.offset < start + unit.tokens) {
            let after = unit.tokens - 1 - item.offset.saturating_sub(start);
            local = plus(local, unit.field.mark(marks.media(item.id), after));
        }
        key = unit.advance(key, local);
        out.push(key);
    }
}
