"""One pod, the events that it publishes, and what the index says of it."""

from collections.abc import Sequence
from typing import Any

from kvbraid.engine import EngineProfile
from kvbraid.events import BlockStored, Event, encode_batch
from kvbraid.fleet.answer import PodInfo, PodScore
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

POD = PodId("a")
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4, window=5)
HYBRID = Topology(groups=(FULL, WINDOW))
PROMPT = tuple(range(17))
"""Four blocks and the token that is always left to compute."""


def stored(blocks: int = 4, **fields: Any) -> BlockStored:  # noqa: ANN401 - fields of the event
    """The first blocks of PROMPT, with hashes 0, 1, 2, …; a field more replaces its own."""
    event: dict[str, Any] = {
        "block_hashes": tuple(range(blocks)),
        "parent_block_hash": None,
        "token_ids": PROMPT[: 4 * blocks],
        "block_size": 4,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **fields,
    }
    return BlockStored(**event)


def window_stored(blocks: int = 4, **fields: Any) -> BlockStored:  # noqa: ANN401 - as above
    spec = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 5}
    return stored(blocks, **{"group_idx": 1, **spec, **fields})


VLLM = EngineProfile()


def index_of(
    topology: Topology | None = None,
    options: IndexOptions | None = None,
    *,
    engine: EngineProfile = VLLM,
) -> FleetIndex:
    index = FleetIndex(options)
    index.register(POD, model="m", topology=topology, engine=engine)
    return index


def tell(index: FleetIndex, *events: Event, pod: PodId = POD) -> None:
    index.apply(pod, encode_batch(events))
    index.check_integrity()


def row_of(index: FleetIndex, tokens: Sequence[int] = PROMPT) -> PodScore:
    (row,) = index.score(Request(model="m", token_ids=tokens)).rows
    index.check_integrity()
    return row


def bounds(index: FleetIndex, tokens: Sequence[int] = PROMPT) -> tuple[int, int]:
    row = row_of(index, tokens)
    return row.lower, row.upper


def info(index: FleetIndex) -> PodInfo:
    (pod,) = index.pods()
    return pod
