"""Published policies of retention, and one that knows the future: they count what is there."""

from array import array
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.spec import GroupSpec, SpecKind

from bench.retention.checkpoints import Cache, Policy, Sizes, hit_rate, visits
from bench.retention.oracle import Oracle
from bench.retention.play import MODELS
from bench.retention.published import Placed, Utility, placement
from bench.retention.workloads import Ask
from bench.studies import future
from bench.studies.future import Cell, compute, summary, table

UNIT = 2
FULL = Sizes(UNIT, 1, 0)
STATE = Sizes(UNIT, 1, 1)
PROMPTS = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=14)


def asked(prompts: list[str]) -> list[Ask]:
    """Each letter is a unit, and one token more is computed."""
    texts = [array("I", [ord(c) for letter in p for c in letter * UNIT] + [0]) for p in prompts]
    return [Ask(text, len(text)) for text in texts]


def blocks_of(cache: Cache) -> int:
    """Count the blocks of every kept checkpoint, each once."""
    leads = {prefix for each in cache.kept.values() for prefix in each.path[: each.depth]}
    return len(leads) * cache.sizes.per_unit + len(cache.kept) * cache.sizes.per_checkpoint


@pytest.mark.parametrize("sizes", [FULL, STATE])
@pytest.mark.parametrize("name", ["utility", "placed", "oracle"])
@given(prompts=PROMPTS, pool=st.integers(8, 14))
def test_a_pool_is_never_exceeded_and_what_is_freed_is_what_is_said(
    sizes: Sizes, name: str, prompts: list[str], pool: int
) -> None:
    seen = visits(asked(prompts), sizes, pool)
    policies: dict[str, Policy] = {
        "utility": Utility(),
        "placed": Placed(2, again=2),
        "oracle": Oracle(seen, UNIT),
    }
    cache = Cache(sizes, pool, policies[name])
    held: set[tuple[int, ...]] = set()
    for visit in seen:
        hit = cache.serve(visit)
        assert hit <= visit.usable(UNIT)
        assert not hit or visit.path[:hit] in held
        held |= {visit.path[:n] for n in range(1, len(visit.path) + 1)}
        assert cache.num_used == blocks_of(cache) <= pool
        for checkpoint in cache.kept.values():
            without = [each for each in cache.kept.values() if each is not checkpoint]
            leads = {prefix for each in without for prefix in each.path[: each.depth]}
            alone = set(checkpoint.path[: checkpoint.depth]) - leads
            expected = len(alone) * sizes.per_unit + sizes.per_checkpoint
            assert cache.freed(checkpoint) == expected
            above = [e.depth for e in without if e.prefix in checkpoint.path[: checkpoint.depth]]
            assert checkpoint.start == max(above, default=0)


@given(
    overlaps=st.dictionaries(st.integers(0, 9), st.integers(1, 5), max_size=6),
    budget=st.integers(1, 3),
)
def test_no_placement_saves_more(overlaps: dict[int, int], budget: int) -> None:
    def saved(depths: tuple[int, ...]) -> int:
        reached = ((max((d for d in depths if d <= o), default=0), n) for o, n in overlaps.items())
        return sum(depth * count for depth, count in reached)

    found = placement(Counter(overlaps), budget)
    assert len(found) <= budget
    best = max(saved(depths) for n in range(budget + 1) for depths in combinations(range(10), n))
    assert saved(found) == best


def test_the_sizes_of_a_model_are_those_of_its_groups() -> None:
    assert Sizes.of(MODELS["gptoss"].groups) == Sizes(16, 1, 8)
    assert Sizes.of(MODELS["gemma"].groups) == Sizes(16, 1, 4 * 32)
    assert Sizes.of(MODELS["mamba"].groups) == Sizes(64, 1, 3)
    one = (GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=8),)
    assert Sizes.of(one) == Sizes(8, 1, 0)


def test_who_knows_the_future_keeps_what_comes_back() -> None:
    prompts = ["abab", "bbba", "aabb", "abab", "babb", "abab"]
    seen = visits(asked(prompts), STATE, 12)
    for policy, hits in (
        (Oracle(seen, UNIT), [0, 0, 1, 4, 0, 4]),
        (Placed(), [0, 0, 0, 0, 0, 4]),
    ):
        cache = Cache(STATE, 12, policy)
        assert [cache.serve(visit) for visit in seen] == hits
    rate = hit_rate(Cache(STATE, 12, Oracle(seen, UNIT)), seen, warm_up=3)
    assert rate == 100 * UNIT * 8 / (3 * (4 * UNIT + 1))


def test_the_page_has_a_line_per_cell_and_one_per_workload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(future, "WARM_UP", 5)
    found = [Cell("chat", "gptoss", 600, 30, 5), Cell("never", "mamba", 150, 30, 5)]
    rows = [(cell, compute(cell)) for cell in found]
    page = [*table(rows), *summary(rows)]
    assert all(rates["future"] <= rates["bound"] + 1e-9 for _, rates in rows)
    assert page[-1].startswith("| all | ")
    assert "| never | mamba | 150 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 |" in page
