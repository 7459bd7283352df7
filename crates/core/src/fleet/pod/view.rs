//! What the rule is evaluated with for one pod: its groups as configured, or as learned so far.

use super::catalog::{Catalog, LearnedGroup, UNGROUPED};
use crate::divisors::{gcd, lcm};
use crate::fleet::keys::step::KeyStep;
use crate::fleet::silent::{CERTAIN, LIKELY, Silent};
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

const REPORTS: &str = "report_mode = \"full\", so a copy may be counted more than once; set \"incremental\" \
                       if the engine does not announce reused blocks again";
const EXTRA_KEYS: &str = "extra_keys is set, so what is counted may be held for another key; set \
                          event_format = \"dynamo\" here and in the engine, or unset it if no request \
                          has an extra_key";
const AWAITED: &str = "a group of the model_config has told nothing yet; if it never does, list the \
                       pod's groups";
const GAP: &str = "an index is missing among the groups that events told of; if it stays so, list \
                   the pod's groups";
const UNGROUPED_EVENTS: &str = "events have no group_idx, so they may be of several groups; list the \
                                pod's groups";
const SHORT: &str = "no prompt was of four blocks yet, so a group with larger blocks may have told \
                     nothing; until one is, list the pod's groups";
const INSIDE: &str = "states are saved inside blocks, or are told by hash alone and may be, so hits may \
                      end there; set partial_hits to true or false";
const UNTOLD: &str = "the engine does not tell of all of its groups";
const UNKNOWN_GROUP: &str = "the kind, window or chunk of a group is not known; give the pod's \
                             model_config, or list its groups";

/// What the rule is evaluated with for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::fleet) struct View {
    /// The groups, the alignment and the dialect. The presence of group `i` is kept under
    /// `groups[i]`.
    pub topology: Topology,
    /// The index on the wire of each group of the topology.
    pub groups: Vec<u16>,
    /// Whether nothing can be promised, so lower bounds are 0.
    pub lower_is_zero: bool,
    /// Whether nothing can be excluded, so upper bounds are the whole aligned prompt.
    pub upper_is_everything: bool,
    /// Whether some kind or chunk is unknown, so the rule differs between lower and upper bounds.
    pub has_unknown: bool,
    /// Group 0, if it exists and its kind is not known.
    pub undeclared: Option<u16>,
    /// The same pod with groups that no event tells of, if it has any.
    pub silent: Option<Box<SilentViews>>,
    /// The same pod with hits inside blocks, if nobody said whether its engine has them and they
    /// would make a difference.
    pub inside: Option<Box<View>>,
    /// Tokens per page, where chains stand under salts made of their first hashes; else 0.
    pub space_page: u32,
}

/// A pod with what is inferred of groups that no event tells of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::fleet) struct SilentViews {
    /// With what is certain of them.
    pub certain: View,
    /// With what is likely of them.
    pub likely: View,
}

impl View {
    fn of(topology: Topology, groups: Vec<u16>) -> Self {
        Self {
            topology,
            groups,
            lower_is_zero: false,
            upper_is_everything: false,
            has_unknown: false,
            undeclared: None,
            silent: None,
            inside: None,
            space_page: 0,
        }
    }

    /// The largest number of tokens that every boundary is a multiple of that the rule asks for.
    #[must_use]
    pub(in crate::fleet) fn unit(&self) -> u32 {
        let hash = if self.topology.partial_hits {
            self.topology.hash_block_size
        } else {
            0
        };
        let groups = self.topology.groups.iter().filter(|g| g.prefix_cacheable);
        let blocks = groups.map(|g| g.block_size).fold(0, gcd);
        gcd(gcd(blocks, self.topology.alignment), hash).max(1)
    }

    /// The same of every boundary at which a hash may stand, given the catalog's `grain`: hashes stand
    /// inside blocks too.
    #[must_use]
    pub(in crate::fleet) fn finest_unit(&self, grain: u32) -> u32 {
        let inside = self.inside.as_ref().map_or(0, |inside| inside.unit());
        gcd(gcd(self.unit(), inside), grain)
    }

    /// The boundaries that the rule asks for, of prompts without an adapter.
    #[must_use]
    pub(in crate::fleet) fn step(&self) -> KeyStep {
        KeyStep {
            unit: self.unit(),
            lookahead: self.topology.hash_lookahead,
            page: self.space_page,
        }
    }

    /// Leaves out all groups but those of full attention.
    pub(in crate::fleet) fn keep_full(&mut self) {
        let is_full = |group: &GroupSpec| group.kind.is_full();
        let mut keep = (self.topology.groups.iter().map(is_full).collect::<Vec<_>>()).into_iter();
        self.groups.retain(|_| keep.next() == Some(true));
        self.topology.groups.retain(is_full);
    }
}

impl Catalog {
    /// The view of a pod whose copies in these groups may be placeholders; `None` while no group is
    /// known, which means that the pod holds nothing.
    #[must_use]
    pub(in crate::fleet) fn view(&self, placeholders: &[u16]) -> Option<View> {
        let mut view = match self.configured_groups() {
            Some(groups) => self.configured_view(groups),
            None => self.learned_view()?,
        };
        view.topology.hash_lookahead = self.lookahead();
        view.lower_is_zero |= self.counts_unreliable_copies();
        if self.config.hidden.dynamo_format {
            view.space_page = view.topology.groups.first().map_or(0, |g| g.block_size);
        }
        let groups = &view.topology.groups;
        view.has_unknown = groups.iter().any(|g| {
            g.prefix_cacheable
                && (g.kind == SpecKind::Unknown
                    || (g.kind == SpecKind::ChunkedLocalAttention && g.chunk.is_none()))
        });
        view.silent = self.silent().and_then(|_| {
            let certain = self.silent_view(&view, CERTAIN)?;
            let likely = self.silent_view(&view, LIKELY)?;
            Some(Box::new(SilentViews { certain, likely }))
        });
        view.inside = self.inside_view(&view, placeholders).map(Box::new);
        Some(view)
    }

    /// The boundaries at which the hashes of a pod with this view may stand.
    #[must_use]
    pub(in crate::fleet) fn finest_step(&self, view: &View) -> KeyStep {
        KeyStep {
            unit: view.finest_unit(self.grain()),
            ..view.step()
        }
    }

    /// The same pod with hits inside blocks. Only a state between two multiples of the alignment can
    /// make a difference, because a hit ends where each group of states has one. A placeholder may be
    /// of a state at any hash. An engine whose windows have larger blocks than its hashes has no such
    /// hits.
    fn inside_view(&self, view: &View, placeholders: &[u16]) -> Option<View> {
        if !self.config.may_hit_inside {
            return None;
        }
        let grains = || {
            let groups = view.topology.groups.iter().zip(&view.groups);
            let reused = groups.filter(|(g, _)| g.prefix_cacheable && !g.kind.is_never_reused());
            reused.map(|(g, &index)| (g, index, self.grain_of(index, g.block_size)))
        };
        let finest = grains().map(|(.., grain)| grain).fold(0, gcd);
        let hash = gcd(finest, view.topology.hash_block_size);
        let is_inside = |(g, index, grain): (&GroupSpec, u16, u32)| {
            let step = if placeholders.contains(&index) {
                hash
            } else {
                grain
            };
            g.kind == SpecKind::Mamba && !step.is_multiple_of(view.topology.alignment)
        };
        let is_able = |(g, ..): (&GroupSpec, u16, u32)| {
            g.kind.is_full() || g.kind == SpecKind::Mamba || g.block_size <= finest
        };
        if !(grains().any(is_inside) && grains().all(is_able)) {
            return None;
        }
        let mut inside = view.clone();
        inside.topology.partial_hits = true;
        inside.topology.hash_block_size = hash;
        Some(inside)
    }

    /// The greatest common divisor of all sizes that stores of a group had.
    fn grain_of(&self, group: u16, block_size: u32) -> u32 {
        if self.is_configured() {
            return self.sizes.grain(group, block_size);
        }
        let learned = self.learned.get(usize::from(group)).copied().flatten();
        learned
            .or(self.ungrouped)
            .map_or(block_size, |known| known.grain)
    }

    /// Whether copies are counted that a request need not find.
    fn counts_unreliable_copies(&self) -> bool {
        let hidden = self.config.hidden;
        self.config.full_reports || (hidden.extra_keys && !hidden.dynamo_format)
    }

    /// What is known of groups that no event tells of, if the pod has any.
    pub(in crate::fleet) fn silent(&self) -> Option<Silent> {
        if !self.config.publisher.tells_only_full() || self.shows_components {
            return None;
        }
        Silent::new(self.topology()?, self.config.silent)
    }

    fn silent_view(&self, told: &View, base: u16) -> Option<View> {
        let (topology, groups) = Silent::whole(self.configured_groups()?, &told.topology, base)?;
        Some(View {
            topology,
            groups,
            lower_is_zero: self.counts_unreliable_copies(),
            ..told.clone()
        })
    }

    fn configured_view(&self, groups: &[GroupSpec]) -> View {
        let topology = self.topology().cloned();
        let topology = topology.unwrap_or_else(|| bare_topology(groups.to_vec()));
        let mut view = View::of(topology, (0u16..).take(groups.len()).collect());
        let is_undeclared = groups.first().is_some_and(|g| g.kind == SpecKind::Unknown);
        view.undeclared = is_undeclared.then_some(0);
        if self.config.publisher.tells_only_full() || self.shows_components {
            view.keep_full();
            view.lower_is_zero = view.groups.len() < groups.len();
        }
        view
    }

    /// Why the groups make the pod's answers bounds, in words that name the remedy; empty if they
    /// do not. The pod has this view.
    pub(in crate::fleet) fn reason_of_bound(&self, view: &View) -> &'static str {
        let is_learned = !self.is_configured();
        let doubts = [
            (self.config.full_reports, REPORTS),
            (self.counts_unreliable_copies(), EXTRA_KEYS),
            (is_learned && self.awaits_groups(), AWAITED),
            (is_learned && self.learned.contains(&None), GAP),
            (is_learned && self.has_ungrouped_doubt(), UNGROUPED_EVENTS),
            (is_learned && self.may_hide_groups(), SHORT),
            (view.lower_is_zero, UNTOLD),
            (view.has_unknown, UNKNOWN_GROUP),
            (view.inside.is_some(), INSIDE),
        ];
        let doubt = doubts.iter().find(|(is_so, _)| *is_so);
        doubt.map_or("", |(_, text)| text)
    }

    /// Whether the operator's model has a group that no event has told of yet.
    fn awaits_groups(&self) -> bool {
        let told = || self.learned.iter().flatten().chain(&self.ungrouped);
        let groups = &self.config.model_groups;
        (groups.iter()).any(|&group| !told().any(|known| known.is_of(group)))
    }

    /// Whether events lack an index, and nothing says which group they are of.
    fn has_ungrouped_doubt(&self) -> bool {
        let is_alone = self.learned.is_empty();
        let is_told = |known: LearnedGroup| known.kind.is_some_and(|k| k != SpecKind::Unknown);
        (self.ungrouped).is_some_and(|known| !is_alone || !is_told(known))
    }

    /// Whether only short prompts were stored, so a group may have told nothing of itself, or not
    /// of a whole block.
    fn may_hide_groups(&self) -> bool {
        !self.config.publisher.tells_only_full() && !self.reach.is_enough()
    }

    fn learned_view(&self) -> Option<View> {
        let mut groups = Vec::new();
        let mut indices = Vec::new();
        for (index, known) in (0u16..).zip(&self.learned) {
            if let Some(known) = known {
                groups.push(self.learned_group(*known));
                indices.push(index);
            }
        }
        // A gap stands for groups about which nothing is known yet. They may hold anything or
        // nothing.
        let has_gap = groups.len() < self.learned.len();
        let mut upper_is_everything = false;
        let lower_is_zero =
            has_gap || self.awaits_groups() || self.has_ungrouped_doubt() || self.may_hide_groups();
        if let Some(known) = self.ungrouped {
            let kind = known.kind.filter(|k| *k != SpecKind::Unknown);
            upper_is_everything =
                (kind.is_none() && !self.config.publisher.tells_only_full()) || !groups.is_empty();
            let assumed = LearnedGroup {
                kind: kind.or(Some(SpecKind::FullAttention)),
                ..known
            };
            groups.push(self.learned_group(assumed));
            indices.push(UNGROUPED);
        }
        if groups.is_empty() {
            return None;
        }
        let first = self.learned.first().copied().flatten();
        let is_undeclared = first.is_some_and(|group| group.kind.is_none());
        let template = self.config.topology.as_ref();
        let mut topology = bare_topology(groups);
        topology.hash_block_size = self.grain().max(1);
        if let Some(template) = template {
            topology.partial_hits = template.partial_hits;
            let may_hit_inside = template.partial_hits || self.config.may_hit_inside;
            if may_hit_inside && template.hash_block_size > 1 {
                // Hits may end where nothing was stored yet. 1 stands for a size that was not
                // given.
                topology.hash_block_size = gcd(topology.hash_block_size, template.hash_block_size);
            }
            topology.replay_tokens = template.replay_tokens;
            topology.dialect = template.dialect;
        }
        Some(View {
            lower_is_zero,
            upper_is_everything,
            undeclared: is_undeclared.then_some(0),
            ..View::of(topology, indices)
        })
    }
}

impl LearnedGroup {
    /// Whether this is the group of a model of this kind and window. An engine may keep the blocks
    /// of a window for ever, as full attention that still has the window.
    fn is_of(&self, (kind, window): (SpecKind, Option<u32>)) -> bool {
        let is_kind =
            (self.kind).is_some_and(|own| own == kind || (own.is_full() && kind.is_full()));
        let is_window = window.is_some() && self.window == window;
        is_window || (is_kind && (window.is_none() || self.window.is_none()))
    }
}

fn bare_topology(groups: Vec<GroupSpec>) -> Topology {
    let cacheable = || {
        groups
            .iter()
            .filter(|g| g.prefix_cacheable && !g.kind.is_never_reused())
    };
    let alignment = lcm(cacheable().map(|g| g.block_size));
    let hash_block_size = cacheable().map(|g| g.block_size).fold(0, gcd).max(1);
    Topology {
        alignment,
        hash_block_size,
        dialect: EngineDialect::VLLM,
        ..Topology::new(groups)
    }
}
