"""A day of a server, by a clock that is told: what has gone leaves nothing in memory."""

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec
import pytest
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet import FleetIndex
from kvbraid.fleet.index import IndexOptions
from kvbraid.ids import PodId
from kvbraid.service.console import ConsoleOptions
from kvbraid.service.http.events import Changes
from kvbraid.service.requests import PickEvent, ReportBody, parse_pick

from tests.service.picks import Fleet, fleet_of

HOURS: Final = 24
REQUESTS_AN_HOUR: Final = 120
REPORTS: Final[Sequence[Sequence[PickEvent]]] = (
    ("first_token", "end"), ("end",), ("failed",), ("first_token",), (),
)  # fmt: skip
MOST_GROWTH: Final = 64 << 10
"""Bytes that Python may hold more after six hours: for tables that grow late, not per request."""


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    index = FleetIndex(IndexOptions(seen_limit_bytes=64 << 10))
    yield from fleet_of(index=index, console=ConsoleOptions(requests=REQUESTS_AN_HOUR // 2))


def live(fleet: Fleet, hour: int) -> dict[str, int]:
    """Let an hour go by, in which a pod takes the place of another; return what is accounted."""
    service, index, recent = fleet.service, fleet.index, fleet.service.picking.recent
    fleet.put(pod := f"pod-{hour}")
    fleet.client.delete(f"/v1/pods/pod-{hour - 1}")
    for at in range(REQUESTS_AN_HOUR):
        fleet.clock.now += 3600 / REQUESTS_AN_HOUR
        index.apply(PodId(pod), encode_batch(list(blocks(hour * REQUESTS_AN_HOUR + at))))
        ask(fleet, f"{hour}-{at}", [hour, *range(at, at + 40)])
        report(fleet, f"{hour}-{at}", at)
    asyncio.run(look(Changes(service, period_s=0)))
    service.journal.tell_left_out(is_last=True)
    return {
        "booked": service.picking.num_booked(),
        "promised": index.num_promised(),
        "requests": len(recent.changed_after(0, 1 << 30)[1]),
        "intervals": len(service.picking.ladder.history.rows()),
    }


def blocks(number: int) -> Iterator[BlockStored | BlockRemoved]:
    """A block that nobody had before, and the end of one that is ten minutes old."""
    tokens = (number, *range(15))
    yield BlockStored(block_hashes=(number,), parent_block_hash=None, token_ids=tokens,
                      block_size=16, group_idx=0, kv_cache_spec_kind="full_attention")  # fmt: skip
    yield BlockRemoved(block_hashes=(max(number - 20, 0),), group_idx=0)


def ask(fleet: Fleet, name: str, token_ids: list[int]) -> None:
    body = {"model": "m", "token_ids": token_ids, "request_id": name, "session": name}
    asked = parse_pick(msgspec.json.encode(body), max_tokens=1000)
    fleet.service.picking.pick(asked, fleet.service.pods)


def report(fleet: Fleet, name: str, at: int) -> None:
    """Tell of most requests that they ended or failed; of some nothing more is ever heard."""
    for event in REPORTS[at % len(REPORTS)]:
        cached = 16 if event == "end" else None
        fleet.service.picking.report(ReportBody(pick=name, event=event, cached_tokens=cached))


async def look(changes: Changes) -> None:
    """Pages come, read some messages and go, in order or not."""
    streams = [changes.subscribe(()) for _ in range(3)]
    for stream in islice(streams, 2):
        for _ in range(2):
            await anext(stream)
    for stream in streams:
        stream.close()
    assert changes.num_streams == 0
    changes.close()


def test_after_a_day_a_server_holds_what_it_held_after_an_hour(fleet: Fleet) -> None:
    def used() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def num_series() -> int:
        text: str = fleet.client.get("/metrics").text
        return text.count("\n")

    accounted = [live(fleet, hour) for hour in range(HOURS // 2)]
    of_index, of_metrics = fleet.index.memory_bytes(), num_series()
    tracemalloc.start()
    try:
        accounted += [live(fleet, hour) for hour in range(HOURS // 2, HOURS * 3 // 4)]
        before = used()
        accounted += [live(fleet, hour) for hour in range(HOURS * 3 // 4, HOURS)]
        grown = used() - before
    finally:
        tracemalloc.stop()
    assert accounted[1:] == [accounted[1]] * (HOURS - 1)
    assert accounted[1]["requests"] == REQUESTS_AN_HOUR // 2
    assert 0 < accounted[1]["booked"] < REQUESTS_AN_HOUR // 2
    assert fleet.index.memory_bytes() <= of_index
    assert num_series() < of_metrics + HOURS // 2, "pods that are gone have none"
    assert grown < MOST_GROWTH
