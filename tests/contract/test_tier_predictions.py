"""The index of a fleet names the hit of every request, tier by tier, from events alone."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import pytest
from kvbraid.cache import Interval, Match, Need
from kvbraid.engine import EngineProfile
from kvbraid.events.wire import encode_batch
from kvbraid.fleet import FleetIndex, Request
from kvbraid.fleet.answer import Bounds, PodScore
from kvbraid.hashing import HashAlgo
from kvbraid.ids import BlockId, PodId, PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology
from kvbraid.transfer.jobs import Item, Job
from kvbraid.transfer.offload import Found
from kvbraid.transfer.status import Status

from tests.unit.transfer.offload.engine import Engine

POD: Final = PodId("pod")
MODEL: Final = "model"


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
KEYS: Final = {"gpu": ("host",), "gpu+cpu": ("disk",), "gpu+cpu+storage": ()}
"""What an answer is called, and which tiers its hit leaves out."""


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
        """Register the pod as it starts, so that nothing of it is known."""
        self.index = FleetIndex()
        profile = EngineProfile(hash_algo=HashAlgo.SHA256, hash_seed="0")
        topology = self.engine.topology
        self.index.register(POD, model=MODEL, topology=topology, engine=profile)
        self.index.set_state(POD, PodState.EXACT)

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
        self.index.apply(POD, self.engine.cache.take_events().to_bytes(0.0))
        self.index.apply(POD, encode_batch(self.engine.manager.take_events()))

    def compare(self) -> Iterator[int]:
        """Compare what is predicted of each prompt with what it would hit; yield the hits."""
        for prompt in self.prompts:
            request = self.engine.cache.add(prompt)
            (row,) = self.index.score(Request(model=MODEL, token_ids=prompt)).rows
            for key, left_out in KEYS.items():
                hit = self.engine.manager.match_over(request, left_out).num_tokens
                assert predicted(row, key) == Bounds(hit, hit), f"{key} of {prompt}"
                yield hit
            self.engine.cache.release([request])


def predicted(row: PodScore, key: str) -> Bounds:
    """What is said of some tiers: of those among them that have anything."""
    tiers = {*key.split("+")}
    return row.tiers[max((k for k in row.tiers if {*k.split("+")} <= tiers), key=len)]


@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("seed", range(4))
def test_every_hit_is_predicted_exactly(like: str, seed: int) -> None:
    followed = Followed(like, seed)
    hits = []
    for _ in range(30):
        followed.live()
        hits += list(followed.compare())
    assert len({*hits}) > 3, "too little was found to say anything"
