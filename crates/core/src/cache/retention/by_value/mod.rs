//! Boundaries that are kept resumable, and which of them is let go first when blocks are needed.
//!
//! ```text
//! root ---- junction ---- end of a turn ---- end of the next turn
//!               \-------- end of another request
//! ```
//! A node stands for a prefix. Its `full` blocks lead to it from its parent. Its `tail` holds what
//! the other groups need for a resume there: windows, chunks, states. A node without a tail only
//! marks a point where paths part. The blocks of nodes are not in the pool's queue. When the queue
//! is empty, the checkpoint of the least value is let go: a checkpoint with descendants loses only
//! its tail, and a leaf also loses the full blocks that lead only to it. Whole sessions are
//! therefore evicted one at a time, rather than a piece of each.
//!
//! - `tree` says where a prefix stands, and adds, splits and removes nodes.
//! - `retain` notes that requests start, continue and end, and which boundaries become checkpoints.
//! - `value` says what a checkpoint is worth, and learns how likely each kind is resumed.
//! - `hints` calibrates what callers say of ends.
//! - `overlaps` learns at which lengths requests branch off.
//! - `evict` lets checkpoints go, and imitates other caches.
//! - `integrity` says what is true between any two calls.

mod evict;
mod hints;
mod integrity;
mod overlaps;
mod retain;
mod tree;
mod value;

use std::collections::BTreeSet;

use crate::blocks::{BlockId, EntryId, Pool};
use crate::cache::config::{ByValue, CacheConfig, EvictionPolicy, Retention};
use crate::cache::group::{Group, Kind};
use crate::cache::hint::Hint;
use crate::cache::request::Request;
use crate::cache::retention::Boundaries;
use crate::cache::value_cursor::Ending;
use crate::hash::Digest;
use hints::Returns;
use overlaps::Overlaps;
use value::{GUESSES, Likelihood, Origin, Past, Priority};

type TreeNodeId = u32;

const ROOT: TreeNodeId = 0;
const NO_NODE: TreeNodeId = TreeNodeId::MAX;

#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of one checkpoint"
)]
struct Node {
    parent: TreeNodeId,
    /// The place among the parent's children.
    place: u32,
    children: Vec<TreeNodeId>,
    /// The entry of the prefix's hash; `None` for the root.
    entry: Option<EntryId>,
    /// The number of tokens of the prefix.
    end: u32,
    /// The blocks between the parent's end and this end, of the groups that need all blocks.
    full: Vec<BlockId>,
    /// The other blocks that a resume here needs.
    tail: Vec<BlockId>,
    is_resumable: bool,
    origin: Origin,
    /// How the request that got this far ends, what was said of its end, and whether it has ended.
    ending: Ending,
    hint: Hint,
    has_ended: bool,
    /// Whether a request has resumed here since that request ended, or since the last child was
    /// added.
    was_resumed: bool,
    /// How often a request has resumed here since the node became a checkpoint, and whether several
    /// paths continued at once. This is remembered when those paths have gone.
    num_resumed: u32,
    is_shared: bool,
    /// The tick of the last use, and the level at that time.
    used_at: u64,
    used_level: f64,
    /// The node's place in the queue of nodes that can be let go, if it is in the queue.
    key: Option<Priority>,
}

/// A boundary that is kept resumable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checkpoint {
    /// The hash of its prefix.
    pub hash: Digest,
    /// The length of its prefix.
    pub num_tokens: u32,
    /// The compute that the checkpoint saves per block, minus the highest value that was let go.
    pub value: f64,
    /// Whether no kept checkpoint has a prefix that continues this one.
    pub is_last: bool,
}

/// Tokens that requests reused.
#[derive(Debug, Clone, Copy, Default)]
struct Reused {
    at_checkpoints: u64,
    elsewhere: u64,
}

/// A position in the tree: a number of tokens of a prefix, and the node that leads at least that
/// far.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    node: TreeNodeId,
    tokens: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Checkpoints {
    by_value: ByValue,
    /// What is evicted first, for now.
    policy: EvictionPolicy,
    /// Nodes from this one on may still have the values of the policy before.
    first_stale: TreeNodeId,
    /// The groups that are cached.
    groups: Vec<Group>,
    /// Whether every boundary that the full groups hold can be resumed at.
    needs_no_tail: bool,
    /// The number of tokens of the smallest block of a full group.
    full_step: Option<u32>,
    boundaries: Boundaries,
    nodes: Vec<Node>,
    unused: Vec<TreeNodeId>,
    /// For each entry, the node that it belongs to because of a block in `full` or because of its
    /// end.
    owners: Vec<TreeNodeId>,
    /// For each block, how often it is in a `full` or a `tail`.
    pins: Vec<u32>,
    /// The nodes that can be let go, least value first.
    queue: BTreeSet<(Priority, TreeNodeId)>,
    likelihood: Likelihood,
    /// What came of hints.
    returns: Returns,
    /// The number of checkpoints that were made.
    num_made: u64,
    /// The tokens reused by requests that resumed at a checkpoint, and by others.
    reused: Reused,
    /// Where requests branch off; `None` if every boundary can be resumed at anyway.
    overlaps: Option<Overlaps>,
    /// The highest value that was let go.
    level: f64,
    /// A count of all uses.
    clock: u64,
}

impl Node {
    fn root() -> Self {
        Self {
            parent: NO_NODE,
            place: 0,
            children: Vec::new(),
            entry: None,
            end: 0,
            full: Vec::new(),
            tail: Vec::new(),
            is_resumable: true,
            origin: Origin::Junction,
            ending: Ending::Start,
            hint: Hint::Unknown,
            has_ended: false,
            was_resumed: false,
            num_resumed: 0,
            is_shared: false,
            used_at: 0,
            used_level: 0.0,
            key: None,
        }
    }

    /// What tells how likely the node is resumed.
    fn past(&self) -> Past {
        if self.children.len() > 1 || self.num_resumed > 1 || self.is_shared {
            Past::Shared(self.origin)
        } else if self.children.is_empty() {
            Past::Ended(self.ending)
        } else {
            Past::Passed(self.origin)
        }
    }
}

impl Checkpoints {
    /// The checkpoints of a cache; `None` unless the retention is by value.
    pub(in crate::cache) fn new(
        config: &CacheConfig,
        groups: &[Group],
        boundaries: Boundaries,
    ) -> Option<Self> {
        let Retention::ByValue(by_value) = config.retention else {
            return None;
        };
        let groups: Vec<Group> = groups.iter().filter(|g| g.cacheable).copied().collect();
        let full = groups.iter().filter(|group| group.kind == Kind::Full);
        let needs_no_tail = groups.iter().all(|group| {
            let ends_there = boundaries.hit_alignment.is_multiple_of(group.block);
            group.kind == Kind::Full && !group.eagle && ends_there
        });
        Some(Self {
            by_value,
            policy: by_value.policy.unwrap_or(EvictionPolicy::Value),
            first_stale: NO_NODE,
            needs_no_tail,
            overlaps: (!needs_no_tail).then(|| Overlaps::new(config.num_blocks as usize)),
            full_step: full.map(|group| group.block).min(),
            groups,
            boundaries,
            nodes: vec![Node::root()],
            unused: Vec::new(),
            owners: Vec::new(),
            pins: vec![0; config.num_blocks as usize],
            queue: BTreeSet::new(),
            likelihood: Likelihood::new(),
            returns: Returns::new(config.num_blocks as usize, GUESSES),
            num_made: 0,
            reused: Reused::default(),
            level: 0.0,
            clock: 0,
        })
    }

    /// Whether a boundary that the full groups hold may be no checkpoint.
    pub(in crate::cache) fn are_sparse(&self) -> bool {
        !self.needs_no_tail
    }

    /// The boundaries where requests are expected to resume.
    pub(in crate::cache) fn boundaries(&self) -> &Boundaries {
        &self.boundaries
    }

    /// The number of tokens between regular checkpoints; 0 if there are none.
    pub(in crate::cache) fn interval(&self) -> u32 {
        self.by_value.interval
    }

    /// Notes that a request resumes after `tokens` tokens. This boundary becomes a checkpoint if it
    /// is not one yet. Returns what ends when the request ends.
    pub(in crate::cache) fn resume(
        &mut self,
        pool: &mut Pool,
        request: &Request,
        tokens: u32,
    ) -> Ending {
        let num_made = self.num_made;
        let kept = self.keep(pool, request, tokens, Origin::Junction);
        let was_there = kept.is_some() && self.num_made == num_made;
        let reused = &mut self.reused;
        *(if was_there {
            &mut reused.at_checkpoints
        } else {
            &mut reused.elsewhere
        }) += u64::from(tokens);
        let Some(id) = kept else {
            return Ending::Start;
        };
        let node = &mut self.nodes[id as usize];
        let past = node.past();
        let goes_on = past == Past::Ended(node.ending) && node.has_ended;
        let is_first = !std::mem::replace(&mut node.was_resumed, true);
        if is_first && (goes_on || !matches!(past, Past::Ended(_))) {
            self.likelihood.note_resumed(past);
        }
        node.num_resumed = node.num_resumed.saturating_add(1);
        if node.origin == Origin::Overlap && node.num_resumed == 1 {
            let num_saved = self.saved_by_overlaps(id);
            if let Some(overlaps) = &mut self.overlaps {
                overlaps.resumed(num_saved);
            }
        }
        self.weigh(id);
        if goes_on { Ending::Turn } else { Ending::Start }
    }

    /// Whether most of what requests reused was at checkpoints, so keeping these alone would have
    /// saved most of it. `None` if nothing was reused.
    pub(crate) fn most_reuse_was_at_checkpoints(&self) -> Option<bool> {
        let Reused {
            at_checkpoints,
            elsewhere,
        } = self.reused;
        (at_checkpoints + elsewhere > 0).then_some(at_checkpoints > elsewhere)
    }

    /// Notes that a request gives its blocks back after `tokens`, so its last boundary becomes a
    /// checkpoint.
    pub(in crate::cache) fn end(&mut self, pool: &mut Pool, request: &Request, tokens: u32) {
        self.weigh_stale();
        if tokens == 0 {
            return;
        }
        let kept = self.keep(pool, request, tokens, Origin::End);
        let Some(id) = kept.or_else(|| self.last_on_path(pool, request, tokens)) else {
            return;
        };
        let node = &mut self.nodes[id as usize];
        if id != ROOT && node.children.is_empty() {
            (node.ending, node.hint) = (request.by_value.ending, request.by_value.hint);
            node.has_ended = true;
            node.was_resumed = false;
            self.likelihood.note_candidate(node.past());
            self.weigh(id);
        }
        // Of the same age, what a path continues from goes after the end of the path.
        let above = match id {
            ROOT => ROOT,
            _ => self.resumable_above(id),
        };
        if above != ROOT {
            self.note_use(pool, above);
        }
    }

    /// The node that the first `end` tokens lead to; `None` if it continues on a different path.
    fn last_on_path(&self, pool: &Pool, request: &Request, end: u32) -> Option<TreeNodeId> {
        let Anchor { node, tokens } = self.anchor(pool, request, end);
        (self.nodes[node as usize].end == tokens).then_some(node)
    }

    /// Makes a boundary a checkpoint, or renews it. `None` if the blocks that it needs are not all
    /// held.
    fn keep(
        &mut self,
        pool: &mut Pool,
        request: &Request,
        end: u32,
        origin: Origin,
    ) -> Option<TreeNodeId> {
        let entry = self.entry_at(pool, request, end)?;
        let anchor = self.anchor(pool, request, end);
        let is_there = anchor.tokens == end;
        let known = &self.nodes[anchor.node as usize];
        if is_there && known.end == end && known.is_resumable {
            self.note_use(pool, anchor.node);
            return Some(anchor.node);
        }
        let (full, tail) = self.needed(pool, request, anchor.tokens..end)?;
        let says_so = |block: &BlockId| pool.index.row(entry).contains(block);
        if !is_there && !full.iter().chain(&tail).rev().any(says_so) {
            return None; // No block that is kept would hold the hash of the prefix.
        }
        let above = self.node_at(pool, request, anchor);
        let id = if is_there {
            above
        } else {
            self.attach(above, entry, end)
        };
        for &block in full.iter().chain(&tail) {
            self.pin(pool, block);
        }
        self.num_made += 1;
        let node = &mut self.nodes[id as usize];
        node.full.extend(full);
        node.tail = tail;
        node.is_resumable = true;
        node.origin = origin;
        (node.ending, node.hint) = (request.by_value.ending, request.by_value.hint);
        (node.has_ended, node.was_resumed) = (false, false);
        node.num_resumed = 0;
        node.is_shared = node.children.len() > 1;
        if origin == Origin::Overlap
            && let Some(overlaps) = &mut self.overlaps
        {
            overlaps.made();
        }
        if !node.children.is_empty() {
            self.likelihood.note_candidate(node.past());
        }
        self.claim(pool, id);
        if !is_there {
            self.went_on(above);
        }
        self.note_use(pool, id);
        self.weigh_below(id);
        Some(id)
    }

    /// The checkpoints that can be let go, least value first.
    pub(in crate::cache) fn queued<'a>(
        &'a self,
        pool: &'a Pool,
    ) -> impl Iterator<Item = Checkpoint> + 'a {
        self.queue.iter().filter_map(move |&(key, id)| {
            let node = &self.nodes[id as usize];
            Some(Checkpoint {
                hash: *pool.index.digest(node.entry?),
                num_tokens: node.end,
                value: key.value - self.level,
                is_last: node.children.is_empty(),
            })
        })
    }

    fn note_use(&mut self, pool: &mut Pool, id: TreeNodeId) {
        self.clock += 1;
        pool.set_time(self.clock);
        let node = &mut self.nodes[id as usize];
        (node.used_at, node.used_level) = (self.clock, self.level);
        self.weigh(id);
    }

    /// The bytes held, by capacity. A place in the queue counts twice, for the spare room in the
    /// nodes of its B-tree.
    pub(in crate::cache) fn bytes(&self) -> usize {
        let ids = self.unused.capacity() + self.owners.capacity() + self.pins.capacity();
        let lists: usize = (self.nodes.iter())
            .map(|n| n.children.capacity() + n.full.capacity() + n.tail.capacity())
            .sum();
        self.overlaps.as_ref().map_or(0, Overlaps::bytes)
            + self.returns.bytes()
            + self.nodes.capacity() * size_of::<Node>()
            + (ids + lists) * size_of::<TreeNodeId>()
            + self.queue.len() * 2 * size_of::<(Priority, TreeNodeId)>()
    }
}
