"""Where device and host memory each hold a part, we hit what the rival has to compute again.

Both have the same few blocks of host memory and no disk. A document is asked about, then another
one of some length, then the first one again: by then the device has lost its window or its end,
and host memory its beginning. The lengths go through all mixtures.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from tests.vllm.offload.live_engines import (
    OFFLOAD_MODELS,
    OURS,
    RIVAL,
    RIVAL_EXTRA,
    running,
)
from tests.vllm.recovery.live_engines import TAIL, tokens
from tests.vllm.soak import LIVE_TIMEOUT

HOST_BYTES: Final = 49_152 * 50
"""Fifty blocks."""
LENGTHS: Final = range(200, 900, 50)
MAX_MODEL_LEN: Final = 960
NUM_BLOCKS: Final = 66
"""Just enough to compute a document in one step."""


@pytest.mark.timeout(LIVE_TIMEOUT)
def test_each_position_comes_from_where_it_is(seen: dict[tuple[str, str], Counter[str]]) -> None:
    small = replace(OFFLOAD_MODELS[0].model, max_model_len=MAX_MODEL_LEN)
    which = replace(OFFLOAD_MODELS[0], model=small, num_blocks=NUM_BLOCKS)
    random = Random(1)
    counts = seen[which.model.folder, "divergence"] = Counter()
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = (
            running(which, OURS, {"host_bytes": HOST_BYTES}),
            running(which, RIVAL, RIVAL_EXTRA | {"cpu_bytes_to_use": HOST_BYTES}),
        )
        engines = list(pool.map(stack.enter_context, starts))
        for length in LENGTHS:
            first, second = tokens(random, 900), tokens(random, length)
            for engine in engines:
                engine.forget()
                engine.answer(first)
                engine.answer(second)
            hit, rival = (
                engine.answer(first + tokens(Random(0), TAIL))["cached"][0] for engine in engines
            )
            counts["hit_tokens"] += hit
            counts["rival_hit_tokens"] += rival
            counts["more"] += hit > rival
            counts["fewer"] += hit < rival
        last = engines[0].ask(counts=True)
    assert last["seen"].get("byte_mismatches") == 0, counts
    assert counts["fewer"] == 0, counts
    assert counts["more"] > 0, counts
