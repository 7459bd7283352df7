"""Promises of the fleet index against a model that goes from boundary to boundary.

Integrity is checked after every step. Bounds, states and what is expected stay as they are without
promises.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events.model import AllBlocksCleared
from kvbraid.fleet import FleetIndex, IndexOptions, Request, Scores
from kvbraid.hashing import HashAlgo
from kvbraid.spec import Topology

from tests.differential.fleet_worlds import FLEETS, SECRET, SEEDS, STEPS, World, world
from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_index import Prefix
from tests.reference.fleet_traffic import Engine, Habits
from tests.reference.promised import Promise, coming


def asked(prompt: Prefix) -> Request:
    return Request(model="m", token_ids=prompt.tokens, lora=prompt.lora, cache_salt=prompt.salt)


@dataclass
class Promising:
    """A world whose gateway says what it sends."""

    world: World
    random: Random
    promises: dict[int, tuple[Engine, Promise]] = field(default_factory=dict)

    @property
    def index(self) -> FleetIndex:
        return self.world.index

    def of(self, engine: Engine) -> list[Promise]:
        return [promise for owner, promise in self.promises.values() if owner is engine]

    def end(self, engine: Engine, *, only_fulfilled: bool) -> None:
        for number, (owner, promise) in list(self.promises.items()):
            is_over = not only_fulfilled or promise.is_fulfilled(engine.model)
            if owner is engine and is_over:
                del self.promises[number]

    def promise(self, engine: Engine) -> None:
        prompt = traffic.request(self.random, self.world.prompts)
        promise = Promise(
            prompt,
            self.random.choice((0, self.random.randint(0, len(prompt.tokens)), 99)),
            sparse_windows=engine.dp_rank == 1,
        )
        # What was scored is promised with the keys that it was scored with.
        way: Callable[..., int] = partial(self.index.promise, request=asked(prompt))
        if self.random.random() < 0.5:
            way = self.index.score(asked(prompt)).promise
        # That windows are kept sparsely goes without saying.
        said = self.random.choice((True, None)) if promise.sparse_windows else False
        number = way(
            engine.pod,
            dp_rank=engine.dp_rank,
            junction=promise.junction,
            sparse_windows=said,
        )
        self.promises[number] = (engine, promise)

    def withdraw(self) -> None:
        if self.promises:
            number = self.random.choice([*self.promises])
            del self.promises[number]
            self.index.withdraw(number)
            assert not self.index.withdraw(number)

    def publish(self, engine: Engine) -> None:
        is_cleared = any(isinstance(event, AllBlocksCleared) for event in engine.pending)
        engine.publish(self.index)
        self.end(engine, only_fulfilled=not is_cleared)

    def step(self) -> None:
        engine = self.random.choice(self.world.engines)
        match self.random.choice(("act", "act", "promise", "promise", "withdraw", "clear")):
            case "act":
                engine.act(self.world.prompts)
                self.publish(engine)
            case "promise":
                self.promise(engine)
            case "withdraw":
                self.withdraw()
            case _ if self.random.random() < 0.2:
                engine.clear()
                self.publish(engine)
        self.index.check_integrity()

    def check(self) -> None:
        prompt = traffic.request(self.random, self.world.prompts)
        scores = self.index.score(asked(prompt))
        columns = scores.columns()
        at = {rank: i for i, rank in enumerate(columns.ranks)}
        for engine in self.world.engines:
            i = at[engine.pod, engine.dp_rank]
            tokens, present = coming(engine.model, self.of(engine), prompt)
            if not self.of(engine):
                tokens = 0
            assert columns.soon[i] == max(columns.upper[i], tokens), (prompt, self.of(engine))
            assert columns.expected_soon[i] == max(columns.expected[i], tokens)
            assert columns.present_soon[i] == present, (prompt, self.of(engine))
        check_columns(scores)


def check_columns(scores: Scores) -> None:
    columns = scores.columns()
    for i, row in enumerate(scores.rows):
        assert columns.ranks[i] == (row.pod, row.dp_rank)
        assert columns.states[i] is row.state
        numbers = (row.lower, row.upper, row.expected, row.present)
        told = (columns.lower, columns.upper, columns.expected, columns.present)
        assert tuple(column[i] for column in told) == numbers


DENSE = st.builds(
    Habits,
    sparse=st.just(0.0),
    orphan=st.just(0.0),
    partial=st.sampled_from((0.0, 0.5)),
    other_tier=st.sampled_from((0.0, 0.3)),
)
"""Each hash has its place when it is stored: so a promise ends when it is fulfilled."""


@given(seed=SEEDS, fleet=FLEETS, habits=DENSE, steps=STEPS)
def test_what_is_promised_is_the_model_s(
    seed: int, fleet: list[Topology], habits: Habits, steps: int
) -> None:
    options = IndexOptions(secret=SECRET)
    fleet_world = world(seed, fleet, habits, HashAlgo.SHA256, options)
    promising = Promising(fleet_world, Random(seed))
    for _ in range(steps):
        promising.step()
        promising.check()
    counted = promising.index.num_promised()
    assert counted <= len(promising.promises)  # Some are of no whole block.


@given(seed=SEEDS, fleet=FLEETS, steps=STEPS, limit=st.sampled_from((0, 2_000, 10_000)))
def test_promises_stay_within_their_memory(
    seed: int, fleet: list[Topology], steps: int, limit: int
) -> None:
    options = IndexOptions(secret=SECRET, promise_limit_bytes=limit)
    fleet_world = world(seed, fleet, Habits(), HashAlgo.SHA256, options)
    promising = Promising(fleet_world, Random(seed))
    num_left_out = 0
    for _ in range(steps):
        before = promising.index.num_promised()
        promising.promise(promising.random.choice(fleet_world.engines))
        promising.index.check_integrity()
        num_left_out += before + 1 - promising.index.num_promised()
    refused = [row.refused.get("promises_over_limit", 0) for row in promising.index.pods()]
    assert sum(refused) <= num_left_out
    assert limit or not promising.index.num_promised()
