"""The fleet index (`_native.FleetCore`) after an engine's messages were lost, against brute force.

The engine has a pool of so many blocks, and the index is told how many. Whatever was lost, the
truth lies within the bounds, and an answer that is called exact is true. If the engine's hash
function is known, the bounds are those that counting on paper gives.
"""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events import encode_batch
from kvbraid.fleet.index import SECRET_BYTES, FleetIndex, IndexOptions, Keys
from kvbraid.fleet.request import Request
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId, PodState, Tier
from kvbraid.spec import Topology

from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_index import Answer, Prefix
from tests.reference.fleet_traffic import Habits, Hashes
from tests.reference.late_pool import LateKnowledge, PooledEngine, has_unknown
from tests.reference.topologies import topologies

POD = PodId("pod")
SECRET = bytes(SECRET_BYTES)
TOPOLOGIES = (
    topologies(st.integers(1, 4))
    .map(lambda topology: replace(topology, partial_hits=False))
    .filter(lambda topology: not has_unknown(topology))
)
HABITS = st.builds(
    Habits,
    sparse=st.sampled_from((0.0, 0.3, 0.8)),
    orphan=st.sampled_from((0.0, 0.3)),
    partial=st.just(0.0),
    other_tier=st.just(0.0),
    unknown_removal=st.just(0.0),
)
SEEDS = st.integers(0, 2**32)
STEPS = st.sampled_from((4, 15, 40))


class Life:
    """One engine, the index that follows it, and what can be known of it."""

    def __init__(
        self,
        seed: int,
        topology: Topology,
        habits: Habits,
        algo: HashAlgo | None,
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.random = Random(seed)
        self.engine = PooledEngine(
            pod=POD,
            dp_rank=0,
            topology=topology,
            hashes=Hashes(traffic.unit_of(topology), algo),
            habits=habits,
            random=self.random,
            pool_size=self.random.choice((3, 8, 20, 60)),
        )
        keys: Keys = "auto" if algo else "join"
        self.index = FleetIndex(
            IndexOptions(keys=keys, secret=SECRET, memory_limit_bytes=memory_limit_bytes)
        )
        profile = self.engine.hashes.profile
        self.index.register(
            POD,
            model="m",
            topology=topology,
            engine=replace(profile, num_gpu_blocks=self.engine.pool_size + 1),
            loras=traffic.LORAS,
        )
        self.prompts = traffic.prompts(self.random, traffic.unit_of(topology), 4)
        self.knowledge: LateKnowledge | None = None

    def step(self) -> None:
        """The engine acts; the index hears of it, or loses it."""
        for _ in range(self.random.choice((1, 2, 5))):
            action = self.random.choice(("act", "act", "act", "room", "clear"))
            if action == "room":
                self.engine.make_room(self.random.choice((1, 2, 5, self.engine.pool_size)))
            elif action == "clear" and self.random.random() < 0.02:
                self.engine.clear()
            else:
                self.engine.act(self.prompts)
        if self.random.random() < (0.3 if self.knowledge is None else 0.03):
            self.lose()
        elif self.engine.pending:
            if self.knowledge is not None:
                self.knowledge.learn(self.engine.pending)
            self.index.apply(POD, encode_batch(self.engine.pending))
            self.index.enforce_limits()
        self.engine.pending.clear()
        self.engine.removed = 0
        self.index.check_integrity()

    def lose(self) -> None:
        self.index.lose(POD)
        self.index.set_state(POD, PodState.DEGRADED, reason="batches 0 to 7 are lost")
        self.knowledge = LateKnowledge(self.engine)

    def ask(self) -> tuple[Prefix, Answer]:
        """Check that the truth is within the bounds, and is what is called exact."""
        prompt = traffic.request(self.random, self.prompts)
        row = self.index.score(
            Request(model="m", token_ids=prompt.tokens, lora=prompt.lora, cache_salt=prompt.salt)
        ).rows[0]
        self.index.check_integrity()
        truth = self.engine.model.answer(prompt, [Tier.GPU]).lower
        assert row.lower <= truth <= row.upper, (row, truth, prompt)
        assert row.exactness == ("exact" if row.lower == row.upper else "bound"), row
        assert row.state is self.state_expected() or not self.engine.hashes.profile.hash_algo
        return prompt, Answer(row.lower, row.upper)

    def state_expected(self) -> PodState:
        knows_all = self.knowledge is None or self.knowledge.unknown == 0
        return PodState.EXACT if knows_all else PodState.DEGRADED


@given(
    seed=SEEDS,
    topology=TOPOLOGIES,
    habits=HABITS,
    algo=st.sampled_from(HashAlgo),
    steps=STEPS,
)
def test_the_size_of_the_pool_gives_the_bounds_that_counting_on_paper_gives(
    seed: int, topology: Topology, habits: Habits, algo: HashAlgo, steps: int
) -> None:
    life = Life(seed, topology, habits, algo)
    for _ in range(steps):
        life.step()
        prompt, bounds = life.ask()
        if life.knowledge is not None:
            assert bounds == life.knowledge.answer(prompt), (prompt, life.knowledge.unknown)


@given(seed=SEEDS, topology=TOPOLOGIES, habits=HABITS, steps=STEPS)
def test_the_truth_is_within_the_bounds_where_the_hash_function_is_not_known(
    seed: int, topology: Topology, habits: Habits, steps: int
) -> None:
    life = Life(seed, topology, habits, None)
    for _ in range(steps):
        life.step()
        life.ask()


@given(
    seed=SEEDS,
    topology=TOPOLOGIES,
    habits=HABITS,
    steps=STEPS,
    memory=st.sampled_from((1, 20_000, 60_000)),
)
def test_the_truth_is_within_the_bounds_of_an_index_that_forgets_for_memory(
    seed: int, topology: Topology, habits: Habits, steps: int, memory: int
) -> None:
    life = Life(seed, topology, habits, None, memory_limit_bytes=memory)
    for _ in range(steps):
        life.step()
        life.ask()
