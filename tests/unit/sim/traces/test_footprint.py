"""The ideal footprint, against sums made by hand."""

import pytest
from kvbraid.sim.traces.footprint import Footprint, footprint, ideal_blocks
from kvbraid.sim.traces.models import SimulatedModel, simulated_model
from kvbraid.sim.traces.trace import Trace, TraceRequest
from kvbraid.spec import GroupSpec, SpecKind, Topology

CHUNKED = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=64)
FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=32)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 4 096 tokens, then five times 1 024 and six times 64: 9 600 tokens.
        ("llama-3.1-8b", 600),
        ("gpt-oss-120b", 600 + 8),  # A window of 128 is 8 blocks.
        ("gemma-3-27b", 600 + 6 * 64),
        ("qwen3-next-80b-a3b", 17 + 3),
        ("jamba-mini", 120 + 7),
    ],
)
def test_a_conversation_takes_its_full_blocks_one_window_and_one_state(
    name: str, expected: int
) -> None:
    groups = simulated_model(name).topology.groups
    assert ideal_blocks(groups, 4_096 + 5 * 1_024 + 6 * 64) == expected


@pytest.mark.parametrize(("num_tokens", "expected"), [(64, 4), (80, 5 + 1), (15, 0)])
def test_a_chunked_group_takes_the_chunk_at_hand(num_tokens: int, expected: int) -> None:
    assert ideal_blocks((CHUNKED, FULL), num_tokens) == expected


def test_the_start_of_a_prompt_has_a_shorter_window() -> None:
    assert ideal_blocks((WINDOW,), 16) == 1
    assert ideal_blocks((WINDOW,), 160) == 2


def test_shared_prefixes_count_once_and_windows_once_per_conversation() -> None:
    requests = [
        TraceRequest(0, 70, [1]),  # 4 blocks, all of them new.
        TraceRequest(1, 128, [1, 3]),  # 8 blocks, 4 of them new.
        TraceRequest(0, 130, [1, 4]),  # 8 blocks, 4 new; replaces the first one's window.
        TraceRequest(0, 130, [1, 4]),
    ]
    trace = Trace(name="t", block_tokens=64, num_requests=4, play=lambda: iter(requests))
    model = SimulatedModel(name="m", topology=Topology(groups=(WINDOW, FULL)), block_bytes=1)
    num_distinct = 4 + 4 + 4
    assert footprint(trace, model) == Footprint(2, 64 + 64 + 64, num_distinct + 2 + 2)
