"""Random fleets with their index and their models: engines act, and every answer is checked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import msgspec
import pytest
from hypothesis import strategies as st
from kvbraid.fleet.answer import PodInfo, PodScore
from kvbraid.fleet.index import SECRET_BYTES, FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.fleet.weights import TIER_WEIGHTS
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId, PodState, Tier
from kvbraid.spec import Topology

from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_index import Answer, Prefix, RankModel
from tests.reference.fleet_traffic import Engine, Habits, Hashes
from tests.reference.topologies import topologies

SEED = "7"
FILLER = PodId("filler")


def known(index: FleetIndex) -> list[PodInfo]:
    """Return what an index says of its pods, all but how much memory that takes."""
    return [msgspec.structs.replace(row, memory_bytes=0) for row in index.pods()]


@dataclass(slots=True)
class World:
    """A fleet, its index, and the prompts that its users send."""

    index: FleetIndex
    engines: list[Engine]
    prompts: list[Prefix]
    random: Random
    idle: RankModel
    renew: Callable[[], FleetIndex]
    forgets: bool = False

    def steps(self, count: int) -> Iterator[None]:
        """Let engines act; every batch is published and checked before the next."""
        for _ in range(count):
            engine = self.random.choice(self.engines)
            for _ in range(self.random.choice((1, 1, 2, 5))):
                engine.act(self.prompts)
            if self.random.random() < engine.habits.restart:
                engine.clear()
                engine.act(self.prompts)
            engine.publish(self.index, forgets=self.forgets)
            if self.forgets:
                self.index.enforce_limits()
            if self.random.random() < engine.habits.restart:
                self.restart(engine.pod, engine.feed)
            self.index.check_integrity()
            yield

    def save_and_load(self) -> None:
        """Another index takes over from what this one saved, and knows the same from then on."""
        other = self.renew()
        for pod in {row.pod for row in self.index.pods()}:
            saved = self.index.save(pod, note=pod)
            assert other.load(pod, saved) == pod
            assert other.save(pod, note=pod) == saved
        other.check_integrity()
        assert known(other) == known(self.index)
        self.index = other

    def restart(self, pod: PodId, feed: int) -> None:
        """A feed sees its publisher come back empty: so are all engines that publish by it."""
        self.index.set_state(pod, PodState.REBUILDING, dp_rank=feed)
        fed = [engine for engine in self.engines if (engine.pod, engine.feed) == (pod, feed)]
        rebuilding = {
            row.dp_rank
            for row in self.index.pods()
            if row.pod == pod and row.state is PodState.REBUILDING
        }
        assert rebuilding == {engine.dp_rank for engine in fed}
        self.index.reset(pod, dp_rank=feed)
        self.index.set_state(pod, PodState.EXACT, dp_rank=feed)
        for engine in fed:
            engine.restart()

    def ask(self) -> Iterator[tuple[Engine, Prefix, PodScore]]:
        """One request, every engine's row of the answer."""
        prompt = traffic.request(self.random, self.prompts)
        scores = self.index.score(
            Request(model="m", token_ids=prompt.tokens, lora=prompt.lora, cache_salt=prompt.salt)
        )
        self.index.check_integrity()
        rows = {(row.pod, row.dp_rank): row for row in scores.rows}
        assert len(rows) == len(scores)
        for engine in self.engines:
            row = rows.pop((engine.pod, engine.dp_rank))
            assert row.state is PodState.EXACT
            assert row.tiers["gpu"] == row.tiers[min(row.tiers, key=len)]
            assert (row.lower, row.upper) == (row.tiers["gpu"].lower, row.tiers["gpu"].upper)
            assert row.exactness == ("exact" if row.lower == row.upper else "bound")
            assert row.lower <= row.expected <= row.upper
            yield engine, prompt, row
        nothing = self.idle.answer(prompt, [Tier.GPU])
        assert all((row.lower, row.upper) == nothing for row in rows.values())


def world(
    seed: int,
    fleet: list[Topology],
    habits: Habits,
    algo: HashAlgo | None,
    options: IndexOptions,
    filler_ranks: int = 0,
) -> World:
    """Pods of two ranks each, after a pod with so many ranks that holds nothing.

    Each rank has a feed, or both publish by that of the first, which alone is registered: the
    other shows itself by its payloads.
    """
    random = Random(seed)
    engines: list[Engine] = []

    def renew() -> FleetIndex:
        index = FleetIndex(options)
        if filler_ranks:
            index.register(
                FILLER,
                model="m",
                dp_size=filler_ranks,
                topology=fleet[0],
                engine=Hashes(1, None).profile,
            )
        traffic.register(index, engines, {engine.pod: engine.feed + 1 for engine in engines})
        return index

    for number, topology in enumerate(fleet):
        unit = traffic.unit_of(topology)
        feeds = random.choice(((0, 1), (0, 0)))
        for dp_rank, feed in enumerate(feeds):
            engine = Engine(
                pod=PodId(f"pod{number}"),
                dp_rank=dp_rank,
                topology=topology,
                hashes=Hashes(unit, algo, SEED),
                habits=habits,
                random=random,
                feed=feed,
            )
            engines.append(engine)
    index = renew()
    for engine in engines:
        engine.publish(index)
    unit = max(traffic.unit_of(topology) for topology in fleet)
    # No engine whose hash function is known has wide tokens.
    is_wide = algo is None and seed % 2 == 1
    prompts = traffic.prompts(random, unit, random.randint(1, 4), wide=is_wide)
    return World(index, engines, prompts, random, idle=RankModel(fleet[0], {}), renew=renew)


def tiers_of(name: str) -> list[Tier]:
    return [Tier(tier) for tier in name.split("+")]


def check_exact(row: PodScore, engine: Engine, prompt: Prefix) -> None:
    for name, bounds in row.tiers.items():
        expected = engine.model.answer(prompt, tiers_of(name))
        assert Answer(bounds.lower, bounds.upper) == expected, (row, prompt)
    assert row.present == engine.model.present(prompt, [Tier.GPU])
    assert row.expected == engine.model.likely(prompt, [Tier.GPU])
    assert row.score == pytest.approx(engine.model.score(prompt, TIER_WEIGHTS)), (row, prompt)


def check_bounds(row: PodScore, engine: Engine, prompt: Prefix) -> None:
    for name, bounds in row.tiers.items():
        truth = engine.model.answer(prompt, tiers_of(name))
        assert bounds.lower <= truth.lower, (name, row, prompt)
        assert bounds.upper >= truth.upper, (name, row, prompt)
    assert row.present <= engine.model.present(prompt, [Tier.GPU])


SEEDS = st.integers(0, 2**32)
FLEETS = st.lists(topologies(st.integers(1, 5)), min_size=1, max_size=2)
HABITS = st.builds(
    Habits,
    sparse=st.sampled_from((0.0, 0.3, 0.6, 1.0)),
    orphan=st.sampled_from((0.0, 0.3, 0.9)),
    partial=st.sampled_from((0.0, 0.5, 1.0)),
    other_tier=st.sampled_from((0.0, 0.3)),
    restart=st.sampled_from((0.0, 0.05)),
    unknown_removal=st.sampled_from((0.0, 0.3)),
)
STEPS = st.sampled_from((2, 10, 20, 40))
SECRET = bytes(SECRET_BYTES)
"""Fixed, so that an example that fails fails again."""
