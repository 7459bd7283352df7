"""What the index of a fleet says of an engine with tiers, beside what the engine would find."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kvbraid.engine import EngineProfile
from kvbraid.fleet import FleetIndex, Request
from kvbraid.fleet.answer import Bounds, PodScore
from kvbraid.ids import PodId, PodState
from kvbraid.spec import Topology
from kvbraid.transfer.offload import OffloadManager

POD: Final = PodId("pod")
MODEL: Final = "model"
KEYS: Final = ("gpu", "gpu+cpu", "gpu+cpu+storage")
"""What answers are called."""


def predicted(row: PodScore, key: str) -> Bounds:
    """What is said of some tiers: of those among them that have anything."""
    tiers = {*key.split("+")}
    return row.tiers[max((k for k in row.tiers if {*k.split("+")} <= tiers), key=len)]


class Listener:
    """An index that hears what one engine publishes, and nothing else."""

    def __init__(self, topology: Topology, engine: EngineProfile) -> None:
        self.index: Final = FleetIndex()
        self.index.register(POD, model=MODEL, topology=topology, engine=engine)
        self.index.set_state(POD, PodState.EXACT)
        self.was_cleared = False

    def hear(self, payload: bytes) -> None:
        """Take in a batch that is published."""
        applied = self.index.apply(POD, payload)
        assert not applied.refused
        self.index.check_integrity()
        self.was_cleared = self.was_cleared or applied.cleared > 0

    def row(self, tokens: Sequence[int], cache_salt: str | None = None) -> PodScore:
        """What a request would reuse over all tiers, as far as was heard."""
        tiers = KEYS[-1].split("+")
        request = Request(model=MODEL, token_ids=tokens, cache_salt=cache_salt, tiers=tiers)
        (row,) = self.index.score(request).rows
        return row


class Prediction(NamedTuple):
    """What is said of a request over the tiers of `key`, and its hit."""

    key: str
    bounds: Bounds
    hit: int

    @property
    def is_exact(self) -> bool:
        return self.bounds.lower == self.bounds.upper == self.hit


def compare(row: PodScore, manager: OffloadManager, request: int) -> Iterator[Prediction]:
    """Yield what is said of a request that the manager's cache knows, and what is so."""
    host, *records = manager.num_blocks()
    for key, left_out in zip(KEYS, ([host], records, []), strict=True):
        hit = manager.match_over(request, left_out).num_tokens
        yield Prediction(key, predicted(row, key), hit)
