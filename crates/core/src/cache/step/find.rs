//! What a request can reuse: presence in the pool gives, by the resume rule, a boundary and its
//! blocks.

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::io::Match;
use crate::blocks::{BlockId, EntryId, NULL_BLOCK, Pool};
use crate::cache::group::{Group, Kind};
use crate::cache::request::Request;
use crate::rule::{self, Holdings, Query, Unknown, first_read, needed};
use crate::spec::{EngineDialect, GroupSpec, SpecKind, Topology};

/// The request and the pool for one look-up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup<'a> {
    request: &'a Request,
    pool: &'a Pool,
    /// Tokens per hash.
    unit: u32,
}

/// How far the engine's search last read a group, for dialects in which this decides which blocks
/// are taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastLook {
    /// The candidate length of that look, in tokens.
    reads_to: u32,
    /// Whether the look dropped a unit for a draft head.
    drops: bool,
}

impl Lookup<'_> {
    /// The block of a group that is found by the hash of the first `tokens` tokens.
    fn holder(&self, group: u16, tokens: u32) -> Option<BlockId> {
        self.holder_after(&mut None, group, tokens)
    }

    /// The same as `holder`, but the entry after `previous` is tried first. `previous` becomes the
    /// entry that was found.
    fn holder_after(
        &self,
        previous: &mut Option<EntryId>,
        group: u16,
        tokens: u32,
    ) -> Option<BlockId> {
        let hash = self.request.hash_at(tokens, self.unit)?;
        let entry = self.pool.index.find_after(*previous, hash)?;
        *previous = Some(entry);
        let block = self.pool.index.row(entry)[usize::from(group)];
        (block != NULL_BLOCK).then_some(block)
    }
}

/// The entries of a request's first hashes in several pools.
#[derive(Debug, Default)]
pub(super) struct FoundEntries {
    num_pools: usize,
    /// Those of the first hash, then those of the second, and so on.
    entries: Vec<Option<EntryId>>,
}

impl FoundEntries {
    /// The entry of a hash in a pool. Hashes are counted from 1 on.
    pub(super) fn of(&self, pool: usize, hash: u32) -> Option<EntryId> {
        let at = (hash as usize).checked_sub(1)? * self.num_pools + pool;
        self.entries.get(at).copied().flatten()
    }
}

/// Looks requests up, and keeps the buffers for that.
#[derive(Debug, Clone)]
pub(in crate::cache) struct Finder {
    topology: Topology,
    /// The same without an engine's departures from the rule.
    pure: Topology,
    /// The same with boundaries only where blocks of all groups end.
    pure_whole: Topology,
    /// The groups that an engine looks up first: the first full group, or else the first group,
    /// with its equals.
    lead: Topology,
    lead_groups: Vec<usize>,
    /// For each group, the groups that are looked up together with it.
    members: Vec<Vec<u16>>,
    /// Whether the answer depends on how the engine searches, so its search has to be followed.
    follows_search: bool,
    unit: u32,
    replay_tokens: u32,
    /// Whether a hash that the lead groups do not hold ends every prefix.
    stops: bool,
    /// The number of hashes after such a gap that the groups of a draft head may still need.
    margin: usize,
    whole: Vec<Vec<u64>>,
    partial: Vec<Vec<u64>>,
    scratch: rule::Scratch,
}

const ME: u64 = 1;

type Slices<'a> = SmallVec<[&'a [u64]; 8]>;

fn slices(words: &[Vec<u64>]) -> Slices<'_> {
    words.iter().map(Vec::as_slice).collect()
}

fn query(request: &Request) -> Query {
    Query {
        num_tokens: request.num_tokens(),
        mask: ME,
        unknown: Unknown::Strict,
    }
}

/// A topology whose boundaries are multiples of its alignment, also if hits may end inside blocks: a
/// further group has such blocks, and reads none.
fn where_blocks_end(topology: &Topology) -> Topology {
    let mut topology = topology.clone();
    topology.groups.push(GroupSpec {
        kind: SpecKind::SlidingWindow,
        window: Some(1),
        ..GroupSpec::new(SpecKind::FullAttention, topology.alignment)
    });
    topology
}

impl Finder {
    pub(in crate::cache) fn new(topology: &Topology, groups: &[Group]) -> Self {
        let mut topology = topology.clone();
        let replay_tokens = std::mem::take(&mut topology.replay_tokens);
        for (spec, group) in topology.groups.iter_mut().zip(groups) {
            spec.prefix_cacheable = group.cacheable;
        }
        let specs = &topology.groups;
        let like = |spec: &GroupSpec| -> Vec<u16> {
            let same = (0u16..)
                .zip(specs)
                .filter(|(_, other)| other.is_looked_up_with(spec));
            same.map(|(index, _)| index).collect()
        };
        let members: Vec<Vec<u16>> = specs.iter().map(like).collect();
        let mut cacheable = (0..specs.len()).filter(|&g| specs[g].prefix_cacheable);
        let first = cacheable.clone().find(|&g| specs[g].kind.is_full());
        let lead = first.or_else(|| cacheable.next());
        let lead_groups: Vec<usize> = lead
            .map(|lead| members[lead].iter().map(|&g| usize::from(g)).collect())
            .unwrap_or_default();
        let lead = Topology {
            groups: lead_groups.iter().map(|&g| specs[g]).collect(),
            dialect: topology
                .dialect
                .without(EngineDialect::EAGLE_SINGLE_GROUP_WITHIN_PROMPT),
            ..topology.clone()
        };
        let pure = Topology {
            dialect: EngineDialect::PURE,
            ..topology.clone()
        };
        let num_groups = specs.len();
        let unit = topology.hash_block_size;
        let is_dense = |&g: &usize| specs[g].kind.is_full() && specs[g].block_size == unit;
        let blocks = specs.iter().map(|spec| spec.block_size.div_ceil(unit));
        Self {
            stops: !lead_groups.is_empty() && lead_groups.iter().all(is_dense),
            margin: blocks.max().unwrap_or(0) as usize,
            unit,
            follows_search: rule::is_search_visible(&topology),
            pure_whole: where_blocks_end(&pure),
            pure,
            topology,
            lead,
            lead_groups,
            members,
            replay_tokens,
            whole: vec![Vec::new(); num_groups],
            partial: vec![Vec::new(); num_groups],
            scratch: rule::Scratch::default(),
        }
    }

    /// Finds what a request can reuse. Only buffers are changed.
    pub(in crate::cache) fn find(
        &mut self,
        request: &Request,
        groups: &[Group],
        pool: &Pool,
    ) -> Match {
        if !groups.iter().any(|group| group.cacheable) {
            return Match::default();
        }
        let (hit, longest) = if self.follows_search {
            let search = self.search(request, groups, pool);
            (search.num_tokens, search.longest)
        } else {
            self.look_up(request, groups, pool);
            (self.resume(request), self.resume_lead(request))
        };
        Match {
            num_tokens: hit.saturating_sub(self.replay_tokens),
            junction: if longest > hit && groups.len() > 1 {
                longest
            } else {
                0
            },
        }
    }

    /// The course of the engine's own search for a request.
    fn search(&mut self, request: &Request, groups: &[Group], pool: &Pool) -> rule::EngineSearch {
        self.look_up(request, groups, pool);
        let (whole, partial) = (slices(&self.whole), slices(&self.partial));
        let held = Holdings {
            unit: self.unit,
            whole: &whole,
            partial: &partial,
        };
        rule::search(&self.topology, &held, query(request), &mut self.scratch)
    }

    /// For each group, the engine's last look; empty if no engine's search is followed.
    pub(super) fn looks(
        &mut self,
        request: &Request,
        groups: &[Group],
        pool: &Pool,
    ) -> Vec<Option<LastLook>> {
        if !self.follows_search {
            return Vec::new();
        }
        let last = self.search(request, groups, pool).last.into_iter();
        let named = |(reads_to, drops)| LastLook { reads_to, drops };
        last.map(|look| look.map(named)).collect()
    }

    /// The look-up of a request's hashes in the pool.
    pub(super) fn lookup<'a>(&self, request: &'a Request, pool: &'a Pool) -> Lookup<'a> {
        Lookup {
            request,
            pool,
            unit: self.unit,
        }
    }

    fn resume(&mut self, request: &Request) -> u32 {
        let (whole, partial) = (slices(&self.whole), slices(&self.partial));
        let held = Holdings {
            unit: self.unit,
            whole: &whole,
            partial: &partial,
        };
        rule::resume(&self.topology, &held, query(request), &mut self.scratch)[0]
    }

    fn resume_lead(&mut self, request: &Request) -> u32 {
        let whole: Slices<'_> = self
            .lead_groups
            .iter()
            .map(|&g| self.whole[g].as_slice())
            .collect();
        let partial: Slices<'_> = self
            .lead_groups
            .iter()
            .map(|&g| self.partial[g].as_slice())
            .collect();
        let held = Holdings {
            unit: self.unit,
            whole: &whole,
            partial: &partial,
        };
        rule::resume(&self.lead, &held, query(request), &mut self.scratch)[0]
    }

    /// The boundary at which a request could resume by the rule, before replay, if one pool held
    /// what all of these hold, perhaps only where blocks of all groups end; and the entries of its
    /// hashes in each. Only buffers are changed.
    pub(super) fn find_over(
        &mut self,
        request: &Request,
        groups: &[Group],
        pools: &[&Pool],
        whole_blocks: bool,
    ) -> (u32, FoundEntries) {
        if !groups.iter().any(|group| group.cacheable) {
            return (0, FoundEntries::default());
        }
        let found = self.look_up_in_all(request, groups, pools);
        let (whole, partial) = (slices(&self.whole), slices(&self.partial));
        let held = Holdings {
            unit: self.unit,
            whole: &whole,
            partial: &partial,
        };
        let topology = if whole_blocks {
            &self.pure_whole
        } else {
            &self.pure
        };
        let ends = rule::resume(topology, &held, query(request), &mut self.scratch);
        (ends[0], found)
    }

    /// Does what `look_up` does, for several pools that count as one.
    fn look_up_in_all(
        &mut self,
        request: &Request,
        groups: &[Group],
        pools: &[&Pool],
    ) -> FoundEntries {
        self.clear_words(request);
        let num_pools = pools.len();
        let mut end = request.hashes.len();
        let mut entries = Vec::with_capacity(end * num_pools);
        let mut previous: SmallVec<[Option<EntryId>; 4]> = SmallVec::from_elem(None, num_pools);
        for (at, hash) in request.hashes.iter().enumerate() {
            if at == end {
                break;
            }
            for (pool, previous) in pools.iter().zip(&mut previous) {
                let entry = pool.index.find_after(*previous, hash);
                *previous = entry.or(*previous);
                entries.push(entry);
            }
            let found = pools.iter().zip(&entries[at * num_pools..]);
            let rows = found.filter_map(|(pool, entry)| Some(pool.index.row((*entry)?)));
            let is_held = |&g: &usize| rows.clone().any(|row| row[g] != NULL_BLOCK);
            if self.stops && !self.lead_groups.iter().all(is_held) {
                end = end.min(at + 1 + self.margin);
            }
            for row in rows {
                self.note(at, groups, row);
            }
        }
        FoundEntries { num_pools, entries }
    }

    fn clear_words(&mut self, request: &Request) {
        for words in self.whole.iter_mut().chain(&mut self.partial) {
            words.clear();
            words.resize(request.hashes.len(), 0);
        }
    }

    /// Writes one word per hash and group, which says whether an entry ends there.
    fn look_up(&mut self, request: &Request, groups: &[Group], pool: &Pool) {
        self.clear_words(request);
        let num_hashes = request.hashes.len();
        let mut end = num_hashes;
        let mut previous = None;
        for (at, hash) in request.hashes.iter().enumerate() {
            if at == end {
                break;
            }
            let entry = pool.index.find_after(previous, hash);
            previous = entry.or(previous);
            let row = entry.map(|entry| pool.index.row(entry));
            if self.stops && row.is_none_or(|row| !self.is_held_by_lead(row)) {
                // After a gap of the full groups, only the unit that a draft head drops is still
                // read.
                end = end.min(at + 1 + self.margin);
            }
            if let Some(row) = row {
                self.note(at, groups, row);
            }
        }
    }

    /// Writes which groups have an entry that ends with a hash.
    #[inline]
    fn note(&mut self, at: usize, groups: &[Group], row: &[BlockId]) {
        let tokens = (at + 1) * self.unit as usize;
        for (group, &block) in groups.iter().zip(row) {
            if block != NULL_BLOCK {
                let is_whole = tokens.is_multiple_of(group.block as usize);
                let words = if is_whole {
                    &mut self.whole
                } else {
                    &mut self.partial
                };
                words[usize::from(group.index)][at] = ME;
            }
        }
    }

    fn is_held_by_lead(&self, row: &[BlockId]) -> bool {
        self.lead_groups.iter().all(|&g| row[g] != NULL_BLOCK)
    }

    /// The blocks that a group gives a request that resumes at `tokens`, from position 0 on. The
    /// null block stands where the group needs none. `Err` has the position of a needed block that
    /// is not held.
    pub(super) fn blocks(
        &self,
        lookup: Lookup<'_>,
        group: &Group,
        tokens: u32,
        look: Option<LastLook>,
        out: &mut Vec<BlockId>,
    ) -> Result<(), u32> {
        if tokens == 0 || !group.cacheable {
            return Ok(());
        }
        let start = out.len();
        let count = tokens.div_ceil(group.block);
        let first = first_needed(group, tokens, look).min(count);
        out.resize(start + first as usize, NULL_BLOCK);
        let (mut missing, mut previous) = (None, None);
        for position in first..count {
            let end = (position + 1) * group.block;
            let is_state = matches!(group.kind, Kind::State { .. });
            let found = if is_state || end <= tokens {
                lookup.holder_after(&mut previous, group.index, end.min(tokens))
            } else {
                let furthest = look.map_or(end, |look| end.min(look.reads_to));
                self.tail_holder(lookup, group, tokens..=furthest)
            };
            missing = missing.or(found.is_none().then_some(position));
            out.push(found.unwrap_or(NULL_BLOCK));
        }
        missing.map_or(Ok(()), Err)
    }

    /// A block that holds at least the first `range.start()` tokens, which end inside it. Of all
    /// boundaries in the range that all groups hold which are looked up together, the block has the
    /// furthest.
    fn tail_holder(
        &self,
        lookup: Lookup<'_>,
        group: &Group,
        range: RangeInclusive<u32>,
    ) -> Option<BlockId> {
        let members = &self.members[usize::from(group.index)];
        (range.start() / self.unit..=range.end() / self.unit)
            .rev()
            .map(|unit| unit * self.unit)
            .find(|&end| members.iter().all(|&g| lookup.holder(g, end).is_some()))
            .and_then(|end| lookup.holder(group.index, end))
    }
}

/// The first block of a hit that a group takes; the engine's last look may change it.
fn first_needed(group: &Group, tokens: u32, look: Option<LastLook>) -> u32 {
    let first = needed(&group.spec, tokens).start;
    match (group.kind, look) {
        // The engine takes the chunk of the last candidate, which need not be the hit's.
        (Kind::Chunk { .. }, Some(look)) => first_read(&group.spec, look.reads_to) / group.block,
        // The window of one token needs no block, but the search finds one before it stops, unless
        // a unit was dropped.
        (Kind::Window { tokens: 1, .. }, Some(LastLook { drops: false, .. })) => {
            first.saturating_sub(1)
        }
        _ => first,
    }
}
