"""The decisions of one engine: what is stored and loaded, and what its requests are told of it.

    look_up -> begin_load -> jobs      while a step is scheduled
    settle                             before the outputs of a step are used

Invariant: a request waits for a load until every rank has ended it, and whatever of the load did
not arrive is in the same report as its end. No bytes are here.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from kvbraid.cache import KeptState
from kvbraid.errors import UnsupportedError
from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache.events import told_by_tiers
from kvbraid.integrations.vllm.cache.requests import extra_keys
from kvbraid.integrations.vllm.offload.messages import OffloadJobs, OffloadReport, RankFacts
from kvbraid.integrations.vllm.offload.options import DISK, OffloadSettings
from kvbraid.integrations.vllm.offload.tier_metrics import TierMetrics
from kvbraid.integrations.vllm.recovery.tracked import TrackedCacheManager
from kvbraid.loads import Cause, LoadReport, Record
from kvbraid.transfer.host import in_pages
from kvbraid.transfer.offload import Again, Found, OffloadManager, OffloadOptions
from kvbraid.transfer.records import PAGE_BYTES

_MAX_PENDING: Final = 1 << 16
"""The manager's own shares of the pool and of host memory are the limits: half, and a quarter."""

_MAX_REMEMBERED: Final = 1_024
"""Of so many loads that have ended it is known whose they were: they may turn out bad later."""

_SOURCES: Final = {
    "": CacheHitSource.DEVICE,
    "host": CacheHitSource.HOST,
    DISK: CacheHitSource.DISK,
}
"""What vLLM's statistics call tiers."""


@dataclass(slots=True)
class _OpenLoad:
    """A load under way, and the ranks that have not ended it."""

    request_id: str
    ranks: set[int]


class SchedulerSide:
    """The tiers of one engine. `facts` are those of all ranks, `engine` its number in metrics.

    Raises:
        UnsupportedError: Ranks whose memory differs.
    """

    def __init__(
        self,
        manager: TrackedCacheManager,
        settings: OffloadSettings,
        facts: Collection[RankFacts],
        *,
        engine: str = "0",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        first, *others = facts
        for other in others:
            if (other.slots, other.layout) != (first.slots, first.layout):
                raise UnsupportedError(
                    f"ranks {first.rank} and {other.rank} lay their memory out differently; "
                    "leave OffloadConnector out"
                )
        self._cache_manager: Final = manager
        self._ranks: Final = frozenset(each.rank for each in facts)
        tiers = []
        if settings.disk_bytes is not None:
            record_bytes = PAGE_BYTES + in_pages(min(first.slots.used_bytes))
            tiers = [(DISK, max(1, settings.disk_bytes // record_bytes))]
        self.offload: Final = OffloadManager(
            manager.cache,
            host_slots=first.slots.num_slots,
            tiers=tiers,
            options=OffloadOptions(
                max_pending_stores=_MAX_PENDING,
                max_pending_writes=_MAX_PENDING,
                promote_deadline=settings.lookup_seconds,
                load_deadline=settings.disk_load_seconds,
                rest=settings.rest_seconds,
            ),
            num_ranks=len(facts),
            clock=now,
        )
        manager.held_beside = lambda: self.offload.held_blocks
        manager.on_reset = self.offload.tell_again
        for each in facts:
            for tier, keys in each.records.items():
                self.offload.opened(tier, keys, each.rank)
        self._now: Final = now
        self._metrics: Final = TierMetrics(self.offload, engine)
        self._loads: Final[dict[int, _OpenLoad]] = {}
        self._names: Final[OrderedDict[int, str]] = OrderedDict()  # Of requests, by number.
        self._tails: Final[list[KeptState]] = []
        self._step = 0
        self._found: Found | None = None  # The latest.

    # While a step is scheduled.

    def look_up(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return how many tokens after the first ones a load brings; None: ask again."""
        if request.skip_reading_prefix_cache:
            return 0, False
        number = self._cache_manager.number_of(request)
        tokens = request.all_token_ids if self._cache_manager.enable_kv_cache_events else ()
        found = self.offload.lookup(number, tokens, extra=extra_keys(request))
        if isinstance(found, Again):
            return None, False
        self._found = found
        if found is None or found.match.num_tokens != num_computed_tokens:
            return 0, False
        return found.num_external_tokens, True

    def hit_sources(self, request: Request, num_tokens: int) -> dict[CacheHitSource, int]:
        """Return where so many tokens come from, if the last look-up was this request's."""
        number, found = self._cache_manager.find_number(request.request_id), self._found
        if found is None or found.request != number:
            return {CacheHitSource.EXTERNAL_UNSPECIFIED: num_tokens} if num_tokens else {}
        split = self.offload.tokens_by_tier(found, num_tokens)
        return {_SOURCES[tier]: num for tier, num in split.items()}

    def begin_load(self, request: Request) -> None:
        """Begin the load that the request was looked up for, into the blocks that it has got."""
        run = self._cache_manager.runs.find(request.request_id)
        assert run is not None
        assert run.load is not None
        load = run.load
        self._loads[load.number] = _OpenLoad(request.request_id, set(self._ranks))
        self._names[run.number] = request.request_id
        if len(self._names) > _MAX_REMEMBERED:
            self._names.popitem(last=False)
        self.offload.begin_load(load.number, self._step, load.targets, run.number)

    def jobs(self, output: SchedulerOutput) -> OffloadJobs:
        """Return the jobs that begin with a step that was scheduled.

        Workers begin all of them once the step's computation is under way, and order them after
        it: so its blocks may be read at once.
        """
        state = output.kv_connector_block_state
        states = [
            KeptState(number, *each)
            for request_id, own in (state.boundary_state_offloads if state else {}).items()
            if (number := self._cache_manager.find_number(request_id)) is not None
            for each in own
        ]
        self.offload.end_schedule(self._step, self._tails + states)
        self._tails.clear()
        self.offload.step_ended(self._step)
        self._step += 1
        jobs = tuple(self.offload.take_jobs())
        self._metrics.tell(self._now())
        return OffloadJobs(jobs=jobs, is_idle=not output.total_num_scheduled_tokens)

    # Before the outputs of a step are used.

    def settle(self, output: KVConnectorOutput) -> None:
        """Take what ranks say, and add which loads have ended and what of them has failed."""
        report = output.kv_connector_worker_meta
        for rank, news in report.ranks.items() if isinstance(report, OffloadReport) else ():
            for tier, keys in news.removed.items():
                self.offload.vanished(tier, keys)
            for tier, keys in news.added.items():
                self.offload.opened(tier, keys, rank)
            self.offload.finished(rank, news.results)
            self._metrics.take(rank, news.counts)
        failed: dict[str, dict[int, set[int]]] = {}
        causes: dict[Record, Cause] = {}
        ended: set[str] = set()
        for each in self.offload.take_reports():
            ended.update(self._ended_by(each))
            causes.update(each.failures.causes)
            for number, groups in each.failures.places.items():
                own = failed.setdefault(self._names.get(number, ""), {})
                for group, positions in groups.items():
                    own.setdefault(group, set()).update(positions)
        if ended:
            output.finished_recving = {*(output.finished_recving or ()), *ended}
        if failed or causes:
            found = OffloadReport(places=failed, causes=causes)
            is_ours = isinstance(report, OffloadReport)
            output.kv_connector_worker_meta = found.aggregate(report) if is_ours else found

    def _ended_by(self, report: LoadReport) -> Iterator[str]:
        """Yield the requests whose loads the last rank has ended."""
        for number in report.ended:
            load = self._loads[number]
            load.ranks.remove(report.rank)
            if not load.ranks:
                del self._loads[number]
                yield load.request_id

    # Requests and events.

    def note_tail(self, request: Request, states: Iterable[tuple[int, BlockId, int]]) -> None:
        """Note states inside blocks, of a request that ends there and is about to be released.

        They are stored with the next step, unless that takes their blocks.
        """
        number = self._cache_manager.number_of(request)
        self._tails.extend(KeptState(number, *state) for state in states)

    def finished(self, request: Request) -> None:
        """Note that a request has ended or was aborted."""
        number = self._cache_manager.find_number(request.request_id)
        if number is not None:
            self.offload.forget_request(number)

    def reset(self) -> None:
        """Forget all that tiers have, or are to get: `OffloadManager.reset`."""
        self._tails.clear()
        self.offload.reset()

    @property
    def is_busy(self) -> bool:
        """Whether something moves, or was not told yet, so that the engine has to go on stepping.

        An engine that starts on records publishes them before its first request comes.
        """
        return bool(self._tails) or self.offload.num_pending > 0 or self.offload.has_news

    def take_events(self) -> list[KVCacheEvent]:
        """Return what tiers have got and lost since the last call, as vLLM's structures."""
        return told_by_tiers(self.offload.take_events())

    def close(self) -> None:
        """Begin nothing more."""
        self.offload.close()
