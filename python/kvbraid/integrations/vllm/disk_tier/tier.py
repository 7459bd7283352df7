"""What vLLM calls: chunks of its primary tier become records, and come back verified.

Invariant: `lookup` says `HIT` only for a record that was there by its name when it was last heard
of, and a load is reported as successful only for bytes whose checksum was right. vLLM hears of
each job once: of a load at its deadline at the latest, of a store when nothing reads its rows any
more. No call waits for the file system but the constructor, `drain_jobs` and `shutdown`.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult as TransferResult
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob

from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.disk_tier.counts import TierReport, definitions
from kvbraid.integrations.vllm.disk_tier.options import disk_tier_settings, namespace_of
from kvbraid.integrations.vllm.disk_tier.rows import LeavableDisk
from kvbraid.recovery.decision.policy import Cooldowns
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.record_store import RecordStore, StoreOptions
from kvbraid.transfer.status import Status

logger = init_logger("vllm.kvbraid.disk_tier")

_DISK: Final = "disk"
_FAILURES: Final = 3
"""After so many loads in a row that brought nothing, the tier rests."""
_NEWS_PER_STEP: Final = 1_024
"""Keys whose events vLLM publishes in one message; a start may have hundreds of thousands."""
_MOMENT_S: Final = 1.0
_NO_BLOCK: Final = BlockId(0)
_FAILED: Final = frozenset({Status.TIMEOUT, Status.IO_ERROR})


@dataclass(slots=True, kw_only=True)
class _OpenTransfer:
    """A job that is not over; `left` are blocks whose reads hang after vLLM was answered."""

    is_load: bool
    keys: list[BlockKey]
    left: list[BlockKey] | None = None


class KvbraidDiskTier(SecondaryTierManager):  # type: ignore[misc] # Untyped without vLLM.
    """Records in a directory: an entry of `secondary_tiers` (docs/offload-stock.md).

    Raises:
        InvalidValueError: A key is unknown or wrong, or the directory cannot be used.
    """

    medium: ClassVar[Medium] = Medium.STORAGE
    report_seconds: ClassVar[float] = 1.0
    """So long counters stand still, since vLLM asks for them in each step."""

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **options: object,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        config, row_bytes = offloading_spec.config, self.block_size_bytes
        settings = disk_tier_settings(options, row_bytes)
        self.locality = Locality(settings.locality) if settings.locality else None
        self._rows: Final = primary_kv_view.cast("B")
        self._disk: Final = LeavableDisk(
            settings.disk_directory, max_bytes=settings.disk_bytes, row_bytes=row_bytes
        )
        num_groups = 1 + max(group.group_id for group in config.groups)
        self._store: Final = RecordStore(
            _DISK,
            self._disk,
            namespace=namespace_of(config, row_bytes, settings.revision),
            used_bytes=[row_bytes] * num_groups,
            options=StoreOptions(
                num_threads=settings.disk_threads,
                # What waits is pinned in the primary tier: half of it stays for new blocks.
                max_queued_bytes=max(row_bytes, self._rows.nbytes // 2),
                load_deadline_s=settings.disk_load_seconds,
                store_deadline_s=settings.disk_store_seconds,
                errors_in_a_row=_FAILURES,
                pause_s=settings.rest_seconds,
            ),
        )
        self._scan_s: Final = settings.disk_scan_seconds
        self._next_scan = time.monotonic() + self._scan_s
        self._resting: Final = Cooldowns(failures=_FAILURES, duration=settings.rest_seconds)
        self._transfers: Final[dict[int, _OpenTransfer]] = {}
        self._results: list[TransferResult] = []
        self._known: Final[set[OffloadKey]] = set()
        self._tells: Final = offloading_spec.kv_events_config.enable_kv_cache_events
        self._news: Final[dict[OffloadKey, bool]] = {}
        self._report: Final = TierReport()
        self._next_report = 0.0
        self._note(self._store.keys(), is_there=True)
        logger.info("kvbraid: %d records in %s.", len(self._known), settings.disk_directory)

    # What is there.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Answer from memory. Chunks that are being stored are pinned in the primary tier."""
        del req_context
        if key not in self._known or self._resting.is_cooling(_DISK, time.monotonic()):
            return LookupResult.MISS
        return LookupResult.HIT

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Ask for nothing but newly stored chunks."""
        del req_context
        return RequestOffloadingContext()

    def has_pending_work(self) -> bool:
        """Whether there are records to announce, so that an idle engine goes on stepping."""
        return bool(self._news)

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Yield what came and went, and after the start what was there, a part in each step."""
        news = list(islice(self._news.items(), _NEWS_PER_STEP))
        for key, _ in news:
            del self._news[key]
        for removed in (True, False):
            if keys := [key for key, is_there in news if is_there is not removed]:
                yield OffloadingEvent(
                    keys=keys,
                    medium=self.medium,
                    removed=removed,
                    locality=self.locality,
                    ownership=self.tier_type,
                    removal_expected=True,
                )

    def _note(self, keys: Iterable[BlockKey], *, is_there: bool) -> None:
        for each in keys:
            key = OffloadKey(each.to_bytes())
            if (key in self._known) is is_there:
                continue
            if is_there:
                self._known.add(key)
            else:
                self._known.remove(key)
            if self._tells:
                self._news[key] = is_there

    # Jobs.

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Begin to write the chunks that are not there."""
        chunks = [each for each in _chunks_of(job_metadata) if each[0] not in self._known]
        self._submit(job_metadata.job_id, Kind.WRITE, chunks)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Begin to read chunks into rows of the primary tier."""
        self._submit(job_metadata.job_id, Kind.PROMOTE, list(_chunks_of(job_metadata)))

    def _submit(self, number: int, kind: Kind, chunks: list[tuple[OffloadKey, int]]) -> None:
        keys = [BlockKey.from_bytes(key) for key, _ in chunks]
        items = tuple(Item(key.group, _NO_BLOCK, _NO_BLOCK, key) for key in keys)
        self._transfers[number] = _OpenTransfer(is_load=kind is Kind.PROMOTE, keys=keys)
        self._store.submit(
            Job(number=number, kind=kind, items=items, tier=_DISK),
            [self._row(chunk) for _, chunk in chunks],
        )

    def _row(self, chunk: int) -> memoryview:
        return self._rows[chunk * self.block_size_bytes : (chunk + 1) * self.block_size_bytes]

    def get_finished_jobs(self) -> Iterable[TransferResult]:
        """Return what has ended, and let a thread look for others' records from time to time."""
        now = time.monotonic()
        if now >= self._next_scan:
            self._next_scan = now + self._scan_s
            self._store.refresh()
        changes = self._store.take_changes()
        self._note(changes.removed, is_there=False)
        self._note(changes.added, is_there=True)
        self._settle(self._store.poll())
        results, self._results = self._results, []
        return results

    def _settle(self, results: Iterable[JobResult]) -> None:
        for result in results:
            transfer = self._transfers[result.number]
            if result.is_over:
                del self._transfers[result.number]
            if transfer.left is not None:
                self._disk.forgive(transfer.left)
            elif transfer.is_load:
                self._end_load(transfer, result)
            elif result.is_over:
                self._end_store(transfer, result)

    def _end_load(self, transfer: _OpenTransfer, result: JobResult) -> None:
        """Tell of a load; a block that failed is a miss until it is stored again.

        Otherwise a request would ask for it again and again. What had no room in the queue stays.
        """
        by_status = list(zip(transfer.keys, result.statuses, strict=True))
        if not result.is_over:
            transfer.left = [key for key, status in by_status if status is Status.TIMEOUT]
            self._disk.leave(transfer.left)
        stays = {Status.OK, Status.FULL}
        self._note([key for key, status in by_status if status not in stays], is_there=False)
        if not _FAILED.isdisjoint(result.statuses):
            self._resting.failed(_DISK, time.monotonic())
        elif Status.OK in result.statuses:
            self._resting.succeeded(_DISK)
        self._end(transfer, result)

    def _end_store(self, transfer: _OpenTransfer, result: JobResult) -> None:
        stored = zip(transfer.keys, result.statuses, strict=True)
        self._note([key for key, status in stored if status is Status.OK], is_there=True)
        self._end(transfer, result)

    def _end(self, transfer: _OpenTransfer, result: JobResult) -> None:
        good = [
            OffloadKey(key.to_bytes())
            for key, status in zip(transfer.keys, result.statuses, strict=True)
            if status is Status.OK
        ]
        self._results.append(
            TransferResult(
                job_id=result.number,
                success=len(good) == len(transfer.keys),
                successful_keys=good if transfer.is_load else None,
                transfer_time=result.seconds,
                transfer_bytes=result.num_bytes,
            )
        )

    # The end, and what is counted.

    def drain_jobs(self) -> None:
        """Wait until no job reads or writes a row; a write that hangs is waited for."""
        while any(transfer.left is None for transfer in self._transfers.values()):
            self._settle(self._store.wait(_MOMENT_S))

    def shutdown(self) -> None:
        """Finish what waits, at most for seconds; end all threads but those whose calls hang."""
        if not self._store.close():
            counts = self._store.counts()
            logger.warning(
                "kvbraid: %d calls of the file system hang at the end.", counts.hung_threads
            )
        self._settle(self._store.poll())
        self._rows.release()

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """Return the metrics that `get_stats` fills."""
        del extra_config
        return definitions()

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return what has changed since the last report, or None if that was just before."""
        now = time.monotonic()
        if now < self._next_report:
            return None
        self._next_report = now + self.report_seconds
        return self._report.news(self._store.counts(), self._disk.counts())

    def check_integrity(self) -> None:
        """Assert that jobs and records are counted, and that a job that was left is a load."""
        self._store.check_integrity()
        self._disk.check_integrity()
        assert all(each.is_load or each.left is None for each in self._transfers.values())
        assert self._tells or not self._news


def _chunks_of(job: TransferJob) -> Iterable[tuple[OffloadKey, int]]:
    return zip(job.keys, job.chunk_ids.tolist(), strict=True)
