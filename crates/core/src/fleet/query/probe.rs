//! The third means of placing, and where those undecided hashes may stand that it cannot place.
//!
//! Both happen before any node is looked up, because they can place hashes, which makes nodes.

use hashbrown::HashMap;

use super::search::RequestSearch;
use crate::fleet::effort::Effort;
use crate::fleet::ingest::naming::Naming;
use crate::fleet::keys::prompt::Prompt;
use crate::fleet::keys::step::KeyStep;
use crate::fleet::limbo::{self, Looks, PlacedBy, Possible};
use crate::fleet::pod::engine_chain::EngineHash;
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::nodes::Place;
use crate::fleet::presence::slots::EngineKey;
use crate::fleet::rank::Rank;
use crate::fleet::tier::TierSet;
use crate::hash::{ChainSpec, ExtraKeys, chain_keys};

/// The looks that one answer may take in limbo, shared by the ranks that have undecided hashes.
const LOOKS: u64 = 1 << 15;
/// The smallest share of one rank, however many ranks there are.
const LEAST_LOOKS: u64 = 1 << 8;
/// The further looks that a request is granted per boundary.
const LOOKS_PER_BOUNDARY: u64 = 1;
/// The effort for narrowing that may follow, for one rank, from what a request shows. Each
/// consequence is drawn only once, because the possible places only become fewer: it is no cost of
/// every answer.
const CONSEQUENCES: u64 = 1 << 20;
/// Hashes are not compared with a chain whose hashes cover more tokens after their block than this
/// number and than the block itself: computing it would cost more than the request is long.
const LONG_LOOKAHEAD: u32 = 16;

/// A rank whose undecided hashes were not compared with any chain.
struct Undecided {
    column: usize,
    /// The boundaries where the hashes may stand.
    step: KeyStep,
    /// Whether the places of the hashes make a difference to the answer.
    is_wanted: bool,
}

impl RequestSearch<'_, '_> {
    /// The third means: compares undecided hashes with the request's own engine chains.
    pub(in crate::fleet) fn probe(&mut self) {
        let mut wanted: Vec<(Function, Vec<usize>)> = Vec::new();
        for &column in &self.request.columns {
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
        let path = match self.request.prompt.lora() {
            Some(name) => Some(rank.loras.get(name)?.clone()),
            None => None,
        };
        let lookahead = rank.catalog.lookahead();
        let configured = rank.catalog.configured_hash_block();
        let (hash, unit) = rank.chain.usable(configured)?;
        (unit > 0 && lookahead <= unit.max(LONG_LOOKAHEAD)).then_some(Function {
            hash,
            step: KeyStep {
                unit,
                lookahead,
                page: 0,
            },
            path,
        })
    }

    fn probe_with(&mut self, function: &Function, columns: &[usize]) {
        let Some(keys) = function.chain(&self.request.prompt) else {
            return;
        };
        let by_key: HashMap<EngineKey, usize> =
            keys.iter().enumerate().map(|(i, &key)| (key, i)).collect();
        let at = self.keys(function.step);
        for &column in columns {
            if !self.probed.insert(column) {
                continue;
            }
            let Some(rank) = self.model.ranks[column].as_ref() else {
                continue;
            };
            let matches: Vec<(EngineKey, usize)> = rank
                .limbo
                .slots()
                .map(|slot| rank.slots.key(slot, &self.model.nodes))
                .filter_map(|key| by_key.get(&key).map(|&i| (key, i)))
                .collect();
            if matches.is_empty() {
                continue;
            }
            let salt = self.salt;
            let keys = &self.prompt_keys[at];
            let effort = Effort::of(CONSEQUENCES);
            self.model.with_rank(column, |rank, shared| {
                for (key, i) in matches {
                    let place = Place {
                        boundary: u32::try_from(i + 1).unwrap_or(u32::MAX) * keys.step().unit,
                        prefix: keys.prefixes()[i],
                        ahead: keys.ahead(i).unwrap_or(0),
                        salt,
                    };
                    Naming::place(rank, key, place, shared.nodes);
                }
                rank.solve_for_query(shared, &effort);
            });
            self.effort.note(effort.spent());
        }
    }

    /// Finds where undecided hashes may stand. This can place some of them, so it happens before
    /// any node is looked up.
    pub(in crate::fleet) fn find_possible(&mut self) {
        let undecided = self.undecided();
        // What is undecided of one rank never reduces the looks for another rank below its share.
        let share = (LOOKS / undecided.len().max(1) as u64).max(LEAST_LOOKS);
        for Undecided {
            column,
            step,
            is_wanted,
        } in undecided
        {
            let at = self.keys(step);
            let num_boundaries = self.prompt_keys[at].prefixes().len() as u64;
            let looks = Looks {
                narrowing: Effort::of(2 * share),
                finding: is_wanted.then(|| Effort::of(share + LOOKS_PER_BOUNDARY * num_boundaries)),
            };
            let found = self.possible(column, at, &looks);
            self.possible.insert(column, found);
        }
    }

    /// The requested ranks whose undecided hashes were not compared with any chain.
    fn undecided(&mut self) -> Vec<Undecided> {
        let mut found = Vec::new();
        for class in self.model.classes().iter() {
            for (column, _) in class.lanes.within(&self.asked).ranks() {
                let rank = self.model.ranks[column].as_ref();
                let Some(rank) = rank.filter(|r| !r.limbo.is_empty()) else {
                    continue;
                };
                if self.probed.contains(&column) {
                    continue;
                }
                // Floating tries may hang at any multiple of the hash block, which may be a finer
                // unit than the rule's.
                let unit = class.view.finest_unit(rank.catalog.grain());
                let tiers = [TierSet::GPU, self.request.tiers];
                let is_unbounded =
                    |tiers: &TierSet| rank.may_hold_anything_of(&self.request.prompt, *tiers);
                let is_wanted = !tiers.iter().all(is_unbounded) && !class.view.upper_is_everything;
                found.push(Undecided {
                    column,
                    step: KeyStep {
                        unit,
                        ..self.step_of(class)
                    },
                    is_wanted,
                });
            }
        }
        found
    }

    fn possible(&mut self, column: usize, at: usize, looks: &Looks) -> Possible {
        // Where the salt is not known, neither is anything else.
        let salt = self.salt_on(at).unwrap_or(self.salt);
        let positions = self.prompt_keys[at].positions(&self.request.prompt, salt);
        let Some(rank) = self.model.ranks[column].as_mut() else {
            return Possible::default();
        };
        let mut shared = SharedPresence {
            nodes: &mut self.model.nodes,
            planes: &mut self.model.planes,
        };
        let bit = rank.column.bit;
        let Rank { slots, limbo, .. } = rank;
        let effort = Effort::of(CONSEQUENCES);
        let mut context = Rank::limbo_context(slots, &mut shared, bit, PlacedBy::Join, &effort);
        let found = limbo::possible(limbo, &positions, &mut context, looks);
        if found.everything {
            rank.counts.refuse("answer_cut_short", 1);
        }
        rank.settle_accounts();
        let looked = looks.finding.as_ref().map_or(0, Effort::spent);
        self.effort
            .note(effort.spent() + looks.narrowing.spent() + looked);
        found
    }
}

/// An engine's hash function, applied to one request.
#[derive(Debug, Clone, PartialEq)]
struct Function {
    hash: EngineHash,
    /// Tokens per hash of the chain, and how many tokens after them each hash covers.
    step: KeyStep,
    /// The path of the request's LoRA adapter, which is part of the engine's hash.
    path: Option<String>,
}

impl Function {
    /// The request's chain; `None` if it is not known, as for wide tokens, which the functions do not
    /// take. Undecided hashes may then stand wherever other means let them.
    fn chain(&self, prompt: &Prompt<'_>) -> Option<Vec<EngineKey>> {
        if !prompt.wide.is_empty() {
            return None;
        }
        let extra = ExtraKeys {
            lora: prompt.lora.zip(self.path.as_deref()),
            cache_salt: prompt.salt,
            media: prompt.media,
            ..ExtraKeys::default()
        };
        let spec = ChainSpec::new(self.hash.algo, self.hash.none_hash, self.step.unit)
            .and_then(|spec| spec.with_lookahead(self.step.lookahead).with_extra(extra))
            .ok()?;
        let mut keys = Vec::new();
        chain_keys(&spec, prompt.tokens, &mut keys);
        Some(keys)
    }
}
