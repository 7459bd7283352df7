//! What each group demands at a boundary. Groups with the same spec are merged.
//!
//! A plan is made once per evaluation, and its sizes are in units. It depends on the request's
//! length but never on what is held.

use super::{Query, Unknown};
use crate::divisors::gcd;
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// What a group must hold for a boundary L. Every kind of cache has one of these demands, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupDemand {
    /// Every block that ends at or before L.
    Prefix,
    /// The last `blocks` blocks that end at L, or all of them when the prefix is shorter.
    Window { blocks: usize },
    /// Every block that overlaps `[floor(L / tokens) * tokens, L)`.
    Chunk { tokens: u32 },
    /// The one state that was taken exactly at L.
    Checkpoint,
}

/// A chunk of unknown size, under the strict treatment: one chunk from the first token on.
const ENDLESS_CHUNK: u32 = u32::MAX;

/// One demand and the groups that share it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec {
    /// The first group with this demand, except that `eagle` is true if any of the groups has it.
    pub(super) group: GroupSpec,
    pub(super) demand: GroupDemand,
    /// Units per block.
    pub(super) block: usize,
    /// Units between two boundaries that this spec may accept: a block, or a hash block.
    pub(super) grain: usize,
}

impl Spec {
    /// Whether interior boundaries of a block can be accepted.
    pub(super) fn is_fine(&self) -> bool {
        self.grain < self.block
    }

    /// The number of grains after L that must be held. A state cannot be rewound, so a checkpoint
    /// needs none.
    pub(super) fn extra(&self) -> usize {
        usize::from(self.group.eagle && self.demand != GroupDemand::Checkpoint)
    }

    /// The same demand, without the grains after L.
    pub(super) fn without_extra(&self) -> Self {
        let group = GroupSpec {
            eagle: false,
            ..self.group
        };
        Self { group, ..*self }
    }
}

/// The demands of one topology on one request, with sizes in units.
#[derive(Debug, Clone, Default)]
pub(super) struct EvaluationPlan {
    /// The demands, in the order of their first groups.
    pub(super) specs: Vec<Spec>,
    /// For each group, its index in `specs`; `None` if the group restricts nothing.
    pub(super) spec_of: Vec<Option<usize>>,
    /// The holders to answer for.
    pub(super) mask: u64,
    /// Tokens per unit.
    pub(super) unit: u32,
    pub(super) num_tokens: u32,
    /// The number of whole units of the request.
    pub(super) units: usize,
    /// An answer is a multiple of this many units.
    pub(super) step: usize,
    /// An answer is at most this many units.
    pub(super) limit: usize,
    /// The units up to which the interior boundaries of a full group are probed.
    pub(super) probe_limit: usize,
    /// Whether an interior boundary counts only if all groups of a spec have it.
    pub(super) probes_jointly: bool,
}

/// The demand of one group; `None` if it never restricts a prefix.
pub(super) fn demand(
    group: &GroupSpec,
    topology: &Topology,
    unknown: Unknown,
) -> Option<GroupDemand> {
    if !group.prefix_cacheable {
        return None;
    }
    let strict = unknown == Unknown::Strict;
    match group.kind {
        SpecKind::FullAttention | SpecKind::MlaAttention | SpecKind::SinkFullAttention => {
            Some(GroupDemand::Prefix)
        }
        SpecKind::SlidingWindow | SpecKind::SlidingWindowMla => {
            let blocks = group
                .window
                .unwrap_or(1)
                .saturating_sub(1)
                .div_ceil(group.block_size);
            // Bounded replay recomputes the window instead of demanding it.
            (topology.replay_tokens == 0).then_some(GroupDemand::Window {
                blocks: blocks as usize,
            })
        }
        SpecKind::ChunkedLocalAttention => match group.chunk {
            Some(tokens) => Some(GroupDemand::Chunk { tokens }),
            None => strict.then_some(GroupDemand::Chunk {
                tokens: ENDLESS_CHUNK,
            }),
        },
        SpecKind::Mamba => Some(GroupDemand::Checkpoint),
        SpecKind::EncoderOnlyAttention | SpecKind::CrossAttention => None,
        SpecKind::Unknown => strict.then_some(GroupDemand::Prefix),
    }
}

/// The number of tokens between two boundaries that a group may accept; `None` if it never restricts
/// a prefix. A group of unknown kind or chunk is treated strictly.
pub(crate) fn grain(group: &GroupSpec, topology: &Topology) -> Option<u32> {
    demand(group, topology, Unknown::Strict).map(|demand| grain_of(group, topology, demand))
}

fn grain_of(group: &GroupSpec, topology: &Topology, demand: GroupDemand) -> u32 {
    let is_fine = topology.partial_hits
        && group.block_size > topology.hash_block_size
        && matches!(demand, GroupDemand::Prefix | GroupDemand::Checkpoint);
    if is_fine {
        topology.hash_block_size
    } else {
        group.block_size
    }
}

impl EvaluationPlan {
    /// Makes the plan anew, and uses the buffers again.
    pub(super) fn draw(&mut self, topology: &Topology, unit: u32, query: Query) {
        self.specs.clear();
        self.spec_of.clear();
        self.mask = query.mask;
        self.unit = unit;
        self.num_tokens = query.num_tokens;
        self.units = (query.num_tokens / unit) as usize;
        self.probes_jointly = topology.dialect.has(EngineDialect::PARTIAL_HITS_ARE_PROBED);
        self.merge(topology, query.unknown);
        self.step = (alignment(topology) / unit).max(1) as usize;
        for spec in &self.specs {
            self.step = lcm(self.step, spec.grain);
        }
        let after = (topology.dialect)
            .has(EngineDialect::LOOKAHEAD_BEFORE_THE_LAST_TOKEN)
            .then_some(topology.hash_lookahead);
        let last = query.num_tokens.saturating_sub(1 + after.unwrap_or(0));
        self.limit = (last / unit) as usize;
        self.apply_static_flags(topology);
    }

    fn merge(&mut self, topology: &Topology, unknown: Unknown) {
        let shared = topology
            .dialect
            .has(EngineDialect::EAGLE_SHARED_BY_EQUAL_SPECS);
        for group in &topology.groups {
            let Some(demand) = demand(group, topology, unknown) else {
                self.spec_of.push(None);
                continue;
            };
            let same = |spec: &Spec| {
                spec.group.is_looked_up_with(group) && (shared || spec.group.eagle == group.eagle)
            };
            let index = self.specs.iter().position(same).unwrap_or_else(|| {
                self.specs.push(self.spec(topology, *group, demand));
                self.specs.len() - 1
            });
            self.specs[index].group.eagle |= group.eagle;
            self.spec_of.push(Some(index));
        }
    }

    fn spec(&self, topology: &Topology, group: GroupSpec, demand: GroupDemand) -> Spec {
        Spec {
            group,
            demand,
            block: (group.block_size / self.unit) as usize,
            grain: (grain_of(&group, topology, demand) / self.unit) as usize,
        }
    }

    /// Lets the next look read to the end of the request, whatever the engine would probe.
    pub(super) fn look_at_all(&mut self) {
        self.limit = self.units;
        self.probe_limit = self.units;
        self.probes_jointly = false;
    }

    /// The full-attention specs with their indices. Everything after their reach can be skipped.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (usize, &Spec)> {
        self.specs
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.demand == GroupDemand::Prefix)
    }

    /// The other specs with their indices.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, &Spec)> {
        self.specs
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.demand != GroupDemand::Prefix)
    }

    /// The groups that share spec `index`.
    pub(super) fn members(&self, index: usize) -> impl Iterator<Item = usize> + Clone {
        let shares = move |spec: &Option<usize>| *spec == Some(index);
        self.spec_of
            .iter()
            .enumerate()
            .filter(move |(_, s)| shares(s))
            .map(|(group, _)| group)
    }

    /// Converts units to tokens. The result fits, because an answer never exceeds `num_tokens`.
    pub(super) fn tokens(&self, units: usize) -> u32 {
        u32::try_from(units).map_or(u32::MAX, |units| units * self.unit)
    }

    /// Applies the flags that change a demand or a limit, whatever is held.
    fn apply_static_flags(&mut self, topology: &Topology) {
        let dialect = topology.dialect;
        if dialect.has(EngineDialect::WINDOW_OF_ONE_NEEDS_A_BLOCK) {
            for spec in self.specs.iter_mut().filter(|spec| spec.extra() == 0) {
                if let GroupDemand::Window { blocks: blocks @ 0 } = &mut spec.demand {
                    *blocks = 1;
                    spec.group.window = Some(2); // The smallest window that needs a block.
                }
            }
        }
        let within_prompt = self.limit;
        if dialect.has(EngineDialect::EAGLE_SINGLE_GROUP_WITHIN_PROMPT)
            && topology.groups.len() == 1
        {
            for spec in &self.specs {
                self.limit = within_prompt.saturating_sub(spec.extra() * spec.grain);
            }
        }
        self.probe_limit = self.units;
        if dialect.has(EngineDialect::PARTIAL_HITS_ARE_PROBED) {
            let margin = self
                .prefixes()
                .next()
                .map_or(0, |(_, s)| s.extra() * s.grain);
            self.probe_limit = self.units.min(within_prompt + margin);
        }
    }

    /// Whether a flag can change the answer in a way that depends on the engine's own search.
    pub(super) fn needs_emulation(&self, topology: &Topology) -> bool {
        let dialect = topology.dialect;
        let is_eagle_window = |s: &Spec| s.group.kind.is_window() && s.group.eagle;
        let mut specs = self.specs.iter();
        let several = topology.groups.len() > 1;
        (dialect.has(EngineDialect::WINDOW_OF_ONE_NEEDS_A_BLOCK)
            && several
            && specs
                .clone()
                .any(|s| is_eagle_window(s) && s.group.window == Some(1)))
            || (dialect.has(EngineDialect::CHUNK_START_OF_THE_CANDIDATE)
                && specs.clone().any(|s| {
                    matches!(s.demand, GroupDemand::Chunk { tokens } if tokens != ENDLESS_CHUNK
                        && tokens % s.group.block_size != 0)
                }))
            || (dialect.has(EngineDialect::EAGLE_UNEQUAL_BLOCKS_REALIGN)
                && several
                && specs
                    .clone()
                    .any(|s| is_eagle_window(s) && s.block != self.step))
            || (dialect.has(EngineDialect::EAGLE_THREE_SPECS_UNVERIFIED)
                && specs
                    .clone()
                    .filter(|s| s.group.eagle && s.demand != GroupDemand::Prefix)
                    .count()
                    > 1)
            || (dialect.has(EngineDialect::PARTIAL_HITS_ARE_PROBED)
                && specs.any(Spec::is_fine)
                && self
                    .specs
                    .iter()
                    .filter(|s| s.demand == GroupDemand::Prefix)
                    .count()
                    > 1)
    }
}

/// The number of tokens that every answer is a multiple of, apart from the groups' own blocks.
pub(crate) fn alignment(topology: &Topology) -> u32 {
    if topology.partial_hits {
        topology.hash_block_size
    } else {
        topology.alignment
    }
}

/// The least common multiple. If it overflows it saturates, and no request is that long.
pub(super) fn lcm(a: usize, b: usize) -> usize {
    (a / gcd(a, b).max(1)).saturating_mul(b)
}
