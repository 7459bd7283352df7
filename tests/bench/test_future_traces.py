"""The future of traces: all policies play the same requests, and none exceeds the bound."""

import json
from pathlib import Path
from random import Random

import pytest
from kvbraid.sim.traces.models import simulated_model

from bench.retention.checkpoints import Sizes
from bench.studies import future_traces, traces
from bench.studies.future_traces import Cell, compute, page, sizes_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixty chats of one to five blocks, which go on in any order."""
    draw, chats = Random(1), [[chat] for chat in range(60)]
    lines = []
    for number in range(150):
        chat = draw.choice(chats)
        chat.append(100 + number)
        lines.append({"input_length": 512 * len(chat), "hash_ids": [*chat]})
        if len(chat) == 5:
            chats.remove(chat)
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / "small.jsonl").write_text(text)
    monkeypatch.setattr(traces, "TRACES", {"small.jsonl": "here"})
    traces.trace_of.cache_clear()
    traces.footprint_of.cache_clear()
    return tmp_path


@pytest.mark.parametrize("model", future_traces.TRACED)
def test_no_policy_exceeds_the_bound(folder: Path, model: str) -> None:
    rates = compute(folder, Cell("small", model, "1/4"))
    assert max(rates.values()) == rates["bound"] > rates["future"] - 1e-9
    assert min(rates.values()) > 0
    (line,) = page([(Cell("small", model, "1/4"), rates)])[-1:]
    assert line.startswith(f"| small | {model} | 1/4 | {rates['engine']:.1f} | ")


def test_the_sizes_of_a_model_are_those_of_a_block_of_the_trace(folder: Path) -> None:
    trace = traces.trace_of(folder, "small", None)
    assert sizes_of(simulated_model("gpt-oss-120b"), trace) == Sizes(512, 32, 8)
    assert sizes_of(simulated_model("qwen3-next-80b-a3b"), trace) == Sizes(544, 1, 3)
    assert sizes_of(simulated_model("llama-3.1-8b"), trace) == Sizes(512, 32, 0)
