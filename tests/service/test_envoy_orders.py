"""Whatever Envoy sends in whatever order: nothing crashes, and no booking is left over."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from kvbraid.errors import KvbraidError
from kvbraid.gateway.envoy.logs import read_entry
from kvbraid.gateway.envoy.picker import Picker
from kvbraid.gateway.envoy.processing import BodyMode, Processing
from kvbraid.gateway.envoy.protos.ext_proc_pb2 import ProcessingRequest
from kvbraid.ids import PodId
from kvbraid.service.config import FleetConfig
from kvbraid.service.errors import as_refusal
from kvbraid.service.registry import Service

from tests.service.envoy_streams import (
    PODS,
    entry,
    pod,
    prompt,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.service.fakes import FakeFeed, FakeIndex
from tests.service.listed_tokens import ListedTokens

NAMES = st.sampled_from(["r", "s"])
MODES = st.sampled_from(list(BodyMode))
USAGE = b'{"usage": {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}}'
SERVED = st.sampled_from(["", *(url.removeprefix("http://") for url in PODS.values()), "z:1"])
MESSAGES = st.one_of(
    st.builds(request_headers, MODES, MODES, ends=st.booleans(), x_request_id=NAMES),
    st.builds(request_body, st.sampled_from([prompt(4), b"", b"{"]), ends=st.booleans()),
    st.builds(request_trailers),
    st.builds(response_headers, st.sampled_from([200, 503]), served=SERVED, ends=st.booleans()),
    st.builds(response_body, st.sampled_from([b"", USAGE]), ends=st.booleans()),
    st.builds(response_trailers),
    st.builds(ProcessingRequest),
)
ENTRIES = st.builds(entry, NAMES, st.sampled_from([200, 503]), endpoint=SERVED)
STREAMS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), STREAMS, MESSAGES),
        st.tuples(st.just("close"), STREAMS, st.booleans()),
        st.tuples(st.just("entry"), STREAMS, ENTRIES),
    ),
    max_size=30,
)


class Game:
    """Three streams at a time, and the log; a stream that has ended is replaced by another."""

    def __init__(self) -> None:
        self.service = Service(FakeIndex(), FakeFeed())
        for name, url in PODS.items():
            self.service.put(PodId(name), pod(url))
        self.picker = Picker(self.service, ListedTokens(), FleetConfig())
        self.streams = [self.stream() for _ in range(3)]
        self.sent: set[Processing] = set()

    def stream(self) -> Processing:
        return Processing(self.picker.served, most_bytes=1000)

    async def message(self, place: int, message: ProcessingRequest) -> None:
        stream = self.streams[place]
        try:
            progress = stream.receive(message)
            for told in progress.told:
                self.picker.report(stream, told)
            if progress.asks is not None:
                stream.send_to(await self.picker.decide(stream, progress.asks))
                self.sent.add(stream)
        except KvbraidError as error:
            stream.refuse(as_refusal(error))

    async def close(self, place: int, was_sent: bool) -> None:
        stream = self.streams[place]
        self.streams[place] = self.stream()
        self.picker.close(stream, is_sent=was_sent and stream in self.sent)

    async def entry(self, place: int, it: Any) -> None:  # noqa: ANN401 - an entry
        del place
        ended = read_entry(it)
        assert ended is not None
        self.picker.note_end(ended)

    async def play(self, steps: list[tuple[str, int, Any]]) -> None:
        for name, place, it in steps:
            step: Coroutine[Any, Any, None] = getattr(self, name)(place, it)
            await step
            self.picker.check_integrity()
            assert self.service.picking.num_booked() <= 2  # There are two names.
            self.service.picking._router.check_integrity()
        for place in range(3):
            await self.close(place, True)
        for name in ("r", "s"):  # What only the log can tell, it does.
            await self.entry(0, entry(name))
        assert self.service.picking.num_booked() == 0


@settings(max_examples=150)
@given(STEPS)
def test_no_order_of_messages_ends_and_entries_leaves_a_booking(
    steps: list[tuple[str, int, Any]],
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Game().play(steps))
