"""What the pages on vLLM say is refused, against the refusals in the code, both ways."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.markdown import ROOT, tables

INTEGRATION: Final = ROOT / "python" / "kvbraid" / "integrations" / "vllm"

ROWS: Final = {
    "kvbraid's cache runs only in vLLM": "another series",
    "HiSparse keeps": "R-SWA, HiSparse",
    "; kvbraid supports": "unknown kinds of groups",
    "has mamba_cache_mode": "`mamba_cache_mode`",
    "drafts of": "drafts of more tokens",
    "with an engine that schedules": "a scheduler class",
    "(bounded replay)": "bounded replay",
    "they fill whole blocks": "sinks that do not fill whole blocks",
    "is left to requests": "or that leave no block to requests",
    "residency metrics": "`--kv-cache-metrics`",
    "bind_kv_cache_manager": "connectors that reach into vLLM's block pool",
    "bind_gpu_block_pool": "connectors that reach into vLLM's block pool",
    "supports_divergent_local_hybrid_hits": "connectors that continue hits which lack their state",
    "events with whole hashes": "`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`",
    "events of prompts given as embeddings": "events of prompts given as embeddings",
    "diffusion models": "diffusion models",
}
"""A part of each refusal's message, and of its row."""

ROWS_OF_OFFLOAD: Final = {
    "it works on kvbraid's cache": "another scheduler than ours",
    "leave out --no-enable-prefix-caching": "`--no-enable-prefix-caching`",
    "and a random seed": "a disk with hashes of a random seed",
    "lay their memory out differently": "ranks whose memory differs",
    "blocks are moved on CUDA devices": "devices other than CUDA's and CPUs",
}
"""As above, of docs/offload-vllm.md."""

ELSEWHERE: Final = {
    "; take another connector": "the names of what the connector defines, which have rows",
    "media that come after": "a request is refused, not the engine; said below the table",
}
NO_UNSUPPORTED: Final = "context parallelism"
"""A row of an InvalidValueError, which tests/vllm/test_drop_in_convert.py raises."""


def text_of(node: ast.AST) -> str:
    return "".join(
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def refusals(path: Path) -> Iterator[str]:
    """The texts of a module's refusals; where one is chosen from a table, those of the table."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and text_of(node.target) == "":
            name = node.target.id if isinstance(node.target, ast.Name) else ""
            if name == "_REFUSED_OVERRIDES" and isinstance(node.value, ast.Dict):
                yield from (text_of(key) for key in node.value.keys if key is not None)
        if not isinstance(node, ast.FunctionDef):
            continue
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "UnsupportedError":
                if text_of(each):
                    yield text_of(each)
                else:
                    pairs = (t for t in ast.walk(node) if isinstance(t, ast.Tuple))
                    yield from (
                        text_of(t.elts[1])
                        for t in pairs
                        if len(t.elts) == 2 and text_of(t.elts[1])
                    )


FILES: Final = sorted(INTEGRATION.rglob("*.py"))
OFFLOAD: Final = [text for path in FILES if "offload" in path.parts for text in refusals(path)]
CODE: Final = [text for path in FILES if "offload" not in path.parts for text in refusals(path)]
(TABLE,) = tables("vllm.md", "What is refused")
(TABLE_OF_OFFLOAD,) = tables("offload-vllm.md", "What is refused")


@pytest.mark.parametrize("text", CODE)
def test_every_refusal_has_its_row(text: str) -> None:
    (part,) = (part for part in (*ROWS, *ELSEWHERE) if part in text)
    if part in ROWS:
        assert len([row for row in TABLE if ROWS[part] in row[0]]) == 1


def test_every_row_has_its_refusal() -> None:
    assert [part for part in (*ROWS, *ELSEWHERE) if not any(part in text for text in CODE)] == []
    named = {*ROWS.values(), NO_UNSUPPORTED}
    assert [row for row in TABLE if not any(part in row[0] for part in named)] == []


def test_refusals_of_the_connector_and_rows_of_its_page_are_one_to_one() -> None:
    found = [[part for part in ROWS_OF_OFFLOAD if part in text] for text in OFFLOAD]
    assert sorted(found) == sorted([part] for part in ROWS_OF_OFFLOAD)
    named = [
        [part for part in ROWS_OF_OFFLOAD.values() if part in row[0]] for row in TABLE_OF_OFFLOAD
    ]
    assert sorted(named) == sorted([part] for part in ROWS_OF_OFFLOAD.values())
