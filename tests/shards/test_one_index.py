"""Three shards and a front answer and choose exactly as one index of all pods does."""

from array import array
from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.fleet import Columns, FleetIndex, Request
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodId
from kvbraid.policy import Router, RouterOptions
from kvbraid.policy.asking import Promising
from kvbraid.service.answers import ExplainRow, ScoreAnswer
from kvbraid.service.ports import Index
from kvbraid.sim.captures.read import Capture, Lookup, read_capture
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.captures import FIXTURES, captures_in
from tests.shards.fleets import Fleet, fleet, stored_prompt

SILENT = Topology(
    groups=(
        GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
        GroupSpec(kind=SpecKind.MAMBA, block_size=16),
    )
)
LOOKUPS = 12
"""Of one capture."""


@pytest.fixture(scope="module")
def captures() -> list[Capture]:
    return [read_capture(folder) for folder in captures_in(FIXTURES)]


def by_name(columns: Columns) -> dict[str, list[object]]:
    return {name: list(getattr(columns, name)) for name in Columns.__struct_fields__}


def rows(body: bytes) -> ScoreAnswer:
    return msgspec.json.decode(body, type=ScoreAnswer)


def reasons(index: Index, request: Request) -> list[ExplainRow]:
    rows = index.explain(request).rows
    return msgspec.convert(rows, list[ExplainRow], from_attributes=True)


def assert_equal(fleet: Fleet, request: Request) -> None:
    ours, theirs = (index.score(request, with_seen=True) for index in (fleet.front, fleet.whole))
    assert by_name(ours.columns()) == by_name(theirs.columns())
    assert rows(ours.to_json()) == rows(theirs.to_json())
    assert reasons(fleet.front, request) == reasons(fleet.whole, request)
    assert ours.seen is not None
    assert theirs.seen is not None
    assert ours.seen.tokens == theirs.seen.tokens


def asked(capture: Capture) -> Iterator[tuple[Lookup, Sequence[bytes]]]:
    """Lookups of a recorded engine, each after the payloads that it had published since."""
    told = 0
    lookups = [each for each in capture.operations if isinstance(each, Lookup)]
    for lookup in lookups[:: max(1, len(lookups) // LOOKUPS)]:
        yield lookup, [m.payload for m in capture.messages[told : lookup.messages_seen]]
        told = max(told, lookup.messages_seen)


def test_every_column_of_recorded_engines_is_that_of_one_index(captures: list[Capture]) -> None:
    chance = Random(1)
    with fleet() as made:
        for capture in captures:
            made.register(capture.name, capture.topology, capture.engine)
        for capture in captures:
            for lookup, payloads in asked(capture):
                for payload in payloads:
                    made.apply(capture.name, payload)
                request = Request(
                    model="m",
                    token_ids=memoryview(array("Q", lookup.token_ids)),
                    lora=lookup.lora,
                    cache_salt=lookup.cache_salt,
                    tiers=capture.tiers,
                )
                assert_equal(made, request)
                pod, junction = chance.choice(captures).name, len(request.token_ids) // 2
                for index in (made.front, made.whole):
                    scores = index.score(request)
                    scores.columns()
                    scores.promise(PodId(pod), junction=junction)
                assert_equal(made, request)
        assert {made.shard(capture.name).shard.number for capture in captures} == {1, 2, 3}
        assert any(server.index.num_promised() for server in made.servers.values())
        made.front.check_integrity()
        for server in made.servers.values():
            server.service.questions.check_integrity()


@pytest.mark.parametrize(
    "request_",
    [
        Request(model="m", token_ids=[]),
        Request(model="m", token_ids=range(70), pods=["pod-1", "pod-4"]),
        Request(model="m", token_ids=[(1 << 61) + i for i in range(70)]),
        Request(model="m", token_ids=array("I", range(70)), tiers=["gpu"], extra_key="k"),
        Request(model="m", token_ids=range(70), extra_keys=[MediaItem("hash", 3, 9)]),
        Request(model="m", token_ids=range(70), strategy="weighted_blocks"),
    ],
)
def test_every_field_of_a_request_reaches_the_shards(request_: Request) -> None:
    with fleet() as made:
        for number in range(8):
            made.register(f"pod-{number}", dp_size=1 + number % 2)
            made.apply(f"pod-{number}", stored_prompt(range(16 * (number % 5))))
        assert_equal(made, request_)


def test_what_no_index_can_answer_is_refused_alike() -> None:
    with fleet() as made:
        for index in (made.front, made.whole):
            with pytest.raises(UnknownError):
                index.score(Request(model="other", token_ids=[1])).columns()
            with pytest.raises(UnknownError):
                index.score(Request(model="m", token_ids=[1], pods=["nobody"])).columns()
            for wrong in ([-1], [1 << 64], ["1"]):
                with pytest.raises(InvalidValueError):
                    index.score(Request(model="m", token_ids=wrong)).columns()  # type: ignore[arg-type]


def test_a_shard_is_told_what_was_sent_to_its_pods() -> None:
    long, short, asked = (Request(model="m", token_ids=range(end)) for end in (257, 209, 210))
    with fleet() as made:
        made.register("pod-0", SILENT, EngineProfile(dialect=EngineDialect.SGLANG), dp_size=2)
        made.register("pod-1", model="other")
        for index in (made.front, made.whole):
            index.routed(PodId("pod-0"), long, [257])
            for pod, rank in (("pod-0", 2), ("pod-1", 0), ("nobody", 0)):
                with pytest.raises(UnknownError):
                    index.routed(PodId(pod), long, [1], dp_rank=rank)
        made.apply("pod-0", stored_prompt(range(256)))
        assert made.front.score(asked).columns().expected[0] == 0
        for index in (made.front, made.whole):
            index.routed(PodId("pod-0"), short, [8])
        assert made.front.score(asked).columns().expected[0] == 192
        assert_equal(made, asked)


def chosen(index: Promising, seed: int) -> list[tuple[object, ...]]:
    """What a router over an index chooses, of prompts that share beginnings, as time goes by."""
    router, chance = (
        Router(index, options=RouterOptions(with_seen=True), chance=Random(1)),
        Random(seed),
    )
    made: list[tuple[object, ...]] = []
    now = 0.0
    for number in range(60):
        now += chance.random() / 20
        prompt = range(1000 * chance.randrange(6), 1000 * chance.randrange(6, 9))
        decision = router.pick(f"r{number}", Request(model="m", token_ids=prompt), now=now)
        made.append((decision.rank, decision.costs, decision.lower, decision.resumable))
        if number >= 5:
            ended = f"r{number - chance.randrange(6)}"
            router.first_token(ended, now=now)
            router.end(ended, now=now) if chance.random() < 0.7 else router.fail(ended, now=now)
    router.check_integrity()
    return made


@pytest.mark.parametrize("seed", range(3))
def test_a_front_chooses_as_a_router_over_one_index(seed: int) -> None:
    with fleet() as made:
        for number in range(8):
            made.register(f"pod-{number}")
            made.apply(f"pod-{number}", stored_prompt(range(1000 * (number % 3), 8000, 1)[:2400]))
        assert chosen(made.front, seed) == chosen(made.whole, seed)


def test_an_index_with_a_missing_pod_is_told_apart() -> None:
    """The comparison itself can fail."""
    with fleet() as made:
        made.register("pod-1")
        made.whole.apply(PodId("pod-1"), stored_prompt(range(64)))
        with pytest.raises(AssertionError):
            assert_equal(made, Request(model="m", token_ids=range(64)))
    assert isinstance(made.whole, FleetIndex)
