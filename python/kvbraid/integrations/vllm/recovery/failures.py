"""What a connector's workers say of loads that failed: which blocks of which groups.

A connector returns a `LoadFailures` from `build_connector_worker_meta` in the step in which a rank
notices. vLLM joins what all ranks say, and the scheduler reads it before any output of the step.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from kvbraid.loads import Cause, Failures, Record

K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class LoadFailures(KVConnectorWorkerMetadata):  # type: ignore[misc] # Untyped without vLLM.
    """What failed, by vLLM's names of requests. It can be sent to another process.

    Attributes:
        places: By request and group: positions in the group's block table.
        group_blocks: Blocks with their groups.
        blocks: Blocks of the one pool that all groups share.
        requests: Requests of which every loaded block counts as failed.
        causes: What failed at the source.
    """

    places: Mapping[str, Mapping[int, Collection[int]]] = field(default_factory=dict)
    group_blocks: Collection[tuple[int, int]] = ()
    blocks: Collection[int] = ()
    requests: Collection[str] = ()
    causes: Mapping[Record, Cause] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "LoadFailures":
        """Return what at least one of two ranks says.

        Raises:
            TypeError: The other rank's connector is of another kind.
        """
        if not isinstance(other, LoadFailures):
            msg = f"one rank sends LoadFailures, another {type(other).__name__}; send one kind"
            raise TypeError(msg)
        places = {
            request: _joined(self.places.get(request, {}), other.places.get(request, {}))
            for request in (*self.places, *other.places)
        }
        causes = Failures.union(Failures(causes=each.causes) for each in (self, other)).causes
        return type(self)(
            places=places,
            group_blocks={*self.group_blocks, *other.group_blocks},
            blocks={*self.blocks, *other.blocks},
            requests={*self.requests, *other.requests},
            causes=causes,
        )


def _joined(
    a: Mapping[K, Collection[int]], b: Mapping[K, Collection[int]]
) -> dict[K, Collection[int]]:
    return {key: {*a.get(key, ()), *b.get(key, ())} for key in (*a, *b)}
