"""A topology and an engine profile from the field names of an engine's config.json."""

from collections.abc import Callable
from typing import Any

import pytest
from kvbraid.engine import EngineProfile
from kvbraid.errors import InvalidValueError, TopologyError
from kvbraid.hashing import HashAlgo
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology
from kvbraid.spec_mapping import profile_from_mapping, topology_from_mapping


def described(mapping: dict[str, Any]) -> tuple[Topology, EngineProfile]:
    return topology_from_mapping(mapping), profile_from_mapping(mapping)


FULL = {"kind": "full_attention", "block_size": 16}


def test_nothing_given_is_learned_from_events() -> None:
    assert topology_from_mapping({"model": "m", "num_blocks": 9}) == Topology(groups=())


def test_either_spelling_of_kind_and_window_is_read() -> None:
    groups = topology_from_mapping(
        {
            "groups": [
                {"event_kind": "sliding_window", "event_window": 128, "block_size": 32},
                {"kind": "sliding_window", "window": 128, "block_size": 32, "use_eagle": False},
            ]
        }
    ).groups
    assert (
        groups[0]
        == groups[1]
        == GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=32, window=128)
    )


def test_every_field_arrives() -> None:
    group = {"kind": "chunked_local_attention", "block_size": 16, "chunk": 256, "use_eagle": True}
    mapping = {
        "groups": [{**group, "prefix_cacheable": False, "variant": 1, "layers": 2}],
        "alignment": 64, "hash_block_size": 8, "partial_hits": True, "replay_tokens": 4,
        "hash_lookahead": 2, "engine": "sglang", "hash_algo": "xxhash", "PYTHONHASHSEED": 0,
        "report_mode": "full", "retention": 128, "extra_keys": True, "adapter_reloads": True,
        "event_format": "dynamo",
        "silent_pools_never_short": True, "window_pool_tokens": 512, "state_slots": 60,
        "chunked_prefill_size": 256,
    }  # fmt: skip
    assert topology_from_mapping(mapping) == Topology(
        groups=(
            GroupSpec(
                kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=256, eagle=True,
                prefix_cacheable=False, variant=1,
            ),
        ),
        alignment=64, hash_block_size=8, partial_hits=True, replay_tokens=4, hash_lookahead=2,
    )  # fmt: skip
    assert profile_from_mapping(mapping) == EngineProfile(
        dialect=EngineDialect.SGLANG, hash_algo=HashAlgo.XXHASH, hash_seed="0",
        report_mode="full", retention=128, extra_keys=True, adapter_reloads=True,
        event_format="dynamo",
        silent_pools_never_short=True, window_pool_tokens=512, state_slots=60,
        chunked_prefill_size=256,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"groups": {}}, "topology.groups = {}: expected `array"),
        ({"groups": [1]}, "topology.groups[0] = 1: expected `object`"),
        ({"groups": [FULL, {"kind": "mamba"}]}, "topology.groups[1].block_size is missing"),
        ({"groups": [{"block_size": 16}]}, "topology.groups[0].kind is missing"),
        ({"groups": [{**FULL, "kind": "rnn"}]}, "topology.groups[0].kind = 'rnn'"),
        ({"groups": [{**FULL, "block_size": 0}]}, "block_size = 0: expected `int` >= 1; docs/"),
        ({"groups": [{**FULL, "block_size": True}]}, "block_size = True"),
        ({"groups": [{**FULL, "block_size": 2**32}]}, "block_size = 4294967296"),
        ({"groups": [{**FULL, "use_eagle": 1}]}, "topology.groups[0].use_eagle = 1"),
        ({"groups": [{**FULL, "kind": "sliding_window"}]}, "topology.groups[0]: a sliding_window"),
        ({"groups": [{**FULL, "idx": 1}]}, "topology.groups[0].idx = 1; expected 0"),
        ({"alignment": "64"}, "topology.alignment = '64'"),
        ({"hash_algo": "md5"}, "topology.hash_algo = 'md5': expected one of sha256"),
        ({"PYTHONHASHSEED": 1.5}, "topology.PYTHONHASHSEED = 1.5"),
        ({"report_mode": "all"}, "topology.report_mode = 'all'"),
        ({"engine": "tgi"}, "topology.engine = 'tgi'"),
        ({"replay_tokens": -1}, "topology.replay_tokens = -1: expected `int` >= 0"),
    ],
)
def test_a_wrong_field_is_refused_by_name(mapping: dict[str, Any], told: str) -> None:
    with pytest.raises(TopologyError) as refused:
        described(mapping)
    assert told in str(refused.value)


@pytest.mark.parametrize("read", [topology_from_mapping, profile_from_mapping])
@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        (
            {"groups": [{**FULL, "use_eagel": True}]},
            "topology.groups[0].use_eagel = True: no such field; did you mean use_eagle? known: "
            "kind, event_kind, block_size, window, event_window, chunk, use_eagle, eagle,",
        ),
        ({"aligment": 64}, "topology.aligment = 64: no such field; did you mean alignment? known"),
        ({"x": "\n"}, "topology.x = '\\n': no such field; known: groups, alignment,"),
        ({"a\nb": 1}, "topology.a\\nb = 1: no such field; known: groups,"),
    ],
)
def test_a_field_that_nobody_reads_is_refused_with_what_was_meant(
    mapping: dict[str, Any], told: str, read: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(TopologyError) as refused:
        read(mapping)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"report_mode": "all"},
            "EngineProfile.report_mode is 'all'; expected one of incremental, full",
        ),
        (
            {"retention": -1},
            "EngineProfile.retention is -1; expected an integer of at least 0, or None",
        ),
    ],
)
def test_a_profile_that_no_engine_has_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        EngineProfile(**fields)
    assert str(refused.value) == told
