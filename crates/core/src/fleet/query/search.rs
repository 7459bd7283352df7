//! A request on its way through the index: its keys, the nodes at those keys, and the words that
//! say what the classes of ranks hold there.
//!
//! The index's own keys are computed once, at every unit, and nodes are looked up once for each
//! unit. `rows` then reads the answer for each rank from the words.

use hashbrown::{HashMap, HashSet};

use super::prompt_keys::PromptKeys;
use super::request::ResolvedRequest;
use super::words::{RankPresence, Words};
use crate::fleet::effort::Effort;
use crate::fleet::ingest::namespace;
use crate::fleet::keys::prompt::MediaMark;
use crate::fleet::keys::step::KeyStep;
use crate::fleet::keys::texts::SaltId;
use crate::fleet::limbo::Possible;
use crate::fleet::model::{Class, Model};
use crate::fleet::presence::planes::{Column, PlaneKey};
use crate::fleet::tier::{Tier, TierSet};
use crate::prefix::PrefixKey;
use crate::rule::{Query, Unknown};

/// A class of ranks, and the keys along which its words are read.
#[derive(Clone, Copy)]
pub(in crate::fleet) struct ClassQuery<'c> {
    /// The ranks, and the view that the rule is evaluated with for them.
    pub(in crate::fleet) class: &'c Class,
    /// The index of the keys in the search.
    pub(in crate::fleet) keys: usize,
}

impl ClassQuery<'_> {
    /// The lane of one of its ranks.
    pub(in crate::fleet) fn lane(self, column: usize) -> usize {
        let lane = self.class.lanes.lane(column);
        lane.expect("a rank of the class")
    }
}

/// One request while it is being answered.
pub(in crate::fleet) struct RequestSearch<'a, 'p> {
    /// The model.
    pub(in crate::fleet) model: &'a mut Model,
    /// The request.
    pub(in crate::fleet) request: &'a ResolvedRequest<'p>,
    /// The requested columns: their bits, by word of the planes.
    pub(in crate::fleet) asked: Vec<u64>,
    /// The request's media.
    media: Vec<MediaMark>,
    /// The keys made so far, one for each unit and lookahead.
    pub(in crate::fleet) prompt_keys: Vec<PromptKeys>,
    /// The request's salt.
    pub(in crate::fleet) salt: SaltId,
    /// The ranks whose undecided hashes were all compared with the request's own engine chain.
    pub(in crate::fleet) probed: HashSet<usize>,
    /// For the other ranks: where their undecided hashes may stand.
    pub(in crate::fleet) possible: HashMap<usize, Possible>,
    /// The work that was done for this answer, except for the rule.
    pub(in crate::fleet) effort: Effort,
    /// For each column, what it holds. Kept if the answer will be explained.
    pub(in crate::fleet) seen: Option<HashMap<usize, RankPresence>>,
}

impl<'a, 'p> RequestSearch<'a, 'p> {
    /// Prepares an answer. Nothing is looked up yet.
    pub(in crate::fleet) fn new(model: &'a mut Model, request: &'a ResolvedRequest<'p>) -> Self {
        let salt = model.marks.salt(request.prompt.salt);
        let media = MediaMark::of(&model.marks, &request.prompt);
        let asked = masks(&request.columns, model.ranks.len());
        Self {
            model,
            request,
            asked,
            media,
            prompt_keys: Vec::new(),
            salt,
            probed: HashSet::new(),
            possible: HashMap::new(),
            effort: Effort::default(),
            seen: None,
        }
    }

    /// Keeps the words that the answer is read from.
    pub(in crate::fleet) fn keeping_presence(self) -> Self {
        Self {
            seen: Some(HashMap::new()),
            ..self
        }
    }

    /// The keys for one unit and lookahead, made at most once per request.
    pub(in crate::fleet) fn keys(&mut self, step: KeyStep) -> usize {
        if let Some(at) = self.prompt_keys.iter().position(|keys| keys.step() == step) {
            return at;
        }
        self.prompt_keys.push(PromptKeys::new(
            &self.model.marks,
            &self.request.prompt,
            &self.media,
            step,
            &self.effort,
        ));
        self.prompt_keys.len() - 1
    }

    /// The boundaries along which a class is read.
    pub(in crate::fleet) fn step_of(&self, class: &Class) -> KeyStep {
        KeyStep {
            page: self.page(class.view.space_page),
            ..class.view.step()
        }
    }

    /// The keys of a class, with its nodes looked up.
    pub(in crate::fleet) fn keys_for(&mut self, class: &Class) -> usize {
        let at = self.keys(self.step_of(class));
        let salt = self.salt_on(at);
        let keys = &mut self.prompt_keys[at];
        if let (false, Some(salt)) = (keys.is_looked_up(), salt) {
            keys.look_up(salt, &self.model.nodes);
            if self.request.touch {
                self.model.tick += 1;
                for node in keys.nodes.iter().flatten() {
                    self.model.nodes.touch(*node, self.model.tick);
                }
            }
        }
        at
    }

    /// Tokens per page where chains stand under salts made of their first hashes; else 0. Those of
    /// adapters never do.
    pub(in crate::fleet) fn page(&self, space_page: u32) -> u32 {
        match self.request.prompt.lora() {
            Some(_) => 0,
            None => space_page,
        }
    }

    /// The salt that the nodes of keys are looked up with; `None` if the request's is not known.
    pub(in crate::fleet) fn salt_on(&self, keys: usize) -> Option<SaltId> {
        self.salt_of(self.prompt_keys[keys].step())
    }

    /// The same for the keys of a step, wherever they are.
    pub(in crate::fleet) fn salt_of(&self, step: KeyStep) -> Option<SaltId> {
        match step {
            KeyStep { page: 0, .. } => Some(self.salt),
            KeyStep { lookahead: 1.., .. } => None,
            KeyStep { page, .. } => {
                namespace::of_request(&self.model.marks, &self.request.prompt, page as usize)
            }
        }
    }

    /// The bits of a class along the request, with or without the copies in doubt.
    pub(in crate::fleet) fn words(
        &self,
        class_query: ClassQuery<'_>,
        tiers: TierSet,
        doubted: bool,
    ) -> Words {
        let mut words = Words::default();
        let view = &class_query.class.view;
        for &group in &view.groups {
            let gather = |partial| self.gather(class_query, group, partial, tiers, doubted);
            let whole = gather(false);
            if view.topology.partial_hits {
                let mut inside = gather(true);
                for (inside, word) in inside.iter_mut().zip(&whole) {
                    *inside |= word; // Whether a placeholder ends inside a block, its place shows.
                }
                words.partial.push(inside);
            }
            words.whole.push(whole);
        }
        words
    }

    fn gather(
        &self,
        class_query: ClassQuery<'_>,
        group: u16,
        partial: bool,
        tiers: TierSet,
        doubted: bool,
    ) -> Vec<u64> {
        let keys = &self.prompt_keys[class_query.keys];
        let mut out = vec![0; keys.nodes.len()];
        for (word, bits) in class_query.class.lanes.words() {
            for tier in tiers.iter() {
                for doubted in [false, true].into_iter().take(1 + usize::from(doubted)) {
                    let key = PlaneKey {
                        group,
                        partial,
                        tier,
                        doubted,
                        word,
                    };
                    let planes = &self.model.planes;
                    match (planes.find(key), &bits) {
                        (Some(plane), None) => planes.gather(plane, &keys.runs, &mut out),
                        (Some(plane), Some(bits)) => {
                            planes.gather_bits(plane, &keys.runs, bits, &mut out);
                        }
                        (None, _) => {}
                    }
                }
            }
        }
        out
    }

    /// Whether one rank of the class holds the block of a group that ends at boundary `i` of the keys:
    /// on one tier, and certainly or in doubt.
    #[must_use]
    pub(in crate::fleet) fn holds(
        &self,
        class_query: ClassQuery<'_>,
        column: usize,
        i: usize,
        (group, tier, doubted): (u16, Tier, bool),
    ) -> bool {
        let Some(&Some(node)) = self.prompt_keys[class_query.keys].nodes.get(i) else {
            return false;
        };
        let Column { word, bit } = Column::of(column);
        [false, true].into_iter().any(|partial| {
            let key = PlaneKey {
                group,
                partial,
                tier,
                doubted,
                word,
            };
            let plane = self.model.planes.find(key);
            plane.is_some_and(|p| self.model.planes.word(p, node) & bit != 0)
        })
    }

    /// Tokens from one key to the next.
    #[must_use]
    pub(in crate::fleet) fn unit(&self, keys: usize) -> u32 {
        self.prompt_keys[keys].step().unit
    }

    /// The most tokens that any engine can reuse.
    pub(in crate::fleet) fn last_token(&self) -> u32 {
        self.request.prompt.last_token()
    }

    /// The keys of the nodes along the request; `None` if its salt is not known.
    pub(in crate::fleet) fn node_keys(
        &self,
        keys: usize,
    ) -> Option<impl Iterator<Item = PrefixKey> + '_> {
        let term = self.model.nodes.term(self.salt_on(keys)?);
        Some(self.prompt_keys[keys].node_keys(term))
    }

    /// The request in the form that the rule takes, for some ranks of a class.
    pub(in crate::fleet) fn query(&self, mask: u64, unknown: Unknown) -> Query {
        let num_tokens = u32::try_from(self.request.prompt.tokens.len()).unwrap_or(u32::MAX);
        Query {
            num_tokens,
            mask,
            unknown,
        }
    }
}

/// The bits of these columns, by word.
fn masks(columns: &[usize], num_columns: usize) -> Vec<u64> {
    let mut masks = vec![0; num_columns.div_ceil(64)];
    for column in columns {
        masks[column / 64] |= 1 << (column % 64);
    }
    masks
}
