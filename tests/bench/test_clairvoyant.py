"""No eviction reuses more than the one that knows the future: all others are tried."""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from kvbraid.sim.traces.trace import Trace, TraceRequest

from bench.studies.clairvoyant import hit_rate, working_set

BLOCK = 4
PROMPTS = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=6)


def trace_of(prompts: Sequence[str]) -> Trace:
    """One id for every beginning of a prompt, and one token after the last block."""
    ids: dict[str, int] = {}
    requests = [
        TraceRequest(
            conversation=number,
            num_tokens=len(prompt) * BLOCK + 1,
            ids=[ids.setdefault(prompt[: n + 1], len(ids)) for n in range(len(prompt))],
        )
        for number, prompt in enumerate(prompts)
    ]
    return Trace(name="", block_tokens=BLOCK, num_requests=len(requests), play=lambda: requests)


def most_hits(prompts: Sequence[str], capacity: int) -> int:
    """Blocks that are reused at most, whatever is kept after each request."""
    best: dict[frozenset[str], int] = {frozenset(): 0}
    for prompt in prompts:
        beginnings = [prompt[: n + 1] for n in range(len(prompt))]
        after: dict[frozenset[str], int] = {}
        for held, hits in best.items():
            num_held = next((n for n, b in enumerate(beginnings) if b not in held), len(prompt))
            known = held | set(beginnings)
            for kept in combinations(sorted(known), min(capacity, len(known))):
                after[frozenset(kept)] = max(after.get(frozenset(kept), 0), hits + num_held)
        best = after
    return max(best.values())


@given(prompts=PROMPTS, capacity=st.integers(1, 5))
def test_nothing_that_can_be_kept_is_hit_more_often(prompts: list[str], capacity: int) -> None:
    trace = trace_of(prompts)
    expected = most_hits(prompts, capacity) * BLOCK / sum(len(p) * BLOCK + 1 for p in prompts)
    assert abs(hit_rate(trace, capacity) - expected) < 1e-12
    assert working_set(trace) == len({p[: n + 1] for p in prompts for n in range(len(p))})
