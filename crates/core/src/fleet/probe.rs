//! The third means of placing, and where the rest of a rank's undecided hashes may stand.
//!
//! Both come before any node is looked up: they can decide hashes, which makes nodes.

use hashbrown::HashMap;

use super::catalog::gcd;
use super::effort::Effort;
use super::engine_chain::HashFunction;
use super::limbo::{Means, Possible};
use super::naming::Naming;
use super::query::Search;
use super::rank::{Rank, Shared};
use super::slots::EngineKey;
use super::walk::Prompt;
use crate::hash::{ChainSpec, ExtraKeys, chain_keys};
use crate::prefix::Step;

impl Search<'_, '_> {
    /// The third means: compares undecided hashes with the request's own engine chains.
    pub(super) fn probe(&mut self) {
        let mut wanted: Vec<(Function, Vec<usize>)> = Vec::new();
        for &column in &self.ask.columns {
            let Some(function) = self.function_of(column) else {
                continue;
            };
            match wanted.iter_mut().find(|(f, _)| *f == function) {
                Some((_, columns)) => columns.push(column),
                None => wanted.push((function, vec![column])),
            }
        }
        for (function, columns) in wanted {
            self.probe_with(&function, &columns);
        }
    }

    fn function_of(&self, column: usize) -> Option<Function> {
        let rank = self.model.ranks[column].as_ref()?;
        if rank.limbo.is_empty() {
            return None;
        }
        let path = match self.ask.prompt.lora.filter(|l| !l.is_empty()) {
            Some(name) => Some(rank.loras.get(name)?.clone()),
            None => None,
        };
        let lookahead = rank.catalog.lookahead();
        let configured = rank.catalog.configured_hash_block();
        let (hash, unit) = rank.chain.usable(configured)?;
        (unit > 0).then_some(Function {
            hash,
            unit,
            lookahead,
            path,
        })
    }

    fn probe_with(&mut self, function: &Function, columns: &[usize]) {
        let Some(keys) = function.chain(&self.ask.prompt) else {
            return;
        };
        let by_key: HashMap<EngineKey, usize> =
            keys.iter().enumerate().map(|(i, &key)| (key, i)).collect();
        let at = self.ladder(function.unit, function.lookahead);
        for &column in columns {
            self.probed.push(column);
            let Some(rank) = self.model.ranks[column].as_ref() else {
                continue;
            };
            let matches: Vec<(EngineKey, usize)> = rank
                .limbo
                .slots()
                .map(|slot| rank.slots.key(slot))
                .filter_map(|key| by_key.get(&key).map(|&i| (key, i)))
                .collect();
            if matches.is_empty() {
                continue;
            }
            self.salt = self.model.texts.salt(self.ask.prompt.salt);
            let salt = self.salt;
            let ladder = &self.ladders[at];
            self.model.with_rank(column, |rank, shared| {
                for (key, i) in matches {
                    let tokens = u32::try_from(i + 1).unwrap_or(u32::MAX) * ladder.unit();
                    let step = Step {
                        tokens,
                        local: ladder.prefixes()[i],
                    };
                    let ahead = ladder.ahead(i).unwrap_or(0);
                    Naming::place(rank, key, step, salt, ahead);
                }
                rank.solve_for_query(shared, &Effort::unlimited());
            });
        }
    }

    /// Finds where undecided hashes may stand. This can decide some of them, so that it comes
    /// before any node is looked up.
    pub(super) fn find_possible(&mut self) {
        for class in self.model.classes().iter() {
            for column in class.columns() {
                let rank = self.model.ranks[column].as_ref();
                let is_undecided = rank.is_some_and(|r| !r.limbo.is_empty());
                if is_undecided
                    && self.ask.columns.contains(&column)
                    && !self.probed.contains(&column)
                {
                    // Floating tries hang at multiples of the hash block, which may be finer than
                    // what the rule looks at.
                    let grain = rank.map_or(0, |r| r.catalog.grain());
                    let unit = gcd(class.unit(), grain);
                    let at = self.ladder(unit, class.view.topology.hash_lookahead);
                    let possible = self.possible(column, at);
                    self.possible.insert(column, possible);
                }
            }
        }
    }

    fn possible(&mut self, column: usize, at: usize) -> Possible {
        let walk = self.ladders[at].walk(&self.ask.prompt, self.salt);
        let Some(rank) = self.model.ranks[column].as_mut() else {
            return Possible::default();
        };
        let mut shared = Shared {
            nodes: &mut self.model.nodes,
            planes: &mut self.model.planes,
        };
        let bit = rank.column.1;
        let Rank { slots, limbo, .. } = rank;
        let effort = Effort::unlimited();
        let mut world = Rank::world(slots, &mut shared, bit, Means::Join, &effort);
        let found = limbo.possible(&walk, &mut world);
        rank.settle_accounts();
        found
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Function {
    hash: HashFunction,
    unit: u32,
    lookahead: u32,
    /// Path of the request's LoRA adapter: part of the engine's hash.
    path: Option<String>,
}

impl Function {
    fn chain(&self, prompt: &Prompt<'_>) -> Option<Vec<EngineKey>> {
        let extra = ExtraKeys {
            lora: prompt.lora.zip(self.path.as_deref()),
            cache_salt: prompt.salt,
            media: prompt.media,
            ..ExtraKeys::default()
        };
        let spec = ChainSpec::new(self.hash.algo, self.hash.none_hash, self.unit)
            .and_then(|spec| spec.with_lookahead(self.lookahead).with_extra(extra))
            .ok()?;
        let mut keys = Vec::new();
        chain_keys(&spec, prompt.tokens, &mut keys);
        Some(keys)
    }
}
