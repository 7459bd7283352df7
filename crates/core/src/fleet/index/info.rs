//! What is known of every rank, for people to read.

use std::collections::BTreeMap;

use crate::fleet::presence::planes::{PlaneKey, Planes};
use crate::fleet::rank::Rank;
use crate::fleet::rank::counts::Placed;
use crate::fleet::state::State;
use crate::fleet::tier::Tier;

/// What is known of one rank, for people to read.
#[derive(Debug, Clone, PartialEq)]
pub struct RankInfo {
    /// The name of the pod.
    pub pod: String,
    /// The number of the rank within its pod.
    pub dp_rank: u32,
    /// The model that the pod serves.
    pub model: String,
    /// How completely the rank's history is known.
    pub state: State,
    /// The reason, if the state is not exact.
    pub reason: String,
    /// How many batches were applied.
    pub messages: u64,
    /// The groups as they are known now.
    pub groups: Vec<GroupInfo>,
    /// How many hashes were placed, by the means that placed them.
    pub placed: Placed,
    /// The number of listings that wait for a place.
    pub unplaced: u64,
    /// The refusals and notes, by reason.
    pub refused: BTreeMap<String, u64>,
    /// How much the engine's hash function is trusted.
    pub hash_function: &'static str,
    /// The number of hashes that have a name here.
    pub blocks: usize,
    /// The bytes that the rank takes, by capacity: its own tables, and the pages of presence bits
    /// that are charged to it.
    pub bytes: usize,
}

/// One group as it is known now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupInfo {
    /// The group's index on the wire; `None` for events without an index.
    pub group: Option<u16>,
    /// Kind, window, block size and so on.
    pub spec: crate::spec::GroupSpec,
    /// The blocks that are held for certain and have a place, by tier.
    pub held: [usize; Tier::ALL.len()],
}

/// What is known of one rank.
pub(super) fn info(pod: &str, model: &str, rank: &Rank, planes: &Planes, bytes: usize) -> RankInfo {
    let groups = rank.view().map_or_else(Vec::new, |view| {
        let pairs = view.groups.iter().zip(view.topology.groups);
        pairs
            .map(|(&group, spec)| GroupInfo {
                group: Rank::group_name(group),
                spec,
                held: Tier::ALL.map(|tier| {
                    let key = PlaneKey {
                        group,
                        partial: false,
                        tier,
                        doubted: false,
                        word: rank.column.word,
                    };
                    planes.held(key, rank.column.bit)
                }),
            })
            .collect()
    });
    let mut refused: BTreeMap<String, u64> = rank
        .counts
        .refused
        .iter()
        .map(|(reason, &count)| (reason.to_string(), count))
        .collect();
    for (reason, count) in &rank.counts.refused_outside {
        *refused.entry(reason.clone()).or_insert(0) += count;
    }
    RankInfo {
        pod: pod.to_owned(),
        dp_rank: rank.dp_rank,
        model: model.to_owned(),
        state: rank.state(),
        reason: rank.reason(),
        messages: rank.counts.messages,
        groups,
        placed: rank.counts.placed,
        unplaced: rank.limbo.unplaced(&rank.slots),
        refused,
        hash_function: rank.chain.standing().name(),
        blocks: rank.slots.len(),
        bytes,
    }
}
