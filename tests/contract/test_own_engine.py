"""examples/own_engine.py on seven models: a device that knows what every block really holds.

Each step reads what attention would read. One wrong value, a lost token or a block that leaks
fails the test; so does an index that hears the events and answers otherwise than the cache. Steps
fail and drafts are rejected at random.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from random import Random
from types import ModuleType
from typing import Any, Final

import pytest
from kvbraid.cache import (
    ByValue,
    CacheConfig,
    CacheManager,
    Dense,
    Events,
    GroupOptions,
    Interval,
    Retention,
    Work,
)
from kvbraid.engine import EngineProfile
from kvbraid.fleet import FleetIndex
from kvbraid.fleet import Request as Lookup
from kvbraid.hashing import HashAlgo
from kvbraid.ids import PodId, PodState
from kvbraid.scheduler import Scheduler, SchedulerOptions, StepResult
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.docs.markdown import ROOT
from tests.ghost.device import TORN, Computation, Device, Taint
from tests.ghost.truth import Life, Truth
from tests.unit.cache.caches import chunked, full, mamba, window

MODELS: Final[dict[str, Topology]] = {
    "full": Topology(groups=(full(4),)),
    "gpt-oss": Topology(groups=(full(4), window(8, 4))),
    "gemma": Topology(groups=(full(4), window(12, 4), window(12, 4), window(12, 4))),
    "llama4": Topology(groups=(full(4), chunked(16, 4))),
    "qwen3-next": Topology(groups=(full(8), mamba(8), mamba(8))),
    "eagle": Topology(groups=(full(4), window(8, 4), full(4, eagle=True, variant=1))),
    "hits inside blocks": Topology(
        groups=(full(8), mamba(8)), hash_block_size=4, partial_hits=True
    ),
}
RETENTIONS: Final[tuple[Retention, ...]] = (Dense(), Interval(0), ByValue())
NUM_DRAFTS: Final = 2
POD: Final = PodId("pod")
HASHES: Final = {"hash_algo": HashAlgo.SHA256, "hash_seed": "0"}


def load_example() -> ModuleType:
    spec = spec_from_file_location("own_engine", ROOT / "examples" / "own_engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


OWN: Final = load_example()


def cache_of(topology: Topology, retention: Retention, num_blocks: int) -> CacheManager:
    options = tuple(
        GroupOptions(
            num_speculative_blocks=NUM_DRAFTS if group.kind is SpecKind.MAMBA else 0,
            needs_zeroing=group.kind is SpecKind.SLIDING_WINDOW,
        )
        for group in topology.groups
    )
    return CacheManager(
        CacheConfig(
            topology=topology,
            num_blocks=num_blocks,
            group_options=options,
            retention=retention,
            events=True,
            **HASHES,  # type: ignore[arg-type]
        )
    )


@dataclass
class Ghost:
    """The device of the example, over blocks that tell what they hold."""

    groups: Sequence[GroupSpec]
    num_blocks: int
    random: Random
    failures: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.device = Device(self.groups, self.num_blocks)
        self.lives: dict[int, Life] = {}

    def __call__(self, work: Work, parts: Sequence[Any]) -> list[Sequence[int]]:
        for block in work.blocks_to_zero:
            self.device.zero(block)
        for source, destination in work.copies:
            self.device.copy(source, destination)
        if parts and self.random.random() < self.failures:
            self.tear(parts)
            raise RuntimeError("the device is out of order")
        self.seen["zeroed"] += len(work.blocks_to_zero)
        self.seen["copied"] += len(work.copies)
        self.seen["parts"] += len(parts)
        return [self.compute(part) for part in parts]

    def computation(self, part: Any, start: int, end: int) -> Computation:  # noqa: ANN401 - a Part
        life = self.lives[part.request.number]
        expected = self.device.expected(life)
        return Computation(part.request.number, life, expected, start, end, part.tables)

    def compute(self, part: Any) -> Sequence[int]:  # noqa: ANN401 - a Part
        """First the tokens that are known, then the accepted drafts: if the last known token ends
        a block, the state after it stays in that block, and those of the drafts come after it."""
        known, end = len(part.request.tokens), part.start + part.num_tokens
        accepted = self.random.randint(0, part.num_drafts)
        work = self.computation(part, part.start, end - part.num_drafts)
        assert self.device.run(work) is None
        self.seen["rejected"] += part.num_drafts - accepted
        self.seen["prompt parts"] += end < known
        if end < known:
            return ()
        if accepted:
            assert self.device.run(self.computation(part, known, known + accepted)) is None
        return work.life.tokens[known : known + accepted + 1]

    def tear(self, parts: Sequence[Any]) -> None:
        """Leave garbage wherever the step was to write."""
        self.seen["failed"] += 1
        for part in parts:
            work = self.computation(
                part, part.start, part.start + part.num_tokens - part.num_drafts
            )
            for group in range(len(self.groups)):
                self.device._write(work, group, part.start, Taint(TORN, "a step that failed"))


@dataclass
class Fleet:
    """An index that hears the events."""

    topology: Topology

    def __post_init__(self) -> None:
        self.index = FleetIndex()
        profile = EngineProfile(dialect=EngineDialect.PURE, **HASHES)  # type: ignore[arg-type]
        self.index.register(POD, model="m", topology=self.topology, engine=profile)
        self.index.set_state(POD, PodState.EXACT)

    def hear(self, events: Events) -> None:
        if events:
            assert self.index.apply(POD, events.to_bytes(0.0)).refused == 0

    def agrees(self, cache: CacheManager, prompt: Sequence[int]) -> None:
        request = cache.add(prompt)
        (row,) = self.index.score(Lookup(model="m", token_ids=prompt)).rows
        assert row.lower == row.upper == cache.match(request).num_tokens
        cache.release([request])


def prompts(random: Random, truth: Truth) -> list[Life]:
    """Requests that share prefixes, come again, and go on where others ended."""
    shared = [[random.randrange(40) for _ in range(24)] for _ in range(3)]
    lives: list[Life] = []
    for _ in range(40):
        prompt = list(random.choice(shared)[: random.choice((8, 17, 24))])
        if lives and random.random() < 0.4:
            before = random.choice(lives)
            prompt = before.tokens[: random.randint(4, len(before.tokens))]
        prompt += [random.randrange(40) for _ in range(random.randint(1, 12))]
        lives.append(truth.life(prompt[:50], random.randint(1, 10)))
    return lives


@pytest.mark.parametrize("retention", RETENTIONS, ids=lambda retention: type(retention).__name__)
@pytest.mark.parametrize("topology", MODELS.values(), ids=MODELS.keys())
def test_every_step_reads_what_it_should_and_every_token_is_right(
    topology: Topology, retention: Retention
) -> None:
    groups = topology.groups
    seen: Counter[str] = Counter()
    for seed in range(2):
        random, truth = Random(seed), Truth()
        num_blocks = 22 * len(groups)
        cache, fleet = cache_of(topology, retention, num_blocks), Fleet(topology)
        ghost = Ghost(groups, num_blocks, random, failures=0.04, seen=seen)
        engine = OWN.Engine(cache, ghost, num_drafts=NUM_DRAFTS)
        engine.max_step_tokens = random.choice((16, 40, 64))
        coming, requests, ended = prompts(random, truth), [], []
        while coming or engine.waiting or engine.running:
            for life in [coming.pop(0) for _ in range(random.choice((0, 1, 1, 2))) if coming]:
                fleet.agrees(cache, life.tokens[: life.num_prompt_tokens])
                prompt = life.tokens[: life.num_prompt_tokens]
                requests.append(engine.add(prompt, len(life.outputs)))
                ghost.lives[requests[-1].number] = life
            done, events = engine.step()
            fleet.hear(events)
            ended += done
            cache.debug.check_integrity()
        assert [request.number for request in requests] == sorted(r.number for r in ended)
        assert all(request.tokens == ghost.lives[request.number].tokens for request in requests)
        cache.start_step()  # Nothing is copied any more.
        assert cache.pool.num_free == num_blocks - 1
        counts = cache.take_statistics()
        seen["hits"] += counts.started.num_hit_tokens
        seen["preemptions"] += counts.num_preemptions
        seen["dropped"] += counts.num_dropped_blocks
        seen["evicted"] += counts.num_evicted_blocks
    for name in (
        "hits",
        "preemptions",
        "dropped",
        "evicted",
        "rejected",
        "failed",
        "prompt parts",
    ):
        assert seen[name], f"no {name}: {seen}"
    assert bool(seen["copied"]) == bool(topology.partial_hits)


@pytest.mark.parametrize("topology", MODELS.values(), ids=MODELS.keys())
def test_the_scheduler_makes_the_same_steps(topology: Topology) -> None:
    """Both loops ask the cache the same, so its events are the same, byte for byte."""
    lives = [life.tokens[: life.num_prompt_tokens] for life in prompts(Random(0), Truth())]
    ours, theirs = (cache_of(topology, Dense(), 22 * len(topology.groups)) for _ in range(2))
    engine, said = OWN.Engine(ours, lambda _, parts: [*map(sampled, parts)]), list[bytes]()
    for prompt in lives:
        engine.add(prompt, 6)
    while engine.waiting or engine.running:
        if events := engine.step()[1]:
            said.append(events.to_bytes(0.0))
    published = list[bytes]()
    scheduler = Scheduler(
        theirs,
        SchedulerOptions(max_step_tokens=64, max_running=8),
        publish=lambda events: published.append(events.to_bytes(0.0)),
    )
    for prompt in lives:
        scheduler.add(prompt, max_new_tokens=6)
    while step := scheduler.schedule():
        tokens = {part.request: [7] for part in step.scheduled if part.samples}
        scheduler.update(step, StepResult(tokens=tokens))
    assert said == published
    counts = ours.take_statistics()
    assert counts == theirs.take_statistics()
    assert counts.num_preemptions


def sampled(part: Any) -> Sequence[int]:  # noqa: ANN401 - a Part
    return [7] * (part.start + part.num_tokens >= len(part.request.tokens))
