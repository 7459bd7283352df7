"""How many tokens are computed again after loads from a host tier failed?

The pool has an eighth of the working set of the trace, and the host tier holds everything that was
ever computed (`engine.py`). `ours` goes on from the point that `kvbraid.recovery` decides on, with
what is then found in the pool, and asks the host tier for nothing more. `rival` starts from zero.
Both are counted at each failure, from the same state; the pool then goes on as ours leaves it.
Of all load jobs 1 % fail, each in one block, drawn from all that it fills. Beside it:

- `loads` and `failures`, the load jobs, and those that failed;
- `truncate`, where all groups are full: computing from the first failed block on;
- `retry`: loading again what the host tier still has, and computing the rest;
- the same figures, and both sides, if 1 % of all blocks fail (`blocks_`), and if each load job
  fails in one block (`each_`), which tells more than the few failures of 1 %.

The first 2 000 requests of each trace are played. `KVBRAID_BENCH_REQUESTS` gives another number,
or `all`.
"""

import os
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil
from types import MappingProxyType
from typing import Final

from kvbraid.cache import Dense
from kvbraid.sim.traces.footprint import footprint
from kvbraid.sim.traces.models import SimulatedModel
from kvbraid.sim.traces.prefix_hashes import PrefixHashes
from kvbraid.sim.traces.trace import Trace, TraceRequest

from bench.harness.measure import Row, Side, Slice, Target, counted
from bench.recovery.engine import Engine, Fault, Tally
from bench.recovery.traces import lacks, model_of, trace_of

POOL_SHARE: Final = Fraction(1, 8)
FAULT_RATE: Final = 0.01
SEED: Final = 14

_ASKED: Final = os.environ.get("KVBRAID_BENCH_REQUESTS", "2_000")
NUM_REQUESTS: Final = None if _ASKED == "all" else int(_ASKED)


def one_block_of_some_jobs(draw: random.Random) -> Fault:
    """Fail 1 % of the load jobs in one block."""
    return lambda num_blocks: [draw.randrange(num_blocks)] if draw.random() < FAULT_RATE else []


def some_blocks(draw: random.Random) -> Fault:
    """Fail 1 % of the blocks."""
    return lambda num_blocks: [n for n in range(num_blocks) if draw.random() < FAULT_RATE]


def one_block_of_each_job(draw: random.Random) -> Fault:
    """Fail every load job in one block."""
    return lambda num_blocks: [draw.randrange(num_blocks)]


FAULTS: Final[Mapping[str, Callable[[random.Random], Fault]]] = MappingProxyType(
    {"": one_block_of_some_jobs, "blocks_": some_blocks, "each_": one_block_of_each_job}
)
"""What fails, by the prefix of its figures."""

BESIDE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "loads": "num_loads",
        "failures": "num_failures",
        "retry": "retry",
        "truncate": "truncate",
    }
)
"""The figures beside both sides, and their fields in a tally."""


MOST_RECOMPUTED: Final[Mapping[str, int]] = MappingProxyType(
    {
        "full": 109_408,
        "gptoss": 215_040,
        "gemma3": 215_040,
        "qwen3next": 195_840,
        "llama4": 100_336,
    }
)
"""What ours may compute of `conversations(30, 3)` if every load fails in one block, in tokens."""


def conversations(num_conversations: int, num_turns: int) -> Trace:
    """Conversations that take turns; each prompt has two blocks more than the one before."""

    def requests() -> list[TraceRequest]:
        return [
            TraceRequest(
                conversation=conversation,
                num_tokens=(6 + 2 * turn) * 512 + 1,
                ids=range(conversation * 100, conversation * 100 + 6 + 2 * turn),
            )
            for turn in range(num_turns)
            for conversation in range(num_conversations)
        ]

    return Trace(
        name="small", block_tokens=512, num_requests=num_conversations * num_turns, play=requests
    )


@cache
def recomputed(model: str) -> float:
    """Return what ours computes of the slice, which needs no trace."""
    fault = one_block_of_each_job(random.Random(SEED))
    return play(conversations(30, 3), model_of(model), fault).tally.ours


def play(trace: Trace, model: SimulatedModel, fault: Fault) -> Engine:
    """Play a trace against a new engine; a prompt that the empty pool cannot hold is left out."""
    num_blocks = ceil(footprint(trace, model).num_blocks * POOL_SHARE) + 1  # And the null block.
    engine = Engine(model, num_blocks, Dense(), fault)
    hashes = PrefixHashes(trace.block_tokens, model.hash_block_size)
    for request in trace.play():
        # The trace identifies whole blocks only: of the tokens after them, one is computed.
        num_tokens = min(request.num_tokens, len(request.ids) * trace.block_tokens + 1)
        if engine.cache.can_ever_fit(num_tokens):
            engine.run(num_tokens, hashes.of(request))
    return engine


@lru_cache(maxsize=len(FAULTS))
def tally(trace: str, model: str, faults: str) -> Tally:
    """Return what one run counted. Both sides of a row are counted by the same run."""
    fault = FAULTS[faults](random.Random(SEED))
    return play(trace_of(trace, NUM_REQUESTS), model_of(model), fault).tally


def figure_of(trace: str, model: str, faults: str, figure: str) -> Side:
    """Return the side of one figure of a run."""
    return counted(lambda: float(getattr(tally(trace, model, faults), figure)))


def row(name: str) -> Row:
    """Return the row of a trace and a model."""
    _, trace, model = name.split("_")
    figures = {"ours": "ours", "rival": "zero", **BESIDE}
    if model != "full":
        del figures["truncate"]
    sides = {
        prefix + shown: figure_of(trace, model, prefix, figure)
        for prefix in FAULTS
        for shown, figure in figures.items()
    }
    return Row(
        name=name,
        question="tokens computed again after failed loads; the rival: from zero",
        unit="tokens",
        ours=sides.pop("ours"),
        rival=sides.pop("rival"),
        samples=1,
        slice=Slice(lambda: recomputed(model), Target(ours=MOST_RECOMPUTED[model])),
        beside=sides,
        lacks=lacks(trace),
    )


NAMES: Final = (
    "recomputed_weka_full",
    "recomputed_weka_gptoss",
    "recomputed_weka_gemma3",
    "recomputed_weka_qwen3next",
    "recomputed_weka_llama4",
    "recomputed_mooncake_full",
    "recomputed_mooncake_gptoss",
    "recomputed_mooncake_gemma3",
    "recomputed_mooncake_qwen3next",
    "recomputed_mooncake_llama4",
)

ROWS = tuple(row(name) for name in NAMES)
