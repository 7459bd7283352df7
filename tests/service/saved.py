"""A pod that is saved: an index that knows it, a feed at rest, and its row in a real server."""

from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from kvbraid.events.sequence import Settled
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.ids import PodId
from kvbraid.service.registry import Service
from kvbraid.service.snapshots import Snapshots

from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.stores import FULL, stored

POD = PodId("a/b")
SETTLED = [Settled(last=3, digest=9, lost_to=-1, is_complete=True, why="")]
SECRET = bytes(range(32))


class RestingFeed(FakeFeed):
    """Is at rest as often as it is told; the last word counts from then on."""

    def __init__(self, *rests: bool) -> None:
        super().__init__()
        self.rests = list(rests)

    def at_rest(self, pod: PodId, work: Callable[[Sequence[Settled]], None], /) -> bool:
        is_resting = self.rests.pop(0) if len(self.rests) > 1 else self.rests[0]
        if is_resting:
            work(SETTLED)
        return is_resting


def an_index(secret: bytes = SECRET) -> FleetIndex:
    index = FleetIndex(IndexOptions(secret=secret))
    index.register(POD, model="m", topology=FULL)
    return index


def snapshots_of(folder: Path, index: FleetIndex) -> Snapshots:
    return Snapshots(folder, index, journal=Service(FakeIndex(), FakeFeed()).journal)


def full_index() -> FleetIndex:
    index = an_index()
    index.apply(POD, stored(0, 8))
    return index


def row_of(url: str) -> dict[str, object]:
    (row,) = httpx.get(f"{url}/v1/pods").json()["pods"]
    assert isinstance(row, dict)
    return row


def has_come(seq: int, row: dict[str, object]) -> bool:
    return row["last_seq"] == seq
