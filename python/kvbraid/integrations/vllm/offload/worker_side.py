"""A rank's bytes: its arena and its tiers. It does what it is told, and says what came of it.

Invariant: a job begins in the step that it came with, and is answered in a later report, once.
Stores begin after the step has written its blocks, everything else once the step is under way:
what is loaded or copied is of requests that the step does not compute.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
import vllm.envs
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig

from kvbraid.errors import UnsupportedError
from kvbraid.integrations.vllm.offload.messages import (
    OffloadJobs,
    OffloadReport,
    RankFacts,
    RankNews,
)
from kvbraid.integrations.vllm.offload.options import DISK, OffloadSettings, namespace_of
from kvbraid.layout import fingerprint, from_engine
from kvbraid.layout.tensors import Tensors, adopt
from kvbraid.transfer.disk import DiskTier
from kvbraid.transfer.host import HostSlots, HostTier
from kvbraid.transfer.jobs import Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.mover import Mover
from kvbraid.transfer.mover.cuda import CudaEngine
from kvbraid.transfer.rank_counts import RankCounts, rank_counts
from kvbraid.transfer.record_store import RecordStore, StoreOptions
from kvbraid.transfer.worker import Worker

logger = init_logger("vllm.kvbraid.offload")

_MOMENT_S: Final = 0.001
"""So long an idle step waits for an answer."""
_COUNT_INTERVAL_S: Final = 1.0


class WorkerSide:
    """One rank of an engine; nothing before `register`."""

    def __init__(
        self, config: VllmConfig, cache_config: KVCacheConfig, settings: OffloadSettings
    ) -> None:
        self._config: Final = config
        self._cache_config: Final = cache_config
        self._settings: Final = settings
        self._rank: Final = config.parallel_config.rank
        self._stores: dict[str, RecordStore] = {}
        self._disks: dict[str, DiskTier] = {}
        self._next_scan = self._next_count = 0.0
        self._counted: RankCounts = {}
        self._complained: set[str] = set()
        self._tensors: Tensors | None = None
        self._worker: Worker | None = None
        self._facts: RankFacts | None = None

    def register(self, views: Mapping[str, torch.Tensor]) -> None:
        """Take the engine's memory over, make the arena and open the tiers.

        Raises:
            LayoutError: The memory is none that a plan explains.
            InvalidValueError: A tier cannot be used, or not one block fits into host memory.
        """
        plan = from_engine(self._cache_config, views)
        self._tensors = tensors = adopt(plan, views)  # Keeps the memory alive.
        slots = HostSlots.of(plan, self._settings.host_bytes)
        layout = fingerprint(plan)
        if self._settings.disk_directory is not None:
            self._stores[DISK] = self._disk(slots, layout)
        self._worker = Worker(_mover(tensors, slots), self._stores)
        records = {name: tuple(store.keys()) for name, store in self._stores.items()}
        self._facts = RankFacts(rank=self._rank, slots=slots, layout=layout, records=records)
        logger.info(
            "kvbraid: rank %d offloads blocks to %d slots of %d bytes in host memory%s.",
            self._rank,
            slots.num_slots,
            slots.slot_bytes,
            "".join(f", and to {name} ({len(own)} records)" for name, own in records.items()),
        )

    def _disk(self, slots: HostSlots, layout: str) -> RecordStore:
        settings = self._settings
        assert settings.disk_directory is not None
        assert settings.disk_bytes is not None
        tier = DiskTier(settings.disk_directory, max_bytes=settings.disk_bytes)
        self._disks[DISK] = tier
        return RecordStore(
            DISK,
            tier,
            namespace=namespace_of(self._config, layout, self._rank),
            used_bytes=slots.used_bytes,
            options=StoreOptions(
                num_threads=settings.disk_threads,
                load_deadline_s=settings.disk_load_seconds,
                store_deadline_s=settings.disk_store_seconds,
                pause_s=settings.rest_seconds,
            ),
        )

    @property
    def facts(self) -> RankFacts | None:
        """What the scheduler has to know, once memory is registered."""
        return self._facts

    def begin(self, told: OffloadJobs) -> None:
        """Begin what does not wait for the step's own blocks."""
        self._running.submit(job for job in told.jobs if job.kind is not Kind.STORE)

    def save(self, told: OffloadJobs) -> None:
        """Begin to store what the step has written."""
        self._running.submit(job for job in told.jobs if job.kind is Kind.STORE)

    def report(self, told: OffloadJobs) -> OffloadReport | None:
        """Return what there is to say; None if nothing."""
        results = self._running.poll()
        if not results and told.is_idle:
            time.sleep(_MOMENT_S)
            results = self._running.poll()
        added, removed = self._changes()
        counts = self._counts()
        news = RankNews(results=tuple(results), added=added, removed=removed, counts=counts)
        return OffloadReport(ranks={self._rank: news}) if news else None

    def _changes(self) -> tuple[dict[str, tuple[BlockKey, ...]], dict[str, tuple[BlockKey, ...]]]:
        now, added, removed = time.monotonic(), {}, {}
        is_due = now >= self._next_scan
        if is_due:
            self._next_scan = now + self._settings.disk_scan_seconds
        for name, store in self._stores.items():
            if is_due:
                store.refresh()
            changes = store.take_changes()
            if changes.added:
                added[name] = changes.added
            if changes.removed:
                removed[name] = changes.removed
        return added, removed

    def _counts(self) -> RankCounts:
        """Return what has changed of what is counted, if that was long enough ago."""
        now = time.monotonic()
        if now < self._next_count:
            return {}
        self._next_count = now + _COUNT_INTERVAL_S
        self._complain()
        before = self._counted
        self._counted = rank_counts(self._running, self._stores, self._disks)
        return {key: num for key, num in self._counted.items() if before.get(key) != num}

    def _complain(self) -> None:
        """Log the first thing that each part has to complain about; metrics count the rest."""
        problems = {name: store.counts().last_error for name, store in self._stores.items()}
        problems["host memory"] = self._running.mover.host.failure
        for part, problem in problems.items():
            if problem and part not in self._complained:
                self._complained.add(part)
                logger.warning("kvbraid: rank %d, %s: %s", self._rank, part, problem)

    @property
    def _running(self) -> Worker:
        assert self._worker is not None, "no memory was registered"
        return self._worker

    def close(self) -> None:
        """End threads, and give arena and tiers back."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _mover(tensors: Tensors, slots: HostSlots) -> Mover:
    """Return what moves blocks between the engine's memory and an arena, on its kind of device.

    Raises:
        UnsupportedError: A device that is neither CUDA's nor the CPU.
    """
    plan, device = tensors.plan, tensors.memory.device
    if device.type == "cpu":
        return Mover(plan, bases=tensors.bases, host=HostTier(slots))
    if device.type != "cuda":
        raise UnsupportedError(
            f"OffloadConnector with memory on {device}: blocks are moved on CUDA devices and on "
            "CPUs; leave --kv-transfer-config out"
        )
    engine = CudaEngine(tensors, calibrations=Path(vllm.envs.VLLM_CACHE_ROOT) / "kvbraid")
    host = HostTier(slots, pinning=engine.pinning)
    return Mover(plan, bases=tensors.bases, host=host, engine=engine)
