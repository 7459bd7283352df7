"""Who is sent when a pod has room, and that nobody waits beside a pod with room."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.errors import FullError, NoRankError
from kvbraid.gateway.exchange import WokenError
from kvbraid.gateway.queue import Line, RequestQueue
from kvbraid.ids import PodId
from kvbraid.service.errors import RefusalError, as_refusal
from kvbraid.service.forwarding import ForwardingOptions

_T = TypeVar("_T")
A, B, C = map(PodId, "abc")
LINES = {
    Line("m", frozenset()): (A, B),
    Line("m", frozenset({B})): (A,),
    Line("n", frozenset()): (C,),
}
BOTH, ONLY_A, OTHER = LINES
OPTIONS = ForwardingOptions(queued=6, queued_bytes=100)


@dataclass
class Client:
    """One request: `number` is its place among all, `pod` where it was sent."""

    number: int
    line: Line
    priority: int
    num_bytes: int
    is_late: bool = False
    pod: PodId | None = None
    task: "asyncio.Task[None] | None" = None

    async def wait(self, what: Literal["turn"], coming: Awaitable[_T], /) -> _T:
        assert what == "turn"
        try:
            return await coming
        except asyncio.CancelledError:
            if not self.is_late:
                raise
            raise WokenError("too_long") from None

    @property
    def key(self) -> tuple[int, int]:
        return self.priority, self.number


@dataclass
class World:
    """Pods with room for one request each, and a queue before them."""

    queue: RequestQueue = field(default_factory=lambda: RequestQueue(OPTIONS))
    free: set[PodId] = field(default_factory=lambda: {A, B, C})
    waiting: list[Client] = field(default_factory=list)
    sent: list[Client] = field(default_factory=list)
    num_clients: int = 0
    refused: list[str] = field(default_factory=list)
    fails: Exception | None = None

    async def arrive(self, line: Line, priority: int, num_bytes: int) -> Client:
        client = Client(self.num_clients, line, priority, num_bytes)
        self.num_clients += 1
        client.task = asyncio.ensure_future(self._send(client))
        await settle()
        if client.pod is None and not client.task.done():
            self.waiting.append(client)
        return client

    async def _send(self, client: Client) -> None:
        try:
            await self.queue.send(
                client,
                client.line,
                lambda: self._choose(client),
                priority=client.priority,
                num_bytes=client.num_bytes,
            )
        except (RefusalError, NoRankError) as error:
            self.refused.append(as_refusal(error).code)

    async def _choose(self, client: Client) -> None:
        await asyncio.sleep(0)  # A thread may have to choose.
        if self.fails is not None:
            raise self.fails
        for pod in LINES[client.line]:
            if pod in self.free:
                before = [c for c in self.waiting if c.line == client.line]
                assert client.key == min(c.key for c in [*before, client])
                self.free.remove(pod)
                client.pod = pod
                self.sent.append(client)
                self.waiting = [c for c in self.waiting if c is not client]
                return
        raise FullError("full")

    async def end(self, client: Client) -> None:
        assert client.pod is not None
        self.sent.remove(client)
        self.free.add(client.pod)
        self.queue.freed(client.line.model, client.pod)
        await settle()

    async def leave(self, client: Client, *, is_late: bool = False) -> None:
        client.is_late = is_late
        self.waiting.remove(client)
        assert client.task is not None
        client.task.cancel()
        await settle()

    def check(self) -> None:
        self.queue.check_integrity()
        assert len(self.queue) == len(self.waiting)
        for client in self.waiting:
            assert self.free.isdisjoint(LINES[client.line])


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


steps = st.one_of(
    st.tuples(
        st.just("arrive"), st.sampled_from(list(LINES)), st.integers(-1, 1), st.integers(0, 40)
    ),
    st.tuples(st.sampled_from(["end", "leave", "late"]), st.integers(0, 5)),
)


@given(st.lists(steps, max_size=30))
def test_the_most_urgent_is_sent_first_and_nobody_waits_beside_room(
    script: list[tuple[str, int] | tuple[str, Line, int, int]],
) -> None:
    async def play() -> None:
        world = World()
        for step in script:
            if len(step) == 4:
                await world.arrive(*step[1:])
            elif step[0] == "end" and world.sent:
                await world.end(world.sent[step[1] % len(world.sent)])
            elif step[0] != "end" and world.waiting:
                client = world.waiting[step[1] % len(world.waiting)]
                await world.leave(client, is_late=step[0] == "late")
            world.check()
        while world.sent:
            await world.end(world.sent[0])
            world.check()
        assert not world.waiting
        assert len(world.queue) == world.queue.num_bytes == 0

    asyncio.run(play())


def test_two_that_are_freed_at_once_are_both_used() -> None:
    async def play() -> None:
        world = World()
        first = [await world.arrive(BOTH, 0, 1) for _ in range(2)]
        await world.arrive(BOTH, 0, 1)
        await world.arrive(ONLY_A, 0, 1)
        for client in first:
            world.free.add(client.pod)  # type: ignore[arg-type]
            world.queue.freed("m", client.pod)  # type: ignore[arg-type]
        await settle()
        world.queue.look()
        await settle()
        world.check()

    asyncio.run(play())


def test_a_client_that_leaves_in_its_turn_wakes_another_one() -> None:
    async def play() -> None:
        world = World()
        holds = await world.arrive(ONLY_A, 0, 1)
        await world.arrive(BOTH, 0, 1)
        turn, other = await world.arrive(BOTH, 0, 1), await world.arrive(ONLY_A, 0, 1)
        world.free.add(holds.pod)  # type: ignore[arg-type]
        world.queue.freed("m", A)
        await world.leave(turn)  # Before it could take it.
        assert other.pod == A

    asyncio.run(play())


@pytest.mark.parametrize(("number", "num_bytes"), [(6, 1), (2, 50), (0, 101)])
def test_a_queue_that_is_full_refuses_at_once(number: int, num_bytes: int) -> None:
    async def play() -> None:
        world = World()
        await world.arrive(OTHER, 0, 101)  # Who need not wait is not counted.
        for _ in range(number):
            await world.arrive(OTHER, 0, num_bytes)
        assert (len(world.queue), world.refused) == (number, [])
        await world.arrive(OTHER, -1, num_bytes)
        assert (len(world.queue), world.refused) == (number, ["too_many_requests"])
        assert world.queue.outcomes == {"no_place": 1}
        for client in list(world.waiting):
            await world.leave(client)
        assert world.queue.outcomes["left"] == number

    asyncio.run(play())


def test_whoever_waits_too_long_is_refused_and_counted() -> None:
    async def play() -> None:
        world = World()
        await world.arrive(OTHER, 0, 1)
        await world.leave(await world.arrive(OTHER, 0, 1), is_late=True)
        assert world.refused == ["too_many_requests"]
        assert world.queue.outcomes == {"too_long": 1}

    asyncio.run(play())


def test_a_request_that_is_woken_in_vain_waits_no_longer_for_that() -> None:
    async def play() -> None:
        world = World(RequestQueue(ForwardingOptions(queued_s=1e-9)))
        await world.arrive(OTHER, 0, 1)
        await world.arrive(OTHER, 0, 1)  # Its entry wakes it.
        assert world.refused == ["too_many_requests"]
        assert world.queue.outcomes == {"too_long": 1}

    asyncio.run(play())


def test_nobody_waits_for_pods_that_are_gone() -> None:
    async def play() -> None:
        world = World()
        await world.arrive(OTHER, 0, 1)
        await world.arrive(OTHER, 0, 1)
        world.fails = NoRankError("draining")
        world.queue.look()
        await settle()
        assert (world.refused, len(world.queue)) == (["no_pod"], 0)
        await world.arrive(BOTH, 0, 1)
        assert (world.refused, len(world.queue)) == (["no_pod"] * 2, 0)

    asyncio.run(play())
