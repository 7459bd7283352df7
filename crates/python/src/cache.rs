//! The engine-side cache for Python: whole steps in, flat buffers out.

mod answers;
mod arguments;
mod config;
mod tables;
mod tiers;

use answers::{
    AllocationTuple, BlockTuple, CheckpointTuple, PolicyChoiceTuple, StateTuple, StatisticsTuple,
    WorkTuple, block_ids, numbers,
};
use arguments::{LabelsArg, NeedArg, RangeArg, RecoveryArg, RequestIdArg, RequestsArg};
use config::ConfigArg;
use kvbraid_core::Result;
use kvbraid_core::adaptive::AdaptiveCache;
use kvbraid_core::blocks::{BlockId, Extra};
use kvbraid_core::cache::{Hint, Need, NewRequest};
use kvbraid_core::hash::Digest;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tables::{PlacesTuple, PointTuple};
use tiers::{FindableTuple, TierMatchTuple};

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

impl CacheCore {
    /// Calls the locked cache.
    fn with<T>(&self, call: impl FnOnce(&mut AdaptiveCache) -> Result<T>) -> PyResult<T> {
        call(&mut self.cache.lock()).map_err(to_python)
    }

    /// The same without the GIL, for what takes long.
    fn detached<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut AdaptiveCache) -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.with(call))
    }
}

#[pymethods]
#[expect(
    clippy::needless_pass_by_value,
    reason = "extracted arguments are owned"
)]
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
        self.detached(py, |cache| cache.add(new))
    }

    fn extend(
        &self,
        py: Python<'_>,
        request: RequestIdArg,
        tokens: TokenArg,
        hashes: Option<Vec<PyBackedBytes>>,
        to_prompt: bool,
    ) -> PyResult<()> {
        let hashes = digests(hashes)?;
        self.detached(py, |cache| {
            cache.extend(request.0, tokens.as_slice(), hashes.as_deref(), to_prompt)
        })
    }

    #[pyo3(name = "match")]
    fn find(&self, py: Python<'_>, request: RequestIdArg) -> PyResult<(u32, u32)> {
        let found = self.detached(py, |cache| cache.find(request.0))?;
        Ok((found.num_tokens, found.junction))
    }

    fn match_over<'py>(
        &self,
        py: Python<'py>,
        request: RequestIdArg,
        tiers: Vec<Py<Self>>,
        whole_blocks: bool,
    ) -> PyResult<TierMatchTuple<'py>> {
        let tiers: Vec<_> = tiers.iter().map(|tier| &tier.get().cache).collect();
        let found = py.detach(|| tiers::match_over(&self.cache, request.0, &tiers, whole_blocks));
        tiers::tier_match(py, &found.map_err(to_python)?)
    }

    fn take_findable<'py>(&self, py: Python<'py>) -> PyResult<Vec<FindableTuple<'py>>> {
        let found = self.with(|cache| cache.take_findable())?;
        Ok(found.iter().map(|each| tiers::findable(py, each)).collect())
    }

    fn allocate<'py>(
        &self,
        py: Python<'py>,
        needs: Vec<NeedArg>,
        reserved_blocks: usize,
    ) -> PyResult<AllocationTuple<'py>> {
        let needs = needs.into_iter().map(NeedArg::decode);
        let needs = needs.collect::<PyResult<Vec<Need>>>()?;
        let done = self.detached(py, |cache| cache.allocate(&needs, reserved_blocks))?;
        answers::allocation(py, &done)
    }

    fn decode<'py>(
        &self,
        py: Python<'py>,
        requests: RequestsArg,
        tokens: TokenArg,
    ) -> PyResult<AllocationTuple<'py>> {
        let done = self.detached(py, |cache| cache.decode(&requests.0, tokens.as_slice()))?;
        answers::allocation(py, &done)
    }

    fn commit(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.with(|cache| cache.commit(request.0, num_tokens))
    }

    fn free_skipped(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.with(|cache| cache.free_skipped(request.0, num_tokens))
    }

    fn release(&self, requests: RequestsArg, step_failed: bool) -> PyResult<()> {
        self.with(|cache| cache.release(&requests.0, step_failed))
    }

    fn preempt(&self, requests: RequestsArg, step_failed: bool) -> PyResult<()> {
        self.with(|cache| cache.preempt(&requests.0, step_failed))
    }

    fn pop_blocks(&self, request: RequestIdArg) -> PyResult<Vec<u32>> {
        self.with(|cache| cache.pop_blocks(request.0)).map(numbers)
    }

    fn free_blocks(&self, blocks: Vec<u32>) -> PyResult<()> {
        let blocks = block_ids(blocks);
        self.with(|cache| cache.free_blocks(&blocks))
    }

    fn roll_back(&self, request: RequestIdArg, num_computed_tokens: u32) -> PyResult<()> {
        self.with(|cache| cache.roll_back(request.0, num_computed_tokens))
    }

    fn rewind(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.with(|cache| cache.rewind(request.0, num_tokens))
    }

    fn recover(&self, py: Python<'_>, recovery: RecoveryArg) -> PyResult<()> {
        let recovery = recovery.decode();
        self.detached(py, |cache| cache.recover(&recovery))
    }

    fn requests_of<'py>(&self, py: Python<'py>, blocks: Vec<u32>) -> PyResult<PlacesTuple<'py>> {
        let blocks = block_ids(blocks);
        let places = self.detached(py, |cache| cache.requests_of(&blocks))?;
        tables::places(py, &places)
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
        self.detached(py, |cache| {
            cache.resume_points(&limits, &bad, drops_unit, max_refusals)
        })
        .map(tables::points)
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
        let found = self.detached(py, |cache| cache.assess(&runs, &input))?;
        recovery::assessment(py, found)
    }

    fn truncate(&self, request: RequestIdArg, num_tokens: u32) -> PyResult<()> {
        self.with(|cache| cache.truncate(request.0, num_tokens))
    }

    fn forget(&self, blocks: Vec<u32>) -> PyResult<()> {
        let blocks = block_ids(blocks);
        self.with(|cache| cache.forget(&blocks))
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
        let groups = self.with(|cache| cache.hit_blocks(request.0, num_tokens))?;
        Ok(groups.into_iter().map(numbers).collect())
    }

    fn describe<'py>(&self, py: Python<'py>, blocks: Vec<u32>) -> PyResult<Vec<BlockTuple<'py>>> {
        let blocks = block_ids(blocks);
        let infos = self.with(|cache| cache.describe(&blocks))?;
        Ok(infos.iter().map(|info| answers::block(py, info)).collect())
    }

    fn block_hashes<'py>(
        &self,
        py: Python<'py>,
        request: RequestIdArg,
        start: usize,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let cache = self.cache.lock();
        let hashes = cache.block_hashes(request.0, start).map_err(to_python)?;
        let bytes = |digest: &Digest| PyBytes::new(py, digest.as_bytes());
        Ok(hashes.iter().map(bytes).collect())
    }

    fn num_common_prefix_blocks(&self, requests: RequestsArg) -> PyResult<Vec<u32>> {
        self.with(|cache| cache.num_common_prefix_blocks(&requests.0))
    }

    fn progress(&self, request: RequestIdArg) -> PyResult<(u32, u32, u32, u32)> {
        let progress = self.with(|cache| cache.progress(request.0))?;
        Ok((
            progress.num_computed_tokens,
            progress.num_prompt_tokens,
            progress.num_tokens,
            progress.junction,
        ))
    }

    fn stops(&self, request: u64) -> PyResult<Vec<u32>> {
        self.with(|cache| cache.stops(request))
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
        self.with(|cache| cache.take_state_tails(request.0))
            .map(answers::states)
    }

    fn blocks_needed(&self, need: NeedArg, is_admission: bool) -> PyResult<i64> {
        let need = need.decode()?;
        self.with(|cache| cache.blocks_needed(&need, is_admission))
    }

    fn take_blocks(&self, count: usize) -> PyResult<Vec<u32>> {
        self.with(|cache| cache.take_blocks(count)).map(numbers)
    }

    fn hold_blocks(&self, blocks: Vec<u32>) -> PyResult<()> {
        let blocks = block_ids(blocks);
        self.with(|cache| cache.hold_blocks(&blocks))
    }

    fn register(&self, block: u32, group: u16, hash: &[u8], num_tokens: u32) -> PyResult<()> {
        let digest = Digest::from_bytes(hash).map_err(to_python)?;
        self.with(|cache| cache.register(BlockId(block), group, &digest, num_tokens))
    }

    fn unregister(&self, block: u32, group: u16, hash: &[u8]) -> PyResult<bool> {
        self.with(|cache| Ok(cache.unregister(BlockId(block), group, &Digest::from_bytes(hash)?)))
    }

    fn holders(&self, group: u16, hash: &[u8]) -> PyResult<Vec<u32>> {
        self.with(|cache| Ok(numbers(cache.holders(group, &Digest::from_bytes(hash)?))))
    }

    fn kept_blocks(
        &self,
        group: u16,
        blocks: RangeArg,
        boundaries: Vec<u32>,
    ) -> PyResult<Option<Vec<bool>>> {
        self.with(|cache| cache.kept_blocks(group, blocks.start..blocks.stop, &boundaries))
    }

    fn record_blocks_for_zeroing(&self, request: RequestIdArg, start_token: u32) -> PyResult<()> {
        self.with(|cache| cache.record_blocks_for_zeroing(request.0, start_token))
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
