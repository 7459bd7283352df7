"""Engines' own statistics name the tier that a load's tokens have come from."""

from collections import Counter
from random import Random

from kvbraid.cache import Match
from kvbraid.ids import BlockId
from kvbraid.loads import Record
from kvbraid.spec import GroupSpec, SpecKind, Topology
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import Again, Found, LoadSource
from kvbraid.transfer.offload.announcing import UNKNOWN
from kvbraid.transfer.offload.attributing import tokens_by_tier

from tests.unit.transfer.offload.engine import FULL, STATE, WINDOW, Engine

PROMPT = range(18)
TIERS = ("", "host", "disk")
GROUPS = (FULL, WINDOW, STATE, GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=8))


def found_of(sources: list[tuple[int, int, str]], start: int, end: int) -> Found:
    """Return an offer, of sources given as group, position and tier."""
    return Found(
        request=1,
        match=Match(start, 0),
        num_pool_tokens=start,
        num_tokens=end,
        tier="disk",
        sources=tuple(
            LoadSource(group, position, tier, BlockId(1), BlockKey(b"key", group), UNKNOWN)
            for group, position, tier in sources
        ),
    )


def one_by_one(found: Found, num_tokens: int) -> Counter[str]:
    """The model: each token by itself."""
    start, counts = found.match.num_tokens, Counter[str]()
    for token in range(start, start + num_tokens):
        tiers = set()
        for source in found.sources:
            group = GROUPS[source.group]
            end = (source.position + 1) * group.block_size
            begin = 0 if group.kind is SpecKind.MAMBA else end - group.block_size
            if begin <= token < end:
                tiers.add(TIERS.index(source.tier))
        counts[TIERS[max(tiers or {TIERS.index(s.tier) for s in found.sources})]] += 1
    return counts


def test_tokens_are_split_as_one_by_one() -> None:
    random = Random(1)
    for _ in range(300):
        start = 4 * random.randrange(4)
        end = start + 4 * random.randrange(1, 8)
        sources = [
            (group, position, random.choice(TIERS))
            for group, spec in enumerate(GROUPS)
            for position in range(-(-end // spec.block_size))  # Windows look back.
            if random.random() < 0.6
        ]
        if sources:
            found = found_of(sources, start, end)
            num_tokens = random.randrange(end - start + 1)
            assert tokens_by_tier(found, num_tokens, GROUPS, TIERS) == one_by_one(
                found, num_tokens
            )


def test_records_that_were_read_for_a_request_count_as_their_tier() -> None:
    engine = Engine(topology=Topology(groups=(FULL,)), tiers=[("disk", 50)])
    engine.forgotten(PROMPT)
    for key in list(engine.manager.contents()["host"])[:2]:
        engine.manager.drop(Record("host", key.to_bytes()))
    assert engine.look_up(PROMPT, may_wait=True) is Again.ASK_AGAIN
    engine.run()
    found = engine.manager.lookup(engine.request, PROMPT)
    assert isinstance(found, Found)
    assert found.tier == "host"
    assert engine.manager.tokens_by_tier(found, 16) == {"disk": 8, "host": 8}
    engine.begin(found)
    engine.run()
    assert engine.manager.counts.hits == {"disk": 2, "host": 2}
    engine.evict()
    found = engine.look_up(PROMPT, may_wait=True)
    assert isinstance(found, Found)
    assert engine.manager.tokens_by_tier(found, 16) == {"host": 16}, "it was there before"
