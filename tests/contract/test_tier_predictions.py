"""The index of a fleet names the hit of every request, tier by tier, from events alone."""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import pytest
from kvbraid.cache import Interval, Match, Need
from kvbraid.engine import EngineProfile
from kvbraid.events.wire import encode_batch
from kvbraid.hashing import HashAlgo
from kvbraid.ids import BlockId
from kvbraid.spec import GroupSpec, SpecKind, Topology
from kvbraid.transfer.jobs import Item, Job
from kvbraid.transfer.offload import Found
from kvbraid.transfer.status import Status

from tests.tier_predictions import Listener, Prediction, compare
from tests.unit.transfer.offload.engine import Engine


def group(kind: SpecKind, size: int = 4, window: int | None = None) -> GroupSpec:
    return GroupSpec(kind=kind, block_size=size, window=window)


FULL: Final = group(SpecKind.FULL_ATTENTION)
LIKE: Final = {
    "gpt-oss": Topology(groups=(FULL, group(SpecKind.SLIDING_WINDOW, window=8))),
    "gemma-3": Topology(groups=(*[group(SpecKind.SLIDING_WINDOW, window=12)] * 2, FULL)),
    "qwen3-next": Topology(
        groups=(FULL, *[group(SpecKind.MAMBA, size=8)] * 2), alignment=8, hash_block_size=4
    ),
}
"""Models by the kinds of their groups, with blocks and windows a few tokens long."""


class Followed:
    """An engine, and an index that hears its events and nothing else."""

    def __init__(self, like: str, seed: int) -> None:
        self.random = random = Random(seed)
        self.engine = Engine(
            topology=LIKE[like],
            num_blocks=random.randint(40, 80),
            host_slots=random.randint(4, 60),
            tiers=[("disk", random.randint(4, 120))],
            num_ranks=random.choice((1, 2)),
            retention=random.choice((None, Interval(0))),
        )
        stem = [random.randrange(90) for _ in range(40)]
        self.prompts = [
            [*stem[: random.randrange(41)], *(random.randrange(90) for _ in range(9))]
            for _ in range(8)
        ]
        self.engine.fails = self.fails
        self.begin_to_follow()

    def fails(self, job: Job, item: Item, rank: int) -> Status:
        del job, item, rank
        return Status.OK if self.random.random() < 0.9 else self.random.choice([*Status])

    def begin_to_follow(self) -> None:
        """Follow the pod anew: the index knows nothing of it."""
        profile = EngineProfile(hash_algo=HashAlgo.SHA256, hash_seed="0")
        self.listener = Listener(self.engine.topology, profile)

    def live(self) -> None:
        """Do something, and tell of it."""
        engine, random = self.engine, self.random
        prompt = random.choice(self.prompts)
        match random.choice(("compute", "compute", "load", "load", "evict", "forget", "restart")):
            case "compute":
                request = engine.cache.add(prompt)
                engine.manager.lookup(request, prompt)
                self.compute(request, prompt)
            case "load":
                self.load(prompt)
            case "evict":
                engine.evict()
            case "forget":
                engine.manager.forget_blocks([BlockId(random.randrange(1, engine.num_blocks))])
            case "restart" if random.random() < 0.2:
                self.restart()
        self.tell()

    def compute(self, request: int, prompt: Sequence[int]) -> None:
        """Compute what the cache lacks of a prompt, in steps that end where states are kept."""
        cache = self.engine.cache
        match: Match | None = cache.match(request)
        done = match.num_tokens if match else 0
        while done < len(prompt):
            cache.start_step()
            count = cache.plan_chunk(request, len(prompt) - done, match=match)
            need = Need(request=request, num_new_tokens=count, match=match)
            if not cache.allocate([need]).num_fit:
                break
            self.engine.write(request)
            self.engine.step()
            done, match = done + count, None
        self.engine.release(request)

    def load(self, prompt: Sequence[int]) -> None:
        found = self.engine.look_up(prompt)
        if isinstance(found, Found):
            self.engine.begin(found)
            self.engine.run()
            reports = self.engine.manager.take_reports()
            if not any(report.failures for report in reports):
                self.engine.cache.commit(found.request, found.num_tokens)
                self.engine.step()
        self.engine.release(self.engine.request)

    def restart(self) -> None:
        """Start anew: the disk tells what it has."""
        self.engine.restart()
        self.begin_to_follow()
        for rank, worker in enumerate(self.engine.workers):
            self.engine.manager.opened("disk", list(worker.records["disk"]), rank)

    def tell(self) -> None:
        self.listener.hear(self.engine.cache.take_events().to_bytes(0.0))
        self.listener.hear(encode_batch(self.engine.manager.take_events()))

    def compare(self) -> Iterator[Prediction]:
        """Compare what is predicted of each prompt with what it would hit."""
        for prompt in self.prompts:
            request = self.engine.cache.add(prompt)
            yield from compare(self.listener.row(prompt), self.engine.manager, request)
            self.engine.cache.release([request])


@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("seed", range(4))
def test_every_hit_is_predicted_exactly(like: str, seed: int) -> None:
    followed = Followed(like, seed)
    hits = set()
    for _ in range(30):
        followed.live()
        for each in followed.compare():
            assert each.is_exact, each
            hits.add(each.hit)
    assert len(hits) > 3, "too little was found to say anything"


@pytest.mark.parametrize("like", LIKE)
def test_bounds_hold_when_the_cache_was_reset_and_the_device_stays_exact(like: str) -> None:
    followed = Followed(like, seed=5)
    num_exact: Counter[bool] = Counter()
    for number in range(40):
        followed.live()
        if number % 5 == 4:
            assert followed.engine.cache.reset()
            followed.tell()
        for each in followed.compare():
            assert each.bounds.lower <= each.hit <= each.bounds.upper, each
            assert each.is_exact or (followed.listener.was_cleared and each.key != "gpu"), each
            num_exact[each.is_exact] += 1
    assert num_exact[True] > num_exact[False] > 0


@pytest.mark.parametrize("like", LIKE)
def test_what_is_told_again_after_a_reset_is_exact_again(like: str) -> None:
    followed = Followed(like, seed=5)
    hits = set()
    for number in range(40):
        followed.live()
        if number % 5 == 4:
            assert followed.engine.cache.reset()
            followed.engine.manager.tell_again()
            followed.tell()
            assert not followed.engine.manager.has_news
        for each in followed.compare():
            assert each.is_exact, each
            hits.add((each.key, each.hit))
    assert followed.listener.was_cleared
    assert len(hits) > 6, "too little was found to say anything"
