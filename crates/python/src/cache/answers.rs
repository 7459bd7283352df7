//! What the cache answers, as tuples and flat buffers.

use kvbraid_core::adaptive::PolicyChoice;
use kvbraid_core::blocks::{Author, BlockId};
use kvbraid_core::cache::{
    Allocation, BlockCopy, BlockInfo, Checkpoint, KeptState, NoFit, Starts, Statistics, Work,
};
use kvbraid_core::hash::Digest;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::native_bytes::native_bytes;

/// The number of references; and the group, the hash and the number of tokens of the block's first
/// key.
pub(super) type BlockTuple<'py> = (u32, Option<(u16, Bound<'py, PyBytes>, u32, Option<u32>)>);

/// The number of requests that fit; block ids and counts as buffers of native 32-bit integers; and
/// why the next request does not fit.
pub(super) type AllocationTuple<'py> = (
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Option<&'static str>,
);

/// The hash, the number of tokens, the value, and whether no checkpoint continues from this one.
pub(super) type CheckpointTuple<'py> = (Bound<'py, PyBytes>, u32, f64, bool);

/// The request, the group, the block and the number of tokens.
pub(super) type StateTuple = (u64, u16, u32, u32);

/// The copies, the blocks to zero, and the kept states.
pub(super) type WorkTuple = (Vec<(u32, u32)>, Vec<u32>, Vec<StateTuple>);

/// The number of requests, of their tokens, and of the tokens that they reused.
type StartsTuple = (u64, u64, u64);

/// First runs, runs after a preemption, and then matches, external tokens, junctions, preemptions,
/// recoveries, rewound tokens, held blocks, allocated blocks, evicted blocks and dropped blocks.
pub(super) type StatisticsTuple = (StartsTuple, StartsTuple, [u64; 10]);

pub(super) fn allocation<'py>(
    py: Python<'py>,
    done: &Allocation,
) -> PyResult<AllocationTuple<'py>> {
    Ok((
        done.num_fit,
        native_bytes(py, done.blocks.iter().map(|block| block.0.to_ne_bytes()))?,
        native_bytes(py, done.counts.iter().map(|count| count.to_ne_bytes()))?,
        done.reason.map(NoFit::name),
    ))
}

/// Block ids as plain numbers, in the same vector.
pub(super) fn numbers(blocks: Vec<BlockId>) -> Vec<u32> {
    blocks.into_iter().map(|block| block.0).collect()
}

/// Plain numbers as block ids, in the same vector.
pub(super) fn block_ids(numbers: Vec<u32>) -> Vec<BlockId> {
    numbers.into_iter().map(BlockId).collect()
}

pub(super) fn block<'py>(py: Python<'py>, info: &BlockInfo) -> BlockTuple<'py> {
    let key = |(group, digest, tokens, author): (u16, Digest, u32, Author)| {
        let digest = PyBytes::new(py, digest.as_bytes());
        (group, digest, tokens, author.request())
    };
    (info.num_references, info.key.map(key))
}

pub(super) fn checkpoint<'py>(py: Python<'py>, checkpoint: &Checkpoint) -> CheckpointTuple<'py> {
    (
        PyBytes::new(py, checkpoint.hash.as_bytes()),
        checkpoint.num_tokens,
        checkpoint.value,
        checkpoint.is_last,
    )
}

pub(super) fn states(states: Vec<KeptState>) -> Vec<StateTuple> {
    let tuple = |state: KeptState| (state.request, state.group, state.block.0, state.num_tokens);
    states.into_iter().map(tuple).collect()
}

pub(super) fn work(work: Work) -> WorkTuple {
    let ends = |copy: BlockCopy| (copy.source.0, copy.destination.0);
    (
        work.copies.into_iter().map(ends).collect(),
        numbers(work.blocks_to_zero),
        states(work.kept_states),
    )
}

/// The index of the policy in the list of names, intervals and shares; the number of requests that
/// have ended, how many had at the last change, and the number of changes.
pub(super) type PolicyChoiceTuple = (usize, Vec<(&'static str, u32, f64)>, u64, u64, u64);

pub(super) fn policy_choice(choice: PolicyChoice) -> PolicyChoiceTuple {
    let saved = choice.saved.into_iter();
    (
        choice.policy,
        saved
            .map(|each| (each.policy.name(), each.interval, each.share))
            .collect(),
        choice.num_requests,
        choice.since,
        choice.num_changes,
    )
}

pub(super) fn statistics(counts: Statistics) -> StatisticsTuple {
    let Statistics {
        num_matches,
        started,
        resumed,
        num_external_tokens,
        num_junctions,
        num_preemptions,
        num_recoveries,
        num_rewound_tokens,
        num_held_blocks,
        num_allocated_blocks,
        num_evicted_blocks,
        num_dropped_blocks,
    } = counts;
    let rest = [
        num_matches,
        num_external_tokens,
        num_junctions,
        num_preemptions,
        num_recoveries,
        num_rewound_tokens,
        num_held_blocks,
        num_allocated_blocks,
        num_evicted_blocks,
        num_dropped_blocks,
    ];
    (starts(started), starts(resumed), rest)
}

fn starts(starts: Starts) -> StartsTuple {
    (
        starts.num_requests,
        starts.num_tokens,
        starts.num_hit_tokens,
    )
}
