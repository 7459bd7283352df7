"""A deployment's chooser decides as `Router` does for the same requests, times and reports."""

import asyncio
from random import Random
from typing import Any, Final

from hypothesis import example, given
from hypothesis import strategies as st
from kvbraid.fleet import FleetIndex, Request
from kvbraid.ids import PodId
from kvbraid.integrations.replicas.choosing import HandleCall
from kvbraid.policy import Router, RouterOptions, Seconds
from kvbraid.spec_mapping import topology_from_mapping

from tests.unit.integrations.deployments import GROUPS, MODEL, Deployment, stored

NAMES: Final = ("a", "b", "c", "d")
PROMPTS: Final = (range(960), range(1440), range(5000, 6120))

PROMPT = st.sampled_from(PROMPTS)
SOME = st.sets(st.sampled_from(NAMES), min_size=1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), PROMPT, SOME, st.none() | st.sampled_from(["s", "t"])),
        st.tuples(st.just("again"), st.integers(0, 20), SOME),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("store"), st.sampled_from(NAMES), PROMPT),
        st.tuples(st.just("wait"), st.integers(0, 2_000)),
    ),
    max_size=30,
)


class Twins:
    """A deployment, and a router as anybody makes one, which are told and asked the same."""

    def __init__(self) -> None:
        self._fleet = Deployment(names=NAMES)
        self._index = FleetIndex()
        for name in NAMES:
            topology = topology_from_mapping(GROUPS)
            self._index.register(PodId(name), model=MODEL, topology=topology)
        self._router = Router(
            self._index,
            seconds={MODEL: Seconds(fixed=0.01, per_token=1e-4, per_pair=0.0)},
            options=RouterOptions(first_tokens=False),
            chance=Random(1),
        )
        self._calls: list[tuple[HandleCall, Request]] = []
        self._booked: dict[int, str] = {}

    def ask(self, prompt: range, some: set[str], session: str | None) -> None:
        call = HandleCall(f"call{len(self._calls)}", (list(prompt),), session=session)
        self._calls.append((call, Request(model=MODEL, token_ids=prompt)))
        self._choose(len(self._calls) - 1, some)

    def again(self, number: int, some: set[str]) -> None:
        if number in self._booked:
            self._choose(number, some)

    def end(self, number: int) -> None:
        pod = self._booked.pop(number, None)
        if pod is not None:
            self._fleet.chooser.completed(self._calls[number][0].call_id, PodId(pod))
            assert self._router.end(str(number), now=self._fleet.now)

    def store(self, name: str, prompt: range) -> None:
        self._fleet.store(name, prompt)
        assert self._index.apply(PodId(name), stored(prompt)).refused == 0

    def wait(self, milliseconds: int) -> None:
        self._fleet.now += milliseconds / 1_000

    def check(self) -> None:
        self._fleet.chooser.check_integrity()
        assert self._fleet.chooser.router.num_booked() == self._router.num_booked()

    def _choose(self, number: int, some: set[str]) -> None:
        call, request = self._calls[number]
        replicas = [each for each in self._fleet.replicas if each.replica_id.unique_id in some]
        ranks, ours = asyncio.run(self._fleet.chooser.rank(call, replicas))
        self._fleet.chooser.sent(call)
        theirs = self._router.pick(
            str(number),
            request,
            now=self._fleet.now,
            candidates=[(PodId(name), 0) for name in some],
            session=call.session,
        )
        assert ours is not None
        assert (ours.rank, ours.costs) == (theirs.rank, theirs.costs)
        assert (ours.lower, ours.upper) == (theirs.lower, theirs.upper)
        assert [each.replica_id.unique_id for each in ranks[0]] == [ours.rank[0]]
        self._booked[number] = ours.rank[0]


@given(steps=STEPS)
@example(steps=[("ask", PROMPTS[0], {"a"}, None), ("again", 0, {"b"}), ("end", 0)])
def test_a_chooser_decides_as_a_router(steps: list[tuple[Any, ...]]) -> None:
    twins = Twins()
    for name, *arguments in steps:
        getattr(twins, name)(*arguments)
        twins.check()
