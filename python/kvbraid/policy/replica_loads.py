"""What other routers of the same pods have booked, each of them as it said last.

Invariant: what a replica said counts until it is `age_s` old, and a sum is that of what counts.
All numbers are whole, so sums are exact whatever comes and goes. Times are those of our own clock,
at which something was heard: nobody needs to have the same one.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from kvbraid.policy.bookings import Loads
from kvbraid.policy.view import RankId

MOST_REPLICAS: Final = 64
"""Of which something counts at a time; what further ones say is refused."""

_US: Final = 1_000_000


class RankLoad(NamedTuple):
    """What a replica has booked at one rank.

    `running` are its requests in flight, and `running_tokens` the tokens of their prompts.
    `waiting` are those of them without a first token, `waiting_tokens` what their prefills have to
    compute, and `wait_us` what that takes, in microseconds.
    """

    running: int
    running_tokens: int
    waiting: int
    waiting_tokens: int
    wait_us: int


RankLoads: TypeAlias = Mapping[RankId, RankLoad]
"""What one replica has booked; never changed once it is handed over."""

NOTHING: Final = RankLoad(0, 0, 0, 0, 0)


class _Heard(NamedTuple):
    """What a replica said last, and when that was heard."""

    at: float
    loads: RankLoads


class ReplicaLoads:
    """The bookings of all other replicas."""

    def __init__(self, age_s: float) -> None:
        self.age_s = age_s
        self._heard: OrderedDict[str, _Heard] = OrderedDict()  # The oldest first.
        self._sums: dict[RankId, RankLoad] = {}

    def merge(self, replica: str, loads: RankLoads, now: float) -> bool:
        """Take what a replica has booked in place of what it said before.

        Returns:
            Whether it counts; it does not if MOST_REPLICAS others do.
        """
        self._end_old(now)
        if replica not in self._heard and len(self._heard) >= MOST_REPLICAS:
            return False
        self._forget(replica)
        self._heard[replica] = _Heard(now, loads)
        self._add(loads, 1)
        return True

    def sums(self, ranks: Sequence[RankId], now: float) -> Mapping[int, RankLoad]:
        """Return what all of them have booked at the ranks, by place; others have nothing."""
        self._end_old(now)
        if not self._sums:
            return {}
        found = enumerate(map(self._sums.get, ranks))
        return {place: load for place, load in found if load is not None}

    def ages_s(self, now: float) -> dict[str, float]:
        """Return how old is what counts, by replica."""
        self._end_old(now)
        return {replica: now - heard.at for replica, heard in self._heard.items()}

    def _end_old(self, now: float) -> None:
        while self._heard:
            replica, oldest = next(iter(self._heard.items()))
            if now - oldest.at < self.age_s:
                break
            self._forget(replica)

    def _forget(self, replica: str) -> None:
        heard = self._heard.pop(replica, None)
        if heard is not None:
            self._add(heard.loads, -1)

    def _add(self, loads: RankLoads, sign: int) -> None:
        for rank, load in loads.items():
            before = self._sums.pop(rank, NOTHING)
            after = RankLoad(*(old + sign * new for old, new in zip(before, load, strict=True)))
            if after != NOTHING:
                self._sums[rank] = after

    def check_integrity(self) -> None:
        """Assert that every sum is that of what counts. For tests: it walks everything."""
        every: dict[RankId, RankLoad] = {}
        for heard in self._heard.values():
            for rank, load in heard.loads.items():
                pairs = zip(every.get(rank, NOTHING), load, strict=True)
                every[rank] = RankLoad(*map(sum, pairs))
        assert self._sums == {rank: load for rank, load in every.items() if load != NOTHING}
        assert len(self._heard) <= MOST_REPLICAS


def add_replicas(loads: Loads, sums: Mapping[int, RankLoad], others: list[float]) -> None:
    """Add what replicas have booked to the columns, and its seconds to those of others."""
    for place, load in sums.items():
        seconds = load.wait_us / _US
        loads.wait[place] += seconds
        others[place] += seconds
        loads.running[place] += load.running
        loads.running_tokens[place] += load.running_tokens
        loads.waiting[place] += load.waiting
        loads.waiting_tokens[place] += load.waiting_tokens


def booked(ranks: Sequence[RankId], loads: Loads) -> RankLoads:
    """Return the columns of these ranks as what this replica has booked there."""
    wait, *counts = loads
    columns = zip(*counts, (round(seconds * _US) for seconds in wait), strict=True)
    return {rank: RankLoad(*load) for rank, load in zip(ranks, columns, strict=True)}
