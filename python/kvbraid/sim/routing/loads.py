"""How large a pool and how high a rate a comparison needs, so that what differs is the policy.

A rate is high or low only beside what the pods can do. That depends on their hits, and these on
the policy and on the rate. So a load is found by whole runs: it is the utilisation of a reference
rule at that very rate. Taken from hits at idle, every fleet would be overloaded.
"""

from collections.abc import Callable
from itertools import accumulate
from math import ceil
from typing import Final

from kvbraid.hashing import EngineHash, HashAlgo, block_keys
from kvbraid.reading import Rule, check
from kvbraid.sim.routing.pace import Pace
from kvbraid.sim.routing.workloads import Workload
from kvbraid.sim.traces.footprint import ideal_blocks
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.sim.traces.simulation import CHUNK_TOKENS
from kvbraid.spec import SpecKind

LOAD: Final = Rule(lambda load: 0 < load < 1, "a share of the pods' time, above 0 and below 1")
POOL: Final = Rule(lambda share: 0 < share < float("inf"), "a share of the working set, above 0")
_MOST_RUNS: Final = 8
_ERROR: Final = 0.01


def working_set(work: Workload, model: SimulatedModel) -> int:
    """Return the most blocks of full attention that are in use at once, over the whole fleet.

    A block is in use from the first to the last request that has it.
    """
    full = [group.block_size for group in model.topology.groups if group.kind.is_full]
    size = min(full, default=model.alignment)
    chain = EngineHash(algo=HashAlgo.XXHASH, seed="0", block_size=size)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, ask in enumerate(work.asks):
        for key in block_keys(ask.prompt(), chain):
            first.setdefault(key, number)
            last[key] = number
    change = [0] * (len(work.asks) + 1)
    for key, number in first.items():
        change[number] += 1
        change[last[key] + 1] -= 1
    return max(1, len(full)) * max(accumulate(change))


def pool_blocks(
    work: Workload,
    model: SimulatedModel,
    *,
    share: float,
    num_pods: int,
    step_tokens: int = CHUNK_TOKENS,
) -> int:
    """Return each pod's blocks if the fleet holds such a share of the working set.

    A pool is never smaller than what two of the longest prompts keep, and one needs on its way.

    Raises:
        InvalidValueError: The share is not above 0.
    """
    check("share of the working set", share, POOL)
    longest = max(ask.num_tokens for ask in work.asks)
    groups = model.topology.groups
    # Until a step has run, windows and chunks hold all blocks of its tokens.
    bounded = [g.block_size for g in groups if not g.kind.is_full and g.kind is not SpecKind.MAMBA]
    step = sum(-(-step_tokens // size) + 1 for size in bounded)
    least = 2 * ideal_blocks(groups, longest) + step
    return 1 + max(least, ceil(share * working_set(work, model) / num_pods))


def idle_rate(work: Workload, pace: Pace, *, load: float, num_pods: int) -> float:
    """Return the rate of such a load if nothing were ever reused: a guess to begin with."""
    seconds = sum(pace.prefill.prefill(ask.num_tokens, 0) for ask in work.asks)
    return load * num_pods * len(work.asks) / seconds


def rate_of(load: float, utilisation: Callable[[float], float], *, guess: float) -> float:
    """Return the rate, in requests a second, at which the reference rule has such a load.

    `utilisation` plays a run at a rate, at most eight times; the first one at `guess`.

    Raises:
        InvalidValueError: The load is not between 0 and 1.
    """
    check("load", load, LOAD)
    low, high, rate = 0.0, float("inf"), guess
    for _ in range(_MOST_RUNS):
        found = utilisation(rate)
        if abs(found - load) <= _ERROR * load:
            break
        low, high = (rate, high) if found < load else (low, rate)
        rate *= load / found
        if not low < rate < high:
            rate = (low + high) / 2
    return rate
