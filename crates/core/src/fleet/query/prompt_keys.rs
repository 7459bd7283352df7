//! One request along one unit of tokens: its keys, and the nodes with those keys.
//!
//! Keys do not depend on what the index holds, so they outlive an answer; nodes do not.

use crate::fleet::effort::Effort;
use crate::fleet::keys::ahead::Lookahead;
use crate::fleet::keys::prompt::{MediaMark, Prompt};
use crate::fleet::keys::step::KeyStep;
use crate::fleet::keys::texts::Marks;
use crate::fleet::keys::texts::SaltId;
use crate::fleet::limbo::PromptPositions;
use crate::fleet::presence::nodes::{NodeId, Nodes};
use crate::fleet::presence::planes::NodeRun;
use crate::prefix::{PrefixKey, Unit, plus};

/// The keys that an index made to answer a request, for what else is said about it there.
#[derive(Debug, Default)]
pub struct RequestKeys(pub(in crate::fleet) Vec<PromptKeys>);

/// The boundaries of a request at multiples of one unit. Each has the index's own key of the
/// prefix there, and the node that is found under this key.
#[derive(Debug)]
pub(in crate::fleet) struct PromptKeys {
    step: KeyStep,
    seed: PrefixKey,
    prefixes: Vec<PrefixKey>,
    /// The lookahead part at each boundary; not used without a lookahead.
    aheads: Vec<u64>,
    /// The node at `(i + 1) * unit` tokens, if some rank named one. `look_up` fills this in.
    pub nodes: Vec<Option<NodeId>>,
    /// The same nodes, as the planes are read along them.
    pub runs: Vec<NodeRun>,
    is_looked_up: bool,
}

impl PromptKeys {
    /// The keys of a prompt with these media, at every `unit` tokens.
    #[must_use]
    pub(in crate::fleet) fn new(
        marks: &Marks,
        prompt: &Prompt<'_>,
        media: &[MediaMark],
        step: KeyStep,
        effort: &Effort,
    ) -> Self {
        let mut keys = Self {
            step,
            seed: marks.lora_seed(prompt.lora),
            prefixes: Vec::new(),
            aheads: Vec::new(),
            nodes: Vec::new(),
            runs: Vec::new(),
            is_looked_up: false,
        };
        // No step longer than the request is prepared. An absurd block size, whether an event or an
        // operator gave it, then costs no more than the request's length.
        if step.unit as usize <= prompt.tokens.len() {
            keys.fill(marks, prompt, media, effort);
        }
        keys
    }

    fn fill(&mut self, marks: &Marks, prompt: &Prompt<'_>, media: &[MediaMark], effort: &Effort) {
        let tokens = prompt.tokens;
        let unit = Unit::new(marks.field(), self.step.unit);
        self.prefixes
            .reserve(tokens.len() / self.step.unit as usize);
        if media.is_empty() {
            unit.keys(self.seed, tokens, &mut self.prefixes);
        } else {
            keys_with_media(&unit, self.seed, tokens, media, &mut self.prefixes);
        }
        if self.step.lookahead > 0 {
            let lookahead = Lookahead {
                marks,
                unit: &unit,
                num_tokens: self.step.lookahead,
                effort,
            };
            self.aheads = lookahead.aheads(tokens, media);
        }
    }

    /// The unit and the lookahead.
    #[must_use]
    pub(in crate::fleet) fn step(&self) -> KeyStep {
        self.step
    }

    /// The key of each boundary, without salt and lookahead.
    #[must_use]
    pub(in crate::fleet) fn prefixes(&self) -> &[PrefixKey] {
        &self.prefixes
    }

    /// The request in the form that limbo takes.
    #[must_use]
    pub(in crate::fleet) fn positions<'a>(
        &'a self,
        prompt: &Prompt<'a>,
        salt: SaltId,
    ) -> PromptPositions<'a> {
        let (unit, seed, keys) = (self.step.unit, self.seed, &self.prefixes);
        PromptPositions {
            unit,
            seed,
            keys,
            tokens: prompt.tokens,
            salt,
        }
    }

    /// What the lookahead tokens after boundary `i`, and the media that begin there, add to its
    /// identity. `None` if the request ends before them, because then no hash covers them.
    #[must_use]
    pub(in crate::fleet) fn ahead(&self, i: usize) -> Option<u64> {
        if self.step.lookahead == 0 {
            return Some(0);
        }
        self.aheads.get(i).copied()
    }

    /// The keys of the nodes, under the term of a salt: one for each boundary of which the identity
    /// is known.
    pub(in crate::fleet) fn node_keys(
        &self,
        salt: PrefixKey,
    ) -> impl Iterator<Item = PrefixKey> + '_ {
        let prefixes = self.prefixes.iter().enumerate();
        prefixes.map_while(move |(i, prefix)| Some(plus(plus(*prefix, self.ahead(i)?), salt)))
    }

    /// Whether the nodes have been looked up.
    #[must_use]
    pub(in crate::fleet) fn is_looked_up(&self) -> bool {
        self.is_looked_up
    }

    /// Looks up the nodes. The list ends with the last node that was found.
    pub(in crate::fleet) fn look_up(&mut self, salt: SaltId, nodes: &Nodes) {
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
        self.runs = NodeRun::of(&self.nodes);
    }
}

fn keys_with_media(
    unit: &Unit,
    seed: PrefixKey,
    tokens: &[u32],
    media: &[MediaMark],
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
