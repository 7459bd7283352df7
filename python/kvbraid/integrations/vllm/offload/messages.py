"""All that crosses between the two sides: pickled by vLLM where they are in two processes.

scheduler -> workers   OffloadJobs     jobs that begin with a step
workers -> scheduler   OffloadReport   answers to jobs, and what was found at tiers
                       RankFacts       once, at the start
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvbraid.integrations.vllm.recovery.failures import LoadFailures
from kvbraid.transfer.host import HostSlots
from kvbraid.transfer.jobs import Job, JobResult
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.rank_counts import RankCounts


@dataclass(frozen=True, kw_only=True)
class OffloadJobs(KVConnectorMetadata):  # type: ignore[misc] # Untyped without vLLM.
    """What workers are told with a step.

    Attributes:
        jobs: The jobs; those that store begin once the step has written its blocks.
        is_idle: No request computes anything in this step: a worker may wait a moment for an
            answer, so that the engine does not spin.
    """

    jobs: tuple[Job, ...] = ()
    is_idle: bool = False


@dataclass(frozen=True, kw_only=True)
class RankNews:
    """What one rank says after a step.

    Attributes:
        results: Answers to jobs.
        added: Records of tiers that others have stored, by tier.
        removed: Records that others have evicted, by tier.
        counts: What the rank has counted, in totals: those that have changed.
    """

    results: tuple[JobResult, ...] = ()
    added: Mapping[str, tuple[BlockKey, ...]] = field(default_factory=dict)
    removed: Mapping[str, tuple[BlockKey, ...]] = field(default_factory=dict)
    counts: RankCounts = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is said."""
        return bool(self.results or self.added or self.removed or self.counts)


@dataclass(frozen=True, kw_only=True)
class OffloadReport(LoadFailures):
    """What workers say after a step: `ranks` has the news of each rank that has some.

    What failed is added on the scheduler's side, which knows what loads consist of.
    """

    ranks: Mapping[int, RankNews] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "OffloadReport":
        """Return what two groups of ranks say.

        Raises:
            TypeError: The other rank's connector is of another kind.
        """
        if not isinstance(other, OffloadReport):
            msg = f"one rank sends OffloadReport, another {type(other).__name__}; send one kind"
            raise TypeError(msg)
        failures = super().aggregate(other)
        assert isinstance(failures, OffloadReport)  # It is of this one's own type.
        return replace(failures, ranks={**self.ranks, **other.ranks})


@dataclass(frozen=True, kw_only=True)
class RankFacts(KVConnectorHandshakeMetadata):  # type: ignore[misc] # Untyped without vLLM.
    """What the scheduler has to know of a rank.

    Attributes:
        rank: The rank.
        slots: Its arena.
        layout: The fingerprint of its memory's plan.
        records: The records that its tiers have, by tier.
    """

    rank: int
    slots: HostSlots
    layout: str
    records: Mapping[str, Collection[BlockKey]] = field(default_factory=dict)
