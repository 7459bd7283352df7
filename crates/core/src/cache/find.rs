//! What a request can reuse: presence in the pool -> the resume rule -> a boundary, and its blocks.

use super::group::{Group, Kind};
use super::pool::{BlockId, NULL_BLOCK, Pool};
use super::request::Request;
use crate::rule::{self, Held, Query, Unknown};
use crate::spec::{EngineDialect, Topology};

/// How much a request can reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Match {
    /// Tokens that every group can resume behind.
    pub num_tokens: u32,
    /// Where the groups that are asked first could resume, if that is further; else 0.
    pub junction: u32,
}

/// Looks requests up; keeps its buffers.
#[derive(Debug)]
pub(super) struct Finder {
    topology: Topology,
    /// The groups that an engine asks first: the first full one, else the first, and its equals.
    lead: Topology,
    lead_groups: Vec<usize>,
    unit: u32,
    whole: Vec<Vec<u64>>,
    partial: Vec<Vec<u64>>,
    scratch: rule::Scratch,
}

const ME: u64 = 1;

impl Finder {
    pub(super) fn new(topology: &Topology, groups: &[Group]) -> Self {
        let mut topology = topology.clone();
        for (spec, group) in topology.groups.iter_mut().zip(groups) {
            spec.prefix_cacheable = group.cacheable;
        }
        let cacheable = || topology.groups.iter().filter(|g| g.prefix_cacheable);
        let lead = cacheable()
            .find(|g| g.kind.is_full())
            .or(cacheable().next());
        let same = |spec: &crate::spec::GroupSpec| {
            lead.is_some_and(|lead| {
                *lead
                    == crate::spec::GroupSpec {
                        eagle: lead.eagle,
                        ..*spec
                    }
            })
        };
        let lead_groups: Vec<usize> = (0..topology.groups.len())
            .filter(|&g| same(&topology.groups[g]))
            .collect();
        let lead = Topology {
            groups: lead_groups.iter().map(|&g| topology.groups[g]).collect(),
            dialect: EngineDialect {
                eagle_single_group_within_prompt: false,
                ..topology.dialect
            },
            replay_tokens: 0,
            ..topology.clone()
        };
        let num_groups = topology.groups.len();
        Self {
            unit: topology.hash_block_size,
            topology,
            lead,
            lead_groups,
            whole: vec![Vec::new(); num_groups],
            partial: vec![Vec::new(); num_groups],
            scratch: rule::Scratch::default(),
        }
    }

    /// Changes nothing but buffers.
    pub(super) fn find(&mut self, request: &Request, groups: &[Group], pool: &Pool) -> Match {
        if !groups.iter().any(|group| group.cacheable) {
            return Match::default();
        }
        self.look_up(request, groups, pool);
        let query = Query {
            num_tokens: request.num_tokens(),
            mask: ME,
            unknown: Unknown::Strict,
        };
        let whole: Vec<&[u64]> = self.whole.iter().map(Vec::as_slice).collect();
        let partial: Vec<&[u64]> = self.partial.iter().map(Vec::as_slice).collect();
        let held = Held {
            unit: self.unit,
            whole: &whole,
            partial: &partial,
        };
        let num_tokens = rule::resume(&self.topology, &held, query, &mut self.scratch)[0];
        if groups.len() == 1 {
            return Match {
                num_tokens,
                junction: 0,
            };
        }
        let whole: Vec<&[u64]> = self.lead_groups.iter().map(|&g| whole[g]).collect();
        let partial: Vec<&[u64]> = self.lead_groups.iter().map(|&g| partial[g]).collect();
        let held = Held {
            unit: self.unit,
            whole: &whole,
            partial: &partial,
        };
        let lead = rule::resume(&self.lead, &held, query, &mut self.scratch)[0];
        Match {
            num_tokens,
            junction: if lead > num_tokens { lead } else { 0 },
        }
    }

    /// One word per hash and group: whether an entry ends there.
    fn look_up(&mut self, request: &Request, groups: &[Group], pool: &Pool) {
        for words in self.whole.iter_mut().chain(&mut self.partial) {
            words.clear();
        }
        let is_fine = |group: &Group| group.block > self.unit;
        let any_fine = groups.iter().any(|group| group.cacheable && is_fine(group));
        let absent = [NULL_BLOCK; 64];
        for (hash, end) in request.hashes.iter().zip(1..) {
            let entry = pool.index.find(hash);
            let row = entry.map_or(&absent[..groups.len()], |entry| pool.index.row(entry));
            for (group, &block) in groups.iter().zip(row) {
                let g = usize::from(group.index);
                let word = u64::from(block != NULL_BLOCK);
                if !any_fine {
                    self.whole[g].push(word);
                } else if (end * self.unit).is_multiple_of(group.block) {
                    self.whole[g].push(word);
                    self.partial[g].push(0);
                } else {
                    self.whole[g].push(0);
                    self.partial[g].push(word);
                }
            }
        }
    }

    /// The blocks that a group gives a request which resumes at `tokens`, from position 0 on; the
    /// null block where it needs none. `Err` with the position of a needed block that nobody holds.
    pub(super) fn blocks(
        &self,
        request: &Request,
        group: &Group,
        tokens: u32,
        pool: &Pool,
        out: &mut Vec<BlockId>,
    ) -> Result<(), u32> {
        if tokens == 0 || !group.cacheable {
            return Ok(());
        }
        let start = out.len();
        let count = tokens.div_ceil(group.block);
        let first = group.first_needed(tokens).min(count);
        out.resize(start + first as usize, NULL_BLOCK);
        let mut missing = None;
        for position in first..count {
            let end = (position + 1) * group.block;
            let is_state = matches!(group.kind, Kind::State { .. });
            let found = if is_state || end <= tokens {
                self.holder(request, group, end.min(tokens), pool)
            } else {
                self.tail_holder(request, group, (tokens, end), pool)
            };
            missing = missing.or(found.is_none().then_some(position));
            out.push(found.unwrap_or(NULL_BLOCK));
        }
        missing.map_or(Ok(()), Err)
    }

    fn holder(
        &self,
        request: &Request,
        group: &Group,
        tokens: u32,
        pool: &Pool,
    ) -> Option<BlockId> {
        let entry = pool.index.find(request.hash_at(tokens, self.unit)?)?;
        let block = pool.index.row(entry)[usize::from(group.index)];
        (block != NULL_BLOCK).then_some(block)
    }

    /// A block that holds at least the tokens before `tokens`, which lies inside it: the whole one,
    /// else the one with the furthest registered boundary.
    fn tail_holder(
        &self,
        request: &Request,
        group: &Group,
        (tokens, end): (u32, u32),
        pool: &Pool,
    ) -> Option<BlockId> {
        (tokens / self.unit..=end / self.unit)
            .rev()
            .find_map(|unit| self.holder(request, group, unit * self.unit, pool))
    }
}
