"""What engines say of their load, and how much of it others than this router have sent.

Invariant: a reading counts until it is `age_s` old. Of what an engine counted, our own requests
and those of other replicas are subtracted as they were then, so a request that came through one of
them counts once. One that ends just then may still be in the engine's number, so the smaller of
two readings counts.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kvbraid.policy.bookings import Loads
from kvbraid.policy.replica_loads import NOTHING, RankLoad
from kvbraid.policy.view import RankId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine says of one rank: requests in its steps, and requests before them.

    `usage` is the share of the pool in use (`vllm:kv_cache_usage_perc`, `sglang:token_usage`),
    0 to 1. `loras` are the adapters that can run: those of its requests if there is room for no
    other one, and None if there is, or if it is not known.
    """

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    loras: frozenset[str] | None = None


class _Others(NamedTuple):
    """Requests at a rank that are not from here: in flight, and those of them that wait."""

    running: int
    waiting: int


class Reading(NamedTuple):
    """What an engine said, and when; `others` are the requests there that no replica has sent.

    `foreign` are those in flight that are not from here, whoever has sent them.
    """

    at: float
    load: EngineLoad
    seen: _Others
    others: _Others  # As far as the reading before has them, too.
    foreign: int


Readings: TypeAlias = Mapping[int, Reading]
"""By the place of their rank among others."""


class EngineLoads:
    """The last reading of each rank that has one."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._readings: OrderedDict[RankId, Reading] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readings)

    def note(
        self,
        rank: RankId,
        load: EngineLoad,
        *,
        running: int,
        waiting: int,
        now: float,
        replicas: RankLoad = NOTHING,
    ) -> None:
        """Take a reading.

        `running` and `waiting` are our own requests at the rank now, `replicas` those of others.
        """
        total = load.running + load.waiting
        in_line = max(load.waiting - waiting - replicas.waiting, 0)
        seen = _Others(max(total - running - replicas.running, in_line), in_line)
        before = self.get(rank, now)
        others = seen if before is None else _Others(*map(min, seen, before.seen))
        self._readings.pop(rank, None)
        self._readings[rank] = Reading(now, load, seen, others, max(total - running, 0))
        while self._readings and now - next(iter(self._readings.values())).at >= self._age_s:
            self._readings.popitem(last=False)

    def get(self, rank: RankId, now: float) -> Reading | None:
        """Return what counts of a rank."""
        reading = self._readings.get(rank)
        return reading if reading is not None and now - reading.at < self._age_s else None

    def of(self, ranks: Sequence[RankId], now: float) -> Readings:
        """Return what counts of the ranks, by their place."""
        if not self._readings:
            return {}
        read = enumerate(map(self._readings.get, ranks))
        age_s = self._age_s
        return {place: it for place, it in read if it is not None and now - it.at < age_s}

    def fresh(self, now: float) -> Iterator[tuple[RankId, Reading]]:
        """Return every reading that counts."""
        return ((r, it) for r in list(self._readings) if (it := self.get(r, now)) is not None)


def add_others(loads: Loads, readings: Readings, each_s: float) -> list[float]:
    """Add the requests of others to the columns, `each_s` of wait for each that waits.

    Returns:
        The seconds that each rank's wait is longer by.
    """
    wait, running, _, waiting, _ = loads
    seconds = [0.0] * len(wait)
    for place, reading in readings.items():
        in_flight, in_line = reading.others
        if in_flight:
            running[place] += in_flight
            if in_line:
                waiting[place] += in_line
                seconds[place] = each_s * in_line
                wait[place] += seconds[place]
    return seconds
