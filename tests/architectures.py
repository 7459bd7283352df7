"""Small configs of every architecture that we read, and the groups that a real engine formed.

`fixtures/architectures.json` has a row per case: its `config`, and the `groups` (and the type of
the matrices of states, and `aliases`, the layers that read another's cache) that vLLM 0.32
answered with, in blocks of 32 tokens. Its answers are those of a CPU with AMX, and
`tests/vllm/engine_layers.py` gets the same ones on any x86 CPU. A case that this engine cannot
build on a CPU has a reason instead, `unbuilt`. `python -m tests.vllm.record` asks the engine again
and writes its answers.
"""

import json
from pathlib import Path
from typing import Any, Final

from kvbraid.models import EngineOptions, group_config

PATH: Final = Path(__file__).parent / "fixtures" / "architectures.json"
CASES: Final[dict[str, dict[str, Any]]] = json.loads(PATH.read_text())
BUILT: Final = sorted(name for name, case in CASES.items() if "groups" in case)

ALIASES: Final = {
    "another name of the same architecture": {"RefinedWeb", "RefinedWebModel"},
    "a type around a text model that is read alike": {
        "gemma3",
        "gemma3n",
        "gemma4",
        "llama4",
        "muse_glimmer",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "step3p7",
    },
    "no longer served by vLLM 0.32": {
        "MiniMaxM1",
        "MiniMaxText01",
        "bamba",
        "hunyuan",
        "minimax",
        "minimax_m1",
        "minimax_text_01",
        "phi4flash",
    },
}
"""Types that we read and that have no case of their own, by the reason."""


def ours(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Group a case's layers and describe the groups as the engine's are."""
    options = EngineOptions(
        block_size=32, kernel_block_size=32, state_dtype=case.get("state_dtype")
    )
    groups = group_config(case["config"], options).grouping.groups
    specs = [group.spec() for group in groups]
    return [
        {
            "kind": spec.kind.value,
            "block_size": spec.block_size,
            "window": spec.window,
            "chunk": spec.chunk,
            "layers": list(group.numbers),
            "page_bytes": sorted({layer.page.page_bytes for layer in group.layers}),
        }
        for group, spec in zip(groups, specs, strict=True)
    ]


def counted(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups with how many layers they have, where the engine's names do not tell which."""
    return [{**group, "layers": len(group["layers"])} for group in groups]
