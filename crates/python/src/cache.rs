//! The engine-side cache for Python: whole steps in, flat buffers out.

mod answers;
mod arguments;
mod config;
mod tables;

use answers::{
    AllocationTuple, BlockTuple, CheckpointTuple, PolicyChoiceTuple, StateTuple, StatisticsTuple,
    WorkTuple, block_ids, numbers,
};
use arguments::{LabelsArg, NeedArg, RangeArg, RecoveryArg, RequestIdArg, RequestsArg};
use config::ConfigArg;
use kvbraid_core::adaptive::AdaptiveCache;
use kvbraid_core::blocks::{BlockId, Extra};
use kvbraid_core::cache::{Hint, Match, Need, NewRequest};
use kvbraid_core::hash::Digest;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tables::{PlacesTuple, PointTuple};

use crate::errors::to_python;
use crate::extra_keys::ExtraKeysArg;
use crate::recovery::{self, AssessmentTuple, BlocksArg, FailuresArg, RunArg};
use crate::secret;
use crate::tokens::TokenArg;

fn digests(hashes: Option<Vec<PyBackedBytes>>) -> PyResult<Option<Vec<Digest>>> {
    let all = |hashes: Vec<PyBackedBytes>| {
        let digest = |bytes: &PyBackedBytes| Digest::from_bytes(bytes).map_err(to_python);
        hashes.iter().map(digest).collect()
    };
    hashes.map(all).transpose()
}

/// The cache of one engine. It is locked, so any thread may call.
#[pyclass(frozen)]
struct CacheCore {
    cache: Mutex<AdaptiveCache>,
}

#[pymethods]
impl CacheCore {
    #[new]
    fn new(config: ConfigArg) -> PyResult<Self> {
        let cache = AdaptiveCache::new(config.decode()?, &secret::draw()).map_err(to_python)?;
        let cache = Mutex::new(cache);
        Ok(Self { cache })
    }

    fn copy(&self, py: Python<'_>) -> Self {
        py.detach(|| Self {
            cache: Mutex::new(self.cache.lock().clone()),
        })
    }

    fn add(
        &self,
        py: Python<'_>,
        tokens: TokenArg,
        num_prompt_tokens: u32,
        extra: ExtraKeysArg,
        labels: LabelsArg,
        hashes: Option<Vec<PyBackedBytes>>,
    ) -> PyResult<u64> {
        let new = NewRequest {
            tokens: tokens.into_vec(),
            num_prompt_tokens,
            extra: Extra {
                lora_id: labels.lora_id,
                session_id: labels.session_id,
                ..extra.into_extra()?
            },
            hashes: digests(hashes)?,
            hint: Hint::of(labels.will_return).map_err(to_python)?,
        };
        py.detach(|| self.cache.lock().add(new)).map_err(to_python)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "extracted arguments are owned"
    )]
    fn extend(
        &self,
        py: Python<'_>,
        request: RequestIdArg,
        tokens: TokenArg,
        hashes: Option<Vec<PyBackedBytes>>,
        to_prompt: bool,
    ) -> PyResult<()> {
        let hashes = digests(hashes)?;
        py.detach(|| {
            let mut cache = self.cache.lock();
            cache.extend(request.0, tokens.as_slice(), hashes.as_deref(), to_prompt)
        })
        .map_err(to_python)
    }

    #[pyo3(name = "match")]
    fn find(&self, py: Python<'_>, request: RequestIdArg) -> PyResult<(u32, u32)> {
        py.detach(|| self.cache.lock().find(request.0))
            .map(
                |Match {
                     num_tokens,
                     junction,
                 }| (num_tokens, junction),
            )
            .map_err(to_python)
    }

    fn allocate<'py>(
        &self,
        py: Python<'py>,
        needs: Vec<NeedArg>,
        reserved_blocks: usize,
    ) -> PyResult<AllocationTuple<'py>> {
        let needs = needs.into_iter().map(NeedArg::decode);
        let needs = needs.collect::<PyResult<Vec<Need>>>()?;
        py.detach(|| self.cache.lock().allocate(&needs, reserved_blocks))
            .map_err(to_python)
            .and_then(|done| answers::allocation(py, &done))
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "extracted arguments are owned"
    )]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        requests: RequestsArg,
        tokens: TokenArg,
    ) -> PyResult<AllocationTuple<'py>> {
        py.detach(|| self.cache.lock().decode(&requests.0, tokens.as_slice()))
            .map_err(to_python)
            .and_then(|done| answers::allocation(py, &done))
    }

    fn commit(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.cache
            .lock()
            .commit(request.0, num_tokens)
            .map_err(to_python)
    }

    fn free_skipped(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.cache
            .lock()
            .free_skipped(request.0, num_tokens)
            .map_err(to_python)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "extracted arguments are owned"
    )]
    fn release(&self, requests: RequestsArg, step_failed: bool) -> PyResult<()> {
        let mut cache = self.cache.lock();
        cache.release(&requests.0, step_failed).map_err(to_python)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "extracted arguments are owned"
    )]
    fn preempt(&self, requests: RequestsArg, step_failed: bool) -> PyResult<()> {
        let mut cache = self.cache.lock();
        cache.preempt(&requests.0, step_failed).map_err(to_python)
    }

    fn pop_blocks(&self, request: RequestIdArg) -> PyResult<Vec<u32>> {
        let blocks = self.cache.lock().pop_blocks(request.0);
        blocks.map(numbers).map_err(to_python)
    }

    fn free_blocks(&self, blocks: Vec<u32>) -> PyResult<()> {
        let blocks = block_ids(blocks);
        self.cache.lock().free_blocks(&blocks).map_err(to_python)
    }

    fn roll_back(&self, request: RequestIdArg, num_computed_tokens: u32) -> PyResult<()> {
        self.cache
            .lock()
            .roll_back(request.0, num_computed_tokens)
            .map_err(to_python)
    }

    fn rewind(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.cache
            .lock()
            .rewind(request.0, num_tokens)
            .map_err(to_python)
    }

    fn recover(&self, py: Python<'_>, recovery: RecoveryArg) -> PyResult<()> {
        let recovery = recovery.decode();
        py.detach(|| self.cache.lock().recover(&recovery))
            .map_err(to_python)
    }

    fn requests_of<'py>(&self, py: Python<'py>, blocks: Vec<u32>) -> PyResult<PlacesTuple<'py>> {
        let blocks = block_ids(blocks);
        py.detach(|| self.cache.lock().requests_of(&blocks))
            .map_err(to_python)
            .and_then(|places| tables::places(py, &places))
    }

    fn resume_points(
        &self,
        py: Python<'_>,
        limits: Vec<(u64, Option<u32>)>,
        bad: Vec<u32>,
        drops_unit: bool,
        max_refusals: usize,
    ) -> PyResult<Vec<PointTuple>> {
        let (limits, bad) = (tables::limits(limits), block_ids(bad));
        let points = py.detach(|| {
            let cache = self.cache.lock();
            cache.resume_points(&limits, &bad, drops_unit, max_refusals)
        });
        points.map(tables::points).map_err(to_python)
    }

    fn assess<'py>(
        &self,
        py: Python<'py>,
        runs: Vec<RunArg>,
        failures: FailuresArg,
        busy: BlocksArg,
        max_refusals: usize,
        former: BlocksArg,
    ) -> PyResult<AssessmentTuple<'py>> {
        let input = recovery::input(failures, busy, max_refusals, former);
        let runs = recovery::runs(runs);
        py.detach(|| self.cache.lock().assess(&runs, &input))
            .map_err(to_python)
            .and_then(|found| recovery::assessment(py, found))
    }

    fn truncate(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.cache
            .lock()
            .truncate(request.0, num_tokens)
            .map_err(to_python)
    }

    fn forget(&self, blocks: Vec<u32>) -> PyResult<()> {
        let blocks = block_ids(blocks);
        self.cache.lock().forget(&blocks).map_err(to_python)
    }

    fn reset(&self) -> bool {
        self.cache.lock().reset()
    }

    fn start_step(&self) {
        self.cache.lock().start_step();
    }

    fn blocks(&self, request: RequestIdArg) -> PyResult<Vec<Vec<u32>>> {
        let cache = self.cache.lock();
        let tables = cache.tables(request.0).map_err(to_python)?;
        let numbers = |table: &[BlockId]| table.iter().map(|block| block.0).collect();
        Ok(tables.map(numbers).collect())
    }

    fn hit_blocks(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<Vec<Vec<u32>>> {
        let groups = self.cache.lock().hit_blocks(request.0, num_tokens);
        groups
            .map(|groups| groups.into_iter().map(numbers).collect())
            .map_err(to_python)
    }

    fn describe<'py>(&self, py: Python<'py>, blocks: Vec<u32>) -> PyResult<Vec<BlockTuple<'py>>> {
        let blocks = block_ids(blocks);
        let infos = self.cache.lock().describe(&blocks).map_err(to_python)?;
        Ok(infos.iter().map(|info| answers::block(py, info)).collect())
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "extracted arguments are owned"
    )]
    fn num_common_prefix_blocks(&self, requests: RequestsArg) -> PyResult<Vec<u32>> {
        self.cache
            .lock()
            .num_common_prefix_blocks(&requests.0)
            .map_err(to_python)
    }

    fn progress(&self, request: RequestIdArg) -> PyResult<(u32, u32, u32, u32)> {
        let progress = self.cache.lock().progress(request.0).map_err(to_python)?;
        Ok((
            progress.num_computed_tokens,
            progress.num_prompt_tokens,
            progress.num_tokens,
            progress.junction,
        ))
    }

    fn stops(&self, request: u64) -> PyResult<Vec<u32>> {
        self.cache.lock().stops(request).map_err(to_python)
    }

    fn fresh_states<'py>(&self, py: Python<'py>) -> Vec<(u16, Bound<'py, PyBytes>)> {
        let cache = self.cache.lock();
        let states = cache.fresh_states();
        let to_tuple = |(group, digest): (u16, &Digest)| {
            let bytes = PyBytes::new(py, digest.as_bytes());
            (group, bytes)
        };
        states.map(to_tuple).collect()
    }

    fn cursors(&self, request: RequestIdArg) -> PyResult<Vec<(Option<u32>, Option<u32>)>> {
        let cache = self.cache.lock();
        let cursors = cache.cursors(request.0).map_err(to_python)?;
        Ok(cursors.map(|c| (c.num_registered, c.last_state)).collect())
    }

    fn take_state_tails(&self, request: RequestIdArg) -> PyResult<Vec<StateTuple>> {
        let states = self.cache.lock().take_state_tails(request.0);
        states.map(answers::states).map_err(to_python)
    }

    fn blocks_needed(&self, need: NeedArg, is_admission: bool) -> PyResult<i64> {
        let need = need.decode()?;
        let needed = self.cache.lock().blocks_needed(&need, is_admission);
        needed.map_err(to_python)
    }

    fn take_blocks(&self, count: usize) -> PyResult<Vec<u32>> {
        let blocks = self.cache.lock().take_blocks(count);
        blocks.map(numbers).map_err(to_python)
    }

    fn hold_blocks(&self, blocks: Vec<u32>) -> PyResult<()> {
        let blocks = block_ids(blocks);
        self.cache.lock().hold_blocks(&blocks).map_err(to_python)
    }

    fn register(&self, block: u32, group: u16, hash: &[u8], num_tokens: u32) -> PyResult<()> {
        let digest = Digest::from_bytes(hash).map_err(to_python)?;
        let mut cache = self.cache.lock();
        cache
            .register(BlockId(block), group, &digest, num_tokens)
            .map_err(to_python)
    }

    fn unregister(&self, block: u32, group: u16, hash: &[u8]) -> PyResult<bool> {
        let digest = Digest::from_bytes(hash).map_err(to_python)?;
        let mut cache = self.cache.lock();
        Ok(cache.unregister(BlockId(block), group, &digest))
    }

    fn holders(&self, group: u16, hash: &[u8]) -> PyResult<Vec<u32>> {
        let digest = Digest::from_bytes(hash).map_err(to_python)?;
        Ok(numbers(self.cache.lock().holders(group, &digest)))
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "extracted arguments are owned"
    )]
    fn kept_blocks(
        &self,
        group: u16,
        blocks: RangeArg,
        boundaries: Vec<u32>,
    ) -> PyResult<Option<Vec<bool>>> {
        let cache = self.cache.lock();
        cache
            .kept_blocks(group, blocks.start..blocks.stop, &boundaries)
            .map_err(to_python)
    }

    fn record_blocks_for_zeroing(&self, request: RequestIdArg, start_token: u32) -> PyResult<()> {
        let mut cache = self.cache.lock();
        cache
            .record_blocks_for_zeroing(request.0, start_token)
            .map_err(to_python)
    }

    fn take_work(&self, caller_frees: bool) -> WorkTuple {
        answers::work(self.cache.lock().take_work(caller_frees))
    }

    fn take_events<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, u32) {
        let mut cache = self.cache.lock();
        cache.take_events(|events, count| (PyBytes::new(py, events), count))
    }

    fn take_statistics(&self) -> StatisticsTuple {
        answers::statistics(self.cache.lock().take_statistics())
    }

    fn policy_choice(&self) -> Option<PolicyChoiceTuple> {
        self.cache
            .lock()
            .policy_choice()
            .map(answers::policy_choice)
    }

    fn num_free_blocks(&self) -> usize {
        self.cache.lock().num_free_blocks()
    }

    fn num_held_blocks(&self) -> usize {
        self.cache.lock().num_held_blocks()
    }

    fn blocks_for(&self, num_tokens: u32) -> usize {
        self.cache.lock().blocks_for(num_tokens)
    }

    fn cached<'py>(&self, py: Python<'py>) -> Vec<(u16, Bound<'py, PyBytes>, Vec<u32>)> {
        let cache = self.cache.lock();
        let cached = cache.cached();
        cached
            .map(|(group, digest, copies)| {
                (group, PyBytes::new(py, digest.as_bytes()), numbers(copies))
            })
            .collect()
    }

    fn free_queue(&self) -> Vec<u32> {
        let cache = self.cache.lock();
        cache.free_queue().map(|block| block.0).collect()
    }

    fn checkpoints<'py>(&self, py: Python<'py>) -> Vec<CheckpointTuple<'py>> {
        let cache = self.cache.lock();
        cache
            .checkpoints()
            .map(|c| answers::checkpoint(py, &c))
            .collect()
    }

    fn memory_bytes(&self) -> usize {
        self.cache.lock().memory_bytes()
    }

    fn check_integrity(&self, outside: Vec<u32>) {
        self.cache.lock().check_integrity(&block_ids(outside));
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CacheCore>()
}
