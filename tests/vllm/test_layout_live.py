"""The memory that running engines really allocated is explained to the byte, and is our plan."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from kvbraid.layout import Layout, PlanOptions, fingerprint, from_grouping, from_json, plan_memory
from kvbraid.models import EngineOptions, engine_layers, group_config, read_config

from tests.tiny_models import ARCHITECTURES, FOLDER, MAIN
from tests.vllm.engine_process import ENVIRONMENT

MEMORY_BYTES: Final = 2_500_000
STATES: Final = {"qwen3next": "float32", "lfm2": None}
"""Models with states, which need blocks of 128 tokens, and the type of their matrices.

The engine is asked for it. Left alone, it takes float32 only on a CPU that has AVX512-BF16.
"""


def options(name: str) -> EngineOptions:
    return EngineOptions(
        block_size=128 if name in STATES else 32,
        kernel_block_size=32,
        state_dtype=STATES.get(name),
    )


@pytest.fixture(scope="module")
def engines() -> dict[str, Any]:
    """What a running engine of each tiny model says about its memory."""
    names = sorted({*MAIN, *ARCHITECTURES})
    lines = [
        json.dumps(
            {
                "model": str(FOLDER / name),
                "block_size": options(name).block_size,
                "memory_bytes": MEMORY_BYTES,
                "state_dtype": options(name).state_dtype or "auto",
            }
        )
        for name in names
    ]
    cache = str(Path(sys.prefix) / "engine-cache")  # What an engine compiles at its first start.
    environment = os.environ | ENVIRONMENT
    environment |= {"VLLM_CACHE_ROOT": cache, "TORCHINDUCTOR_CACHE_DIR": cache}
    del environment["VLLM_CPU_KVCACHE_SPACE"]  # It would outdo the bytes that are asked for.
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.engine_memory"],
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        env=environment,
        cwd=Path(__file__).parents[2],
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(names, answers, strict=True))


def number(layer: str) -> int:
    """The number in an engine's name of a layer."""
    return int(re.findall(r"\.layers\.(\d+)\.", layer)[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted({*MAIN, *ARCHITECTURES}))
def test_an_engines_memory_is_explained_and_is_our_plan(
    engines: Mapping[str, Any], name: str
) -> None:
    answer = engines[name]
    plan = from_json(answer["plan"])
    assert (answer["missed"], answer["foreign"]) == (0, 0)
    assert answer["is_worker_plan"]
    assert plan.size_bytes == answer["memory_bytes"]
    config = read_config(FOLDER / name / "config.json")
    aliases = {number(reader): number(owner) for reader, owner in plan.aliases.items()}
    assert aliases == engine_layers(config).aliases
    named = {number(layer): layer for group in plan.groups for layer in group.layers}
    grouping = group_config(config, options(name)).grouping
    groups = from_grouping(grouping, layout=Layout.LBHNC, names=named)
    settings = PlanOptions(aliases=plan.aliases)
    own = plan_memory(groups, memory_bytes=MEMORY_BYTES, options=settings)
    assert (own.block_bytes, own.num_blocks) == (plan.block_bytes, plan.num_blocks)
    assert fingerprint(own) == fingerprint(plan)
    assert [group.references for group in own.groups] == [
        group.references for group in plan.groups
    ]
