"""What the fleet index has ever seen, against a model that forgets nothing, and one of 16 places.

Integrity is checked after every step. Pods restart, are cleared, go and come back, so that
boundaries are named, forgotten and named again.
"""

from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events.model import BlockStored
from kvbraid.fleet import FleetIndex, IndexOptions, Request, Seen
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId
from kvbraid.spec import Topology

from tests.differential.fleet_worlds import FLEETS, HABITS, SECRET, SEEDS, STEPS, World, world
from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_index import Prefix
from tests.reference.fleet_traffic import Engine, Habits
from tests.reference.seen import ROW, Shown, Table, longest, promised

ALGORITHMS = st.sampled_from((HashAlgo.SHA256, None))


def asked(prompt: Prefix) -> Request:
    return Request(model="m", token_ids=prompt.tokens, lora=prompt.lora, cache_salt=prompt.salt)


@dataclass
class Showing:
    """A world whose pods come and go, and whose gateway promises."""

    world: World
    random: Random
    shown: Shown = field(default_factory=Shown)
    numbers: list[int] = field(default_factory=list)

    @property
    def index(self) -> FleetIndex:
        return self.world.index

    def publish(self, engine: Engine) -> None:
        stored = [event for event in engine.pending if isinstance(event, BlockStored)]
        engine.publish(self.index)
        told = [h for event in stored for h in (*event.block_hashes, event.parent_block_hash)]
        self.shown.publish(engine.model, [h for h in told if h is not None])

    def act(self, engine: Engine) -> None:
        engine.act(self.world.prompts)
        self.publish(engine)

    def clear(self, engine: Engine) -> None:
        engine.clear()
        self.publish(engine)

    def restart(self, engine: Engine) -> None:
        self.world.restart(engine.pod, engine.feed)

    def promise(self, engine: Engine) -> None:
        prompt = traffic.request(self.random, self.world.prompts)
        number = self.index.promise(engine.pod, asked(prompt), dp_rank=engine.dp_rank)
        self.numbers.append(number)
        self.shown.promise(engine.topology, prompt)

    def withdraw(self, _: Engine) -> None:
        if self.numbers:
            self.index.withdraw(self.numbers.pop())

    def return_anew(self, engine: Engine) -> None:
        """A pod goes with all its ranks, and comes back with none of what they held."""
        own = [each for each in self.world.engines if each.pod == engine.pod]
        self.index.remove(engine.pod)
        self.index.check_integrity()
        traffic.register(self.index, own, {engine.pod: max(each.feed for each in own) + 1})
        for each in own:
            each.restart()
            each.model.restart()
            each.model.doubted.clear()
            each.publish(self.index)

    def step(self) -> None:
        ways = (self.act, self.act, self.act, self.promise, self.withdraw)
        rare = (self.clear, self.restart, self.return_anew)
        way = self.random.choice(rare if self.random.random() < 0.15 else ways)
        way(self.random.choice(self.world.engines))
        self.index.check_integrity()

    def ask(self) -> tuple[Prefix, Seen]:
        prompt = traffic.request(self.random, self.world.prompts)
        seen = self.index.seen(asked(prompt))
        self.index.check_integrity()
        assert seen == self.index.seen(asked(prompt))
        pods = self.random.choice((None, [self.world.engines[0].pod]))
        scores = self.index.score(replace(asked(prompt), pods=pods), with_seen=True)
        assert scores.seen == self.index.seen(asked(prompt))
        return prompt, seen


def showing(
    seed: int, fleet: list[Topology], habits: Habits, algo: HashAlgo | None, limit: int
) -> Showing:
    options = IndexOptions(secret=SECRET, seen_limit_bytes=limit)
    # A pod that stays: what is remembered of a model does not end with one of its pods.
    return Showing(world(seed, fleet, habits, algo, options, filler_ranks=1), Random(seed))


DENSE = st.builds(
    Habits,
    sparse=st.just(0.0),
    orphan=st.just(0.0),
    partial=st.sampled_from((0.0, 0.5)),
    other_tier=st.just(0.0),
    unknown_removal=st.sampled_from((0.0, 0.3)),
)
"""Each hash has its place when it is stored, unless the store before it was left out."""


@given(seed=SEEDS, fleet=FLEETS, habits=st.one_of(DENSE, HABITS), algo=ALGORITHMS, steps=STEPS)
def test_whatever_was_shown_is_seen_for_good(
    seed: int, fleet: list[Topology], habits: Habits, algo: HashAlgo | None, steps: int
) -> None:
    """Between what dense stores and promises showed, and all that anybody ever told of."""
    one = showing(seed, fleet, habits, algo, 1 << 20)
    for _ in range(steps):
        one.step()
        prompt, seen = one.ask()
        least, most = longest(one.shown.certain, prompt), longest(one.shown.possible, prompt)
        assert least <= seen.tokens <= most, (prompt, one.shown)
        assert seen.num_forgotten == 0


@given(
    seed=SEEDS,
    fleet=FLEETS,
    habits=HABITS,
    algo=ALGORITHMS,
    steps=STEPS,
    limit=st.sampled_from((0, 255, 256, 1200)),
)
def test_a_small_table_forgets_and_says_so(
    seed: int,
    fleet: list[Topology],
    habits: Habits,
    algo: HashAlgo | None,
    steps: int,
    limit: int,
) -> None:
    """What a rank has now is seen all the same; the rest is as long as nothing was forgotten."""
    one = showing(seed, fleet, habits, algo, limit)
    for _ in range(steps):
        one.step()
        prompt, seen = one.ask()
        assert seen.tokens <= longest(one.shown.possible, prompt)
        assert seen.num_remembered <= limit // 256 * ROW
        if seen.num_forgotten == 0:
            assert longest(one.shown.certain, prompt) <= seen.tokens
        for row in one.index.score(asked(prompt)).rows:
            assert row.present <= seen.tokens


@given(seed=SEEDS, fleet=FLEETS, steps=STEPS)
def test_the_oldest_is_forgotten_first(seed: int, fleet: list[Topology], steps: int) -> None:
    """A table of one row, to which promises alone show anything, is the model's."""
    random = Random(seed)
    index = FleetIndex(IndexOptions(secret=SECRET, seen_limit_bytes=256))
    pods = {PodId(f"pod{number}"): topology for number, topology in enumerate(fleet)}
    for pod, topology in pods.items():
        index.register(pod, model="m", topology=topology)
    prompts = traffic.prompts(random, max(map(traffic.unit_of, fleet)), 3)
    table = Table()
    for _ in range(steps):
        pod, topology = random.choice([*pods.items()])
        prompt = traffic.request(random, prompts)
        number = index.promise(pod, asked(prompt))
        for prefix in promised(topology, prompt):
            table.show(prefix)
        if random.random() < 0.5:
            index.withdraw(number)
        index.check_integrity()
        if random.random() < 0.5:
            continue
        table.settle()
        prompt = traffic.request(random, prompts)
        told = (longest(table.known, prompt), len(table.known), table.num_forgotten)
        assert index.seen(asked(prompt)) == told
