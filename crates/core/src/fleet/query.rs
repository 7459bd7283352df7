//! From a request to what every rank can reuse.
//!
//! The life of a request: our own keys at every unit, once; the engine's chain, only where some
//! rank has undecided hashes and a known function; the nodes at the keys; then one evaluation of
//! the rule per class of ranks and set of tiers, 64 ranks at a time. Ranks whose answer is not
//! certain get an upper bound of their own.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::answer::{Bounds, Row, TierSet, Weights};
use super::effort::Effort;
use super::explain::Sight;
use super::limbo::Possible;
use super::model::{Class, Model};
use super::nodes::SaltId;
use super::planes::PlaneKey;
use super::rank::{Rank, State};
use super::walk::{Ladder, MediaMark, Prompt};
use super::weight::score;
use super::weighted::{self, Canonical};
use crate::rule::{self, Held, Query, Unknown};

/// What a request asks for.
#[derive(Debug, Clone)]
pub(super) struct Ask<'a> {
    /// The request.
    pub(super) prompt: Prompt<'a>,
    /// Columns to answer for, in the order of the answer.
    pub(super) columns: Vec<usize>,
    /// Tiers whose copies count for the main bounds.
    pub(super) tiers: TierSet,
    /// Only full-attention groups are evaluated (a shortcut that `replay --model full-only` shows).
    pub(super) only_full: bool,
    /// Keep what was matched when memory is short.
    pub(super) touch: bool,
    /// What a token is worth on each tier.
    pub(super) weights: Weights,
    /// Score by weighted canonical blocks instead of by reusable tokens.
    pub(super) weighted: Option<Canonical>,
}

/// Words of one class and one set of tiers, per group of the topology.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) whole: Vec<Vec<u64>>,
    pub(super) partial: Vec<Vec<u64>>,
}

impl Words {
    /// Evaluates something of the rule on these words.
    pub(super) fn with_held<T>(&self, unit: u32, evaluate: impl FnOnce(&Held<'_>) -> T) -> T {
        let whole: Vec<&[u64]> = self.whole.iter().map(Vec::as_slice).collect();
        let partial: Vec<&[u64]> = self.partial.iter().map(Vec::as_slice).collect();
        evaluate(&Held {
            unit,
            whole: &whole,
            partial: &partial,
        })
    }

    /// The words of one group: whole blocks, and entries within blocks.
    #[must_use]
    pub(super) fn of(&self, group: usize) -> (&[u64], &[u64]) {
        (
            &self.whole[group],
            self.partial.get(group).map_or(&[], Vec::as_slice),
        )
    }
}

/// One request being answered.
pub(super) struct Search<'a, 'p> {
    /// The model.
    pub(super) model: &'a mut Model,
    /// The request.
    pub(super) ask: &'a Ask<'p>,
    pub(super) asked: Arc<Asked>,
    /// The request's media.
    media: Vec<MediaMark>,
    pub(super) ladders: Vec<Ladder>,
    pub(super) salt: SaltId,
    /// Ranks whose undecided hashes were all compared with the request's own engine chain.
    pub(super) probed: HashSet<usize>,
    /// Where the undecided hashes of the other ranks may stand.
    pub(super) possible: HashMap<usize, Possible>,
    /// What was done for this answer beyond the rule.
    pub(super) effort: Effort,
    /// What each column was seen with, and its bit there; kept where somebody will explain it.
    pub(super) sights: Option<HashMap<usize, (Arc<Sight>, u32)>>,
}

impl<'a, 'p> Search<'a, 'p> {
    /// Prepares an answer: keys, the engines' chains where needed, nodes.
    pub(super) fn new(model: &'a mut Model, ask: &'a Ask<'p>) -> Self {
        let salt = model.marks.salt(ask.prompt.salt);
        let media = MediaMark::of(&model.marks, &ask.prompt);
        let asked = Arc::new(Asked::new(&ask.columns, model.ranks.len()));
        let mut search = Self {
            model,
            ask,
            asked,
            media,
            ladders: Vec::new(),
            salt,
            probed: HashSet::new(),
            possible: HashMap::new(),
            effort: Effort::default(),
            sights: None,
        };
        search.probe();
        search.find_possible();
        search
    }

    /// Keeps the words that the answer is read from.
    pub(super) fn keeping_sights(self) -> Self {
        Self {
            sights: Some(HashMap::new()),
            ..self
        }
    }

    /// The ladder of one unit, made once per request.
    pub(super) fn ladder(&mut self, unit: u32, lookahead: u32) -> usize {
        if let Some(at) = self.ladders.iter().position(|l| l.is(unit, lookahead)) {
            return at;
        }
        self.ladders.push(Ladder::new(
            &self.model.marks,
            &self.ask.prompt,
            &self.media,
            (unit, lookahead),
            &self.effort,
        ));
        self.ladders.len() - 1
    }

    /// The ladder of a class with its nodes looked up.
    pub(super) fn climb(&mut self, class: &Class) -> usize {
        let at = self.ladder(class.unit(), class.view.topology.hash_lookahead);
        let ladder = &mut self.ladders[at];
        if !ladder.is_looked_up() {
            ladder.look_up(self.salt, &self.model.nodes);
            if self.ask.touch {
                self.model.tick += 1;
                for node in ladder.nodes.iter().flatten() {
                    self.model.nodes.touch(*node, self.model.tick);
                }
            }
        }
        at
    }

    /// The bits of a class along the request.
    pub(super) fn words(
        &self,
        class: &Class,
        ladder: usize,
        tiers: TierSet,
        doubted: bool,
    ) -> Words {
        let nodes = &self.ladders[ladder].nodes;
        let mut words = Words::default();
        let has_partial = class.view.topology.partial_hits;
        for &group in &class.view.groups {
            words
                .whole
                .push(self.gather(class, (group, false), nodes, tiers, doubted));
            if has_partial {
                words
                    .partial
                    .push(self.gather(class, (group, true), nodes, tiers, doubted));
            }
        }
        words
    }

    fn gather(
        &self,
        class: &Class,
        (group, partial): (u16, bool),
        nodes: &[Option<super::nodes::NodeId>],
        tiers: TierSet,
        doubted: bool,
    ) -> Vec<u64> {
        let mut out = vec![0; nodes.len()];
        for tier in tiers.iter() {
            for doubted in [false, true].into_iter().take(1 + usize::from(doubted)) {
                let key = PlaneKey {
                    group,
                    partial,
                    tier,
                    doubted,
                    word: class.word,
                };
                if let Some(plane) = self.model.planes.find(key) {
                    self.model.planes.gather(plane, nodes, &mut out);
                }
            }
        }
        out
    }

    /// Whether one rank holds a block of a group that ends at step `i`, on one tier.
    #[must_use]
    pub(super) fn holds(
        &self,
        class: &Class,
        at: usize,
        (group, bit): (u16, usize),
        tier: super::tier::Tier,
        i: usize,
    ) -> bool {
        let Some(&Some(node)) = self.ladders[at].nodes.get(i) else {
            return false;
        };
        [false, true].into_iter().any(|partial| {
            let key = PlaneKey {
                group,
                partial,
                tier,
                doubted: false,
                word: class.word,
            };
            let plane = self.model.planes.find(key);
            plane.is_some_and(|p| self.model.planes.word(p, node) & (1 << bit) != 0)
        })
    }

    /// Tokens per step of a ladder.
    #[must_use]
    pub(super) fn unit(&self, ladder: usize) -> u32 {
        self.ladders[ladder].unit()
    }

    /// Answers for every column asked for, in that order.
    pub(super) fn rows(&mut self, scratch: &mut rule::Scratch) -> Vec<Row> {
        let tier_sets = self.tier_sets();
        let columns = &self.ask.columns;
        let mut rows: Vec<Row> = columns
            .iter()
            .map(|&column| self.empty_row(column, &tier_sets))
            .collect();
        let asked = Arc::clone(&self.asked);
        for class in self.model.classes().iter() {
            let mask = class.mask & asked.masks[usize::from(class.word)];
            if mask == 0 {
                continue;
            }
            let class = Class {
                mask,
                ..restrict(class.clone(), self.ask.only_full)
            };
            let mut sheet = Sheet {
                rows: &mut rows,
                positions: &asked.positions,
            };
            self.answer_class(&class, &tier_sets, scratch, &mut sheet);
        }
        for (position, &column) in columns.iter().enumerate() {
            let first = asked.positions[column];
            if first != position {
                rows[position] = rows[first].clone();
            }
        }
        rows
    }

    /// The sets of tiers to answer for: the one asked for, GPU, and each further tier that holds
    /// anything added in turn.
    fn tier_sets(&self) -> Vec<TierSet> {
        let present: TierSet = self.model.planes.keys().map(|key| key.tier).collect();
        let mut sets = vec![self.ask.tiers];
        for set in TierSet::cumulative(present) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        sets
    }

    /// A rank of which no group is known holds nothing; unless its history is incomplete.
    fn empty_row(&self, column: usize, tier_sets: &[TierSet]) -> Row {
        let state = self.model.ranks[column]
            .as_ref()
            .map_or(State::Stale, Rank::state);
        let upper = if state == State::Exact {
            0
        } else {
            self.last_token()
        };
        let bounds = Bounds { lower: 0, upper };
        Row {
            state,
            bounds,
            present: 0,
            tiers: tier_sets.iter().map(|&set| (set, bounds)).collect(),
            limiting: None,
            score: 0.0,
            has_score: self.ask.weighted.is_none(),
        }
    }

    pub(super) fn last_token(&self) -> u32 {
        self.ask.prompt.last_token()
    }

    fn answer_class(
        &mut self,
        class: &Class,
        tier_sets: &[TierSet],
        scratch: &mut rule::Scratch,
        sheet: &mut Sheet<'_>,
    ) {
        let at = self.climb(class);
        let query = self.query(class.mask, Unknown::Strict);
        let topology = &class.view.topology;
        for (index, &set) in tier_sets.iter().enumerate() {
            let words = self.words(class, at, set, false);
            let (lower, main) = words.with_held(self.unit(at), |held| {
                let lower = rule::resume(topology, held, query, scratch);
                let main = (index == 0).then(|| {
                    let present = rule::present(topology, held, query, scratch);
                    (
                        present,
                        rule::limiting(topology, held, query, &lower, scratch),
                    )
                });
                (lower, main)
            });
            for column in class.columns() {
                let bit = column % 64;
                let bounds = self.bounds(class, at, column, set, lower[bit], scratch);
                let row = sheet.row(column);
                row.tiers[index] = (set, bounds);
                if let Some((present, limits)) = &main {
                    let limit = limits[bit].map(|l| (class.view.groups[l.group], l.boundary));
                    (row.bounds, row.present, row.limiting) = (bounds, present[bit], limit);
                }
            }
            if index == 0 {
                self.keep_sight(class, at, words);
            }
        }
        let weighted = self
            .ask
            .weighted
            .map(|canonical| weighted::scores(self, class, at, canonical, scratch));
        for column in class.columns() {
            let row = sheet.row(column);
            (row.score, row.has_score) = match &weighted {
                None => (score(self, class, at, column % 64, row), true),
                Some(None) => (0.0, false),
                Some(Some(scores)) => (scores[column % 64], true),
            };
        }
    }

    fn keep_sight(&mut self, class: &Class, at: usize, words: Words) {
        let unit = self.unit(at);
        let Some(sights) = &mut self.sights else {
            return;
        };
        let sight = Arc::new(Sight {
            view: class.view.clone(),
            unit,
            words,
        });
        for (column, bit) in class.columns().map(|column| (column, column % 64)) {
            let bit = u32::try_from(bit).unwrap_or(0);
            sights.insert(column, (Arc::clone(&sight), bit));
        }
    }

    pub(super) fn query(&self, mask: u64, unknown: Unknown) -> Query {
        let num_tokens = u32::try_from(self.ask.prompt.tokens.len()).unwrap_or(u32::MAX);
        Query {
            num_tokens,
            mask,
            unknown,
        }
    }
}

/// The rows of an answer by column.
struct Sheet<'a> {
    rows: &'a mut [Row],
    positions: &'a [usize],
}

impl Sheet<'_> {
    fn row(&mut self, column: usize) -> &mut Row {
        &mut self.rows[self.positions[column]]
    }
}

/// Which columns are asked for, by word, and where each first stands in the answer.
pub(super) struct Asked {
    masks: Vec<u64>,
    positions: Vec<usize>,
}

impl Asked {
    fn new(columns: &[usize], num_columns: usize) -> Self {
        let mut asked = Self {
            masks: vec![0; num_columns.div_ceil(64)],
            positions: vec![0; num_columns],
        };
        for (position, &column) in columns.iter().enumerate().rev() {
            asked.masks[column / 64] |= 1 << (column % 64);
            asked.positions[column] = position;
        }
        asked
    }

    /// Whether a column is asked for.
    #[must_use]
    pub(super) fn has(&self, column: usize) -> bool {
        self.masks[column / 64] & (1 << (column % 64)) != 0
    }
}

/// Leaves only the full-attention groups.
fn restrict(class: Class, only_full: bool) -> Class {
    if !only_full {
        return class;
    }
    let mut view = class.view;
    let keep: Vec<bool> = view
        .topology
        .groups
        .iter()
        .map(|g| g.kind.is_full())
        .collect();
    let mut kept = keep.iter();
    view.topology
        .groups
        .retain(|_| *kept.next().unwrap_or(&false));
    let mut kept = keep.iter();
    view.groups.retain(|_| *kept.next().unwrap_or(&false));
    view.lower_is_zero |= view.groups.is_empty();
    Class { view, ..class }
}
