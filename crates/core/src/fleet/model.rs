//! The pods of one model: the boundaries and bits that they share, their ranks, and which ranks the
//! rule can be evaluated for together.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::fleet::ingest::apply::Slice;
use crate::fleet::ingest::intake::Intake;
use crate::fleet::keys::step::StepKinds;
use crate::fleet::keys::texts::Marks;
use crate::fleet::keys::units::Units;
use crate::fleet::pod::Member;
use crate::fleet::pod::view::{SilentViews, View};
use crate::fleet::presence::SharedPresence;
use crate::fleet::presence::lanes::Lanes;
use crate::fleet::presence::nodes::{NodeId, Nodes};
use crate::fleet::presence::planes::{Column, PlaneKey, Planes};
use crate::fleet::presence::slots::Whereabouts;
use crate::fleet::promised::Promises;
use crate::fleet::rank::Rank;
use crate::fleet::tier::Tier;
use crate::prefix::PrefixKey;
use crate::secret::Secret;

/// Ranks with the same view, at most 64: one evaluation answers for all of them. Those that a model keeps
/// have one word of the planes.
#[derive(Debug, Clone)]
pub(super) struct Class {
    /// The view that the rule is evaluated with.
    pub view: Arc<View>,
    /// The ranks.
    pub lanes: Lanes,
}

impl Class {
    /// The same ranks with what is certain, and with what is likely, of groups that no event tells of,
    /// if they have any.
    pub(super) fn silent(&self) -> Option<(Self, Self)> {
        let SilentViews { certain, likely } = self.view.silent.as_deref()?.clone();
        Some((self.with(certain), self.with(likely)))
    }

    /// The same ranks with hits inside blocks, if it is not known whether their engines have them.
    pub(super) fn inside(&self) -> Option<Self> {
        Some(self.with((**self.view.inside.as_ref()?).clone()))
    }

    /// The same ranks with another view.
    pub(super) fn with(&self, view: View) -> Self {
        Self {
            view: Arc::new(view),
            lanes: self.lanes.clone(),
        }
    }
}

/// All pods of one model.
#[derive(Debug)]
pub(super) struct Model {
    /// The boundaries that some rank holds or names.
    pub nodes: Nodes,
    /// The presence bits of all ranks.
    pub planes: Planes,
    /// The numbers that texts and lookahead tokens add to keys.
    pub marks: Arc<Marks>,
    /// The prompts that were sent to ranks, and of which no event tells yet.
    pub promises: Promises,
    /// The boundaries at which hashes stand and stood.
    pub steps: StepKinds,
    /// What sets the model's keys apart from other models' in the table of what was seen.
    pub term: PrefixKey,
    /// The ranks by column; `None` is a free column.
    pub ranks: Vec<Option<Rank>>,
    /// For each column that is asked about, the first row that the answer has of it; what was asked
    /// before is left in the others, so that few candidates of many pods cost as few.
    pub positions: Vec<usize>,
    free: BTreeSet<usize>,
    /// A count that increases with every request. It tells which names were matched least recently.
    pub tick: u32,
    units: Units,
    classes: Option<Arc<[Class]>>,
    /// All ranks by name, for requests that ask for all of them.
    pub roster: Option<Arc<[Member]>>,
}

impl Model {
    /// A model of this name, without any rank.
    pub(super) fn new(name: &str, secret: &Secret) -> Self {
        let marks = Marks::new(secret);
        Self {
            nodes: Nodes::new(secret),
            planes: Planes::default(),
            promises: Promises::default(),
            steps: StepKinds::default(),
            term: marks.model(name),
            ranks: Vec::new(),
            positions: Vec::new(),
            free: BTreeSet::new(),
            tick: 0,
            units: Units::new(marks.field()),
            marks: Arc::new(marks),
            classes: None,
            roster: None,
        }
    }

    /// The column that a new rank gets.
    pub(super) fn free_column(&mut self) -> (usize, Column) {
        let index = self.free.pop_first().unwrap_or_else(|| {
            self.ranks.push(None);
            self.ranks.len() - 1
        });
        (index, Column::of(index))
    }

    /// Drops what was derived from the ranks' groups, because what is known of those of a rank has
    /// changed.
    pub(super) fn invalidate(&mut self, index: usize) {
        self.classes = None;
        self.roster = None;
        let rank = self.ranks[index].as_ref();
        if let Some(step) = rank.and_then(Rank::finest_step) {
            self.steps.note(step);
        }
    }

    /// Whether what is known of a rank includes what a feed published.
    pub(super) fn has_history_of(&self, index: usize, feed: u32) -> bool {
        let rank = self.ranks[index].as_ref();
        rank.is_some_and(|rank| rank.feeds_with_history.contains(&feed))
    }

    /// Applies a slice of a batch of one rank. Returns true if the whole batch is applied.
    pub(super) fn advance(&mut self, index: usize, intake: &mut Intake) -> bool {
        let Some(rank) = self.ranks[index].as_mut() else {
            return true;
        };
        let (batch, progress) = intake.parts();
        let mut slice = Slice {
            rank,
            shared: SharedPresence {
                nodes: &mut self.nodes,
                planes: &mut self.planes,
            },
            marks: &self.marks,
            units: &mut self.units,
            batch,
            progress,
            learned: false,
        };
        let is_in = slice.run();
        if slice.learned {
            self.invalidate(index);
        }
        if is_in && intake.applied().cleared > 0 {
            self.promises.withdraw_all(index);
        } else if is_in {
            self.settle_promises(index);
        }
        is_in
    }

    /// Ends those promises of a rank that it has fulfilled.
    fn settle_promises(&mut self, index: usize) {
        if !self.promises.concern(index) {
            return;
        }
        let classes = self.classes();
        let Some(class) = classes
            .iter()
            .find(|class| class.lanes.lane(index).is_some())
        else {
            return;
        };
        let (nodes, planes, column) = (&self.nodes, &self.planes, Column::of(index));
        let holds = |node: NodeId, group: u16| {
            Tier::ALL.into_iter().any(|tier| {
                let key = PlaneKey {
                    group,
                    partial: false,
                    tier,
                    doubted: false,
                    word: column.word,
                };
                let plane = planes.find(key);
                plane.is_some_and(|plane| planes.word(plane, node) & column.bit != 0)
            })
        };
        self.promises.settle(index, |key| {
            let node = nodes.find(key, None);
            node.is_some_and(|node| class.view.groups.iter().all(|&group| holds(node, group)))
        });
    }

    /// Runs an operation on one rank, and lends it the shared part of the model.
    pub(super) fn with_rank<T>(
        &mut self,
        index: usize,
        operation: impl FnOnce(&mut Rank, &mut SharedPresence<'_>) -> T,
    ) -> Option<T> {
        let rank = self.ranks[index].as_mut()?;
        let mut shared = SharedPresence {
            nodes: &mut self.nodes,
            planes: &mut self.planes,
        };
        Some(operation(rank, &mut shared))
    }

    /// Removes a rank and everything it holds; its nodes are released later, in portions.
    pub(super) fn remove(&mut self, index: usize) {
        self.promises.withdraw_all(index);
        self.with_rank(index, Rank::forget_everything);
        self.ranks[index] = None;
        self.free.insert(index);
        self.invalidate(index);
    }

    /// The classes of ranks that can be evaluated together.
    pub(super) fn classes(&mut self) -> Arc<[Class]> {
        if let Some(classes) = &self.classes {
            return Arc::clone(classes);
        }
        let classes: Arc<[Class]> = self.group_ranks().into();
        self.classes = Some(Arc::clone(&classes));
        classes
    }

    /// The classes, those of one view after each other.
    fn group_ranks(&self) -> Vec<Class> {
        let mut by_view: Vec<Vec<Class>> = Vec::new();
        let mut known: HashMap<View, usize> = HashMap::new();
        for rank in self.ranks.iter().flatten() {
            let Some(view) = rank.view() else {
                continue;
            };
            let Column { word, bit } = rank.column;
            let at = *known.entry(view).or_insert_with_key(|view| {
                let (view, lanes) = (Arc::new(view.clone()), Lanes::of(word, 0));
                by_view.push(vec![Class { view, lanes }]);
                by_view.len() - 1
            });
            // Ranks are in the order of their columns.
            let classes = &mut by_view[at];
            let last = classes.len() - 1;
            if classes[last].lanes.has_word(word) {
                classes[last].lanes.add(bit);
            } else {
                let (view, lanes) = (Arc::clone(&classes[last].view), Lanes::of(word, bit));
                classes.push(Class { view, lanes });
            }
        }
        by_view.into_iter().flatten().collect()
    }

    /// The bytes held, by capacity and estimate.
    #[must_use]
    pub(super) fn bytes(&self) -> usize {
        let ranks: usize = self.ranks.iter().flatten().map(Rank::bytes).sum();
        let shared = self.nodes.bytes() + self.planes.bytes() + self.promises.bytes();
        shared + self.units.bytes() + ranks
    }

    /// Panics unless nodes, bits and ranks agree.
    pub(super) fn check_integrity(&self) {
        self.nodes.check_integrity();
        self.planes.check_integrity();
        self.promises.check_integrity();
        let mut refs: HashMap<u32, u32> = HashMap::new();
        let mut bits: HashMap<(PlaneKey, u32), u64> = HashMap::new();
        for rank in self.ranks.iter().flatten() {
            rank.check_integrity(&self.nodes, &self.planes);
            for slot in rank.slots.iter() {
                let Whereabouts::Placed(node) = rank.slots.whereabouts(slot) else {
                    continue;
                };
                *refs.entry(node.0).or_insert(0) += 1;
                for channel in rank.slots.held_channels(slot) {
                    let key = rank.slots.channels.get(channel).key;
                    let plane = PlaneKey {
                        group: key.group,
                        partial: key.partial,
                        tier: key.tier,
                        doubted: key.doubted,
                        word: rank.column.word,
                    };
                    *bits.entry((plane, node.0)).or_insert(0) |= rank.column.bit;
                }
            }
        }
        for node in self.nodes.waiting() {
            *refs.entry(node.0).or_insert(0) += 1;
        }
        assert_eq!(refs.len(), self.nodes.len(), "nodes without a slot");
        for (&node, &count) in &refs {
            assert_eq!(self.nodes.refs(NodeId(node)), count, "node {node}");
        }
        for (key, node, word) in self.planes.set_words() {
            let held = bits.get(&(key, node.0)).copied().unwrap_or(0);
            assert_eq!(
                word & !held,
                0,
                "{key:?} node {node:?} shows what nobody holds"
            );
        }
    }
}
