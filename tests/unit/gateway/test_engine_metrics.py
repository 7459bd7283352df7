"""What is read of an engine's metrics, and that nothing else in them does any harm."""

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.gateway.engine_metrics import (
    LONGEST_LINE,
    MOST_LABELS,
    MOST_SERIES,
    read_engine_load,
)
from kvbraid.policy import EngineLoad

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="openai/gpt-oss-20b"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="openai/gpt-oss-20b"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="openai/gpt-oss-20b"} 0.25
"""
SGLANG = b"""\
sglang:num_running_reqs{dp_rank="0",model_name="glm",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="0",model_name="glm",tp_rank="1"} 2.0
sglang:num_running_reqs{dp_rank="1",model_name="glm",tp_rank="2"} 1.0
sglang:num_queue_reqs{dp_rank="0",model_name="glm",tp_rank="0"} 3.0
sglang:num_queue_reqs{dp_rank="0",model_name="glm",priority="5",tp_rank="0"} 4.0
sglang:num_queue_reqs{dp_rank="0",model_name="glm",priority="",tp_rank="1"} 3.0
sglang:num_queue_reqs{dp_rank="1",model_name="glm",tp_rank="2"} 1.0
sglang:token_usage{dp_rank="0",model_name="glm",tp_rank="0"} 0.55
"""


def waiting(value: str, labels: str = "") -> bytes:
    return f"vllm:num_requests_waiting{{{labels}}} {value}\n".encode()


def test_vllm_is_read() -> None:
    assert read_engine_load(VLLM, 1) == {0: EngineLoad(running=3, waiting=7, usage=0.25)}


def test_sglang_is_read_once_for_all_its_tensor_parallel_ranks_and_priorities() -> None:
    assert read_engine_load(SGLANG, 2) == {
        0: EngineLoad(running=2, waiting=3, usage=0.55),
        1: EngineLoad(running=1, waiting=1),
    }


def test_the_ranks_of_a_pod_that_is_registered_with_one_are_summed_up() -> None:
    assert read_engine_load(SGLANG, 1) == {0: EngineLoad(running=3, waiting=4, usage=0.55)}


def test_a_rank_that_the_pod_does_not_have_counts_for_nobody() -> None:
    named = b"".join(
        waiting("1", f'engine="{rank}"') for rank in ("1", "2", "-1", "x", "", "\u00b2", "9" * 500)
    )
    assert read_engine_load(named, 2) == {1: EngineLoad(waiting=1)}


@pytest.mark.parametrize(
    "value", ["NaN", "nan", "+Inf", "-Inf", "1e999", "-3", "", "x", "0x10", "1 2 3", "9" * 40]
)
def test_a_number_that_no_engine_can_mean_is_not_taken(value: str) -> None:
    assert read_engine_load(waiting(value), 1) == {}
    both = waiting(value, 'a="1"') + waiting("4", 'a="2"')
    assert read_engine_load(both, 1) == {0: EngineLoad(waiting=4)}


@pytest.mark.parametrize(
    "labels",
    [
        "a", "a=", 'a="', 'a="b" c', '="b"', "{}" * 50, 'a="b"}{', 'é="b"', '1a="b"',
        'a="b",' * (MOST_LABELS + 1), f'a="{"x" * LONGEST_LINE}"',
    ],
)  # fmt: skip
def test_a_line_whose_labels_are_garbage_is_not_read(labels: str) -> None:
    assert read_engine_load(waiting("1", labels), 1) == {}


def test_quotes_braces_and_time_stamps_are_read() -> None:
    text = waiting("2 1395066363000", 'a="} \\" {, \\\\", engine="0" ,')
    assert read_engine_load(text, 1) == {0: EngineLoad(waiting=2)}


def adapters(at: float, running: str, waiting: str = "", room: str = "2") -> bytes:
    return (
        f'vllm:lora_requests_info{{max_lora="{room}",running_lora_adapters="{running}",'
        f'waiting_lora_adapters="{waiting}"}} {at}\n'
    ).encode()


@pytest.mark.parametrize(
    ("lines", "loras"),
    [
        (adapters(1.0, "a,b"), {"a", "b"}),
        (adapters(1.0, "a", "b,c"), {"a", "b", "c"}),
        (adapters(1.0, "a"), None),  # There is room for another one.
        (adapters(1.0, ""), None),
        (adapters(2.0, "") + adapters(1.0, "a,b"), None),
        (adapters(1.0, "") + adapters(2.0, "a,b"), {"a", "b"}),
        (adapters(1.0, "a,b", room=""), None),
        (adapters(1.0, "a,b", room="0"), None),
        (adapters(1.0, "a,b", room="9" * 400), None),
        (b"".join(adapters(at, f"a{at},b") for at in range(MOST_SERIES)), None),
    ],
)
def test_adapters_count_if_there_is_no_room_for_another_one(
    lines: bytes, loras: set[str] | None
) -> None:
    expected = None if loras is None else frozenset(loras)
    assert read_engine_load(VLLM + lines, 1)[0].loras == expected


loads = st.builds(
    EngineLoad, running=st.integers(0, 9999), waiting=st.integers(0, 9999), usage=st.floats(0, 1)
)
names = st.text(st.characters(exclude_characters='"\\\n', exclude_categories=["Cs"]), max_size=9)


@given(st.dictionaries(st.integers(0, 7), loads, min_size=1), names)
def test_what_an_engine_writes_is_what_is_read(said: dict[int, EngineLoad], name: str) -> None:
    def gauge(gauge: str, field: str) -> str:
        lines = [
            f'vllm:{gauge}{{engine="{rank}",model_name="{name}"}} {getattr(load, field)!r}\n'
            for rank, load in said.items()
        ]
        return f"# HELP vllm:{gauge} Of vllm:{gauge}.\n# TYPE vllm:{gauge} gauge\n{''.join(lines)}"

    text = (
        gauge("num_requests_running", "running")
        + gauge("num_requests_waiting", "waiting")
        + gauge("kv_cache_usage_perc", "usage")
    )
    assert read_engine_load(text.encode(), 8) == said


pieces = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"\n", b"vllm:num_requests_waiting{", b"sglang:num_queue_reqs{", b"} ", b'engine="0"',
            b'"', b"\\", b",", b" 1", b"NaN", b"1e308", b"vllm:lora_requests_info{",
            b"vllm:kv_cache_usage_perc{} ", b'max_lora="1"', b'running_lora_adapters="a"',
        ]
    ),
)  # fmt: skip


@given(st.lists(pieces).map(b"".join), st.integers(1, 3))
def test_garbage_gives_only_numbers_that_an_engine_can_mean(body: bytes, num_ranks: int) -> None:
    for rank, load in read_engine_load(body, num_ranks).items():
        assert 0 <= rank < num_ranks
        assert load.running >= 0
        assert load.waiting >= 0
        assert 0 <= load.usage <= 1
        assert isfinite(load.usage)
