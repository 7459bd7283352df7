"""`FleetIndex.score_many` against single calls: two indexes that see the same, and stay the same.

A score may place hashes for good, so the answers of a call depend on those before it.
"""

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.fleet.index import IndexOptions
from kvbraid.fleet.request import Request, Strategy
from kvbraid.hashing import HashAlgo
from kvbraid.spec import Topology

from tests.differential.fleet_worlds import FLEETS, HABITS, SECRET, SEEDS, STEPS, World, world
from tests.reference import fleet_traffic as traffic
from tests.reference.fleet_traffic import Habits


def requests(asked: World, count: int) -> list[Request]:
    """The same requests for worlds that are at the same point."""
    drawn = []
    for _ in range(count):
        prompt = traffic.request(asked.random, asked.prompts)
        strategies: tuple[Strategy, ...] = ("exact", "weighted_blocks")
        drawn.append(
            Request(
                model="m",
                token_ids=prompt.tokens,
                lora=prompt.lora,
                cache_salt=prompt.salt,
                strategy=asked.random.choice(strategies),
            )
        )
    return drawn


@given(
    seed=SEEDS,
    fleet=FLEETS,
    habits=HABITS,
    algo=st.sampled_from((None, HashAlgo.SHA256)),
    steps=STEPS,
    count=st.integers(0, 5),
)
def test_several_requests_are_answered_as_one_after_the_other(
    seed: int, fleet: list[Topology], habits: Habits, algo: HashAlgo | None, steps: int, count: int
) -> None:
    options = IndexOptions(secret=SECRET)
    together, single = (world(seed, fleet, habits, algo, options) for _ in range(2))
    for _ in zip(together.steps(steps), single.steps(steps), strict=True):
        answers = together.index.score_many(requests(together, count))
        expected = [single.index.score(each) for each in requests(single, count)]
        assert [each.to_json() for each in answers] == [each.to_json() for each in expected]
        assert together.index.pods() == single.index.pods()
    together.index.check_integrity()
