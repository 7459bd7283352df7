"""The table of bounds in docs/placing-blocks.md, row by row: each situation made, and answered.

The prompt has 64 tokens and one more; a full-attention group holds all four blocks of 16, or two.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
from kvbraid.events.model import AllBlocksCleared, BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState
from kvbraid.spec import SpecKind
from kvbraid.spec_mapping import profile_from_mapping, topology_from_mapping

from tests.docs.markdown import tables

POD: Final = PodId("a")
TOKENS: Final = tuple(range(64))
FULL: Final = {"kind": "full_attention", "block_size": 16}
WINDOW: Final = {"kind": "sliding_window", "block_size": 16, "window": 32}


STORED: Final = BlockStored(
    block_hashes=(1, 2, 3, 4),
    parent_block_hash=None,
    token_ids=TOKENS,
    block_size=16,
    group_idx=0,
    kv_cache_spec_kind="full_attention",
)
ADAPTED: Final = replace(STORED, lora_name="poet")
SECOND: Final = replace(STORED, block_hashes=(2, 3, 4), parent_block_hash=1, token_ids=TOKENS[16:])
HALF: Final = replace(STORED, block_hashes=(1, 2), token_ids=TOKENS[:32])
STATES: Final = replace(
    STORED, group_idx=1, kv_cache_spec_kind="mamba", block_size=32, block_hashes=(2,)
)
INSIDE: Final = replace(
    STATES, block_size=16, block_hashes=(3,), parent_block_hash=2, token_ids=TOKENS[32:48]
)
ORPHAN: Final = replace(STORED, block_hashes=(3, 4), token_ids=TOKENS[32:], parent_block_hash=99)


def index_of(
    *events: BlockStored | AllBlocksCleared,
    topology: Mapping[str, object] | None = None,
    state: PodState = PodState.EXACT,
    memory_limit_bytes: int | None = None,
    model_groups: tuple[tuple[SpecKind, int | None], ...] = (),
    num_gpu_blocks: int | None = None,
) -> FleetIndex:
    index = FleetIndex(IndexOptions(memory_limit_bytes=memory_limit_bytes))
    read = None if topology is None else topology_from_mapping(topology)
    engine = replace(
        profile_from_mapping(topology or {}),
        model_groups=model_groups,
        num_gpu_blocks=num_gpu_blocks,
    )
    index.register(POD, model="m", topology=read, engine=engine)
    for event in events:
        index.apply(POD, encode_batch([event]))
    index.set_state(POD, state, reason="a reason")
    index.enforce_limits()
    index.check_integrity()
    return index


CONFIGURED: Final = {"groups": [FULL]}
SIZED: Final = (
    "`degraded` because history is missing, and the size of the pool is known "
    "([below](#after-a-loss-the-size-of-the-pool))"
)

SITUATIONS: Final[Mapping[str, tuple[tuple[int, int], Callable[[], FleetIndex]]]] = {
    "state `exact`, everything placed": ((64, 64), lambda: index_of(STORED)),
    "hashes in limbo that may stand on this request": (
        (32, 64),
        lambda: index_of(HALF, ORPHAN, topology=CONFIGURED),
    ),
    "copies outside the GPU in doubt since a clear or restart, and not removed": (
        (0, 64),
        lambda: index_of(STORED, replace(STORED, medium="CPU"), AllBlocksCleared()),
    ),
    "a kind or `chunk` unknown": (
        (32, 64),
        lambda: index_of(
            STORED,
            replace(HALF, group_idx=1, kv_cache_spec_kind=None),
        ),
    ),
    "unconfigured groups: an index is missing among those seen": (
        (0, 64),
        lambda: index_of(replace(STORED, group_idx=1)),
    ),
    "unconfigured groups: one of the `model_config` has told nothing yet": (
        (0, 64),
        lambda: index_of(STORED, model_groups=((SpecKind.MAMBA, None),)),
    ),
    "unconfigured groups: no prompt had four blocks of the smallest size yet": (
        (0, 32),
        lambda: index_of(HALF),
    ),
    "unconfigured groups: events lack an index, and lack a kind or come beside indexed ones": (
        (0, 64),
        lambda: index_of(replace(HALF, group_idx=None, kv_cache_spec_kind=None)),
    ),
    "`partial_hits` left out, and states are saved inside blocks": (
        (32, 48),
        lambda: index_of(STORED, STATES, INSIDE),
    ),
    '`report_mode = "full"`': (
        (0, 64),
        lambda: index_of(STORED, topology={**CONFIGURED, "report_mode": "full"}),
    ),
    "`extra_keys = true`": (
        (0, 64),
        lambda: index_of(STORED, topology={**CONFIGURED, "extra_keys": True}),
    ),
    "`adapter_reloads = true`, and the request names an adapter": (
        (0, 64),
        lambda: index_of(ADAPTED, topology={**CONFIGURED, "adapter_reloads": True}),
    ),
    "from the first boundary on that is held for two keys, as far as events show": (
        (16, 64),
        lambda: index_of(STORED, SECOND, topology={**CONFIGURED, "engine": "sglang"}),
    ),
    "SGLang with groups other than full attention": (
        (0, 32),
        lambda: index_of(
            replace(HALF, group_idx=None),
            topology={"engine": "sglang", "groups": [FULL, WINDOW]},
        ),
    ),
    "something was forgotten for lack of memory": (
        (0, 64),
        lambda: index_of(STORED, memory_limit_bytes=1),
    ),
    "`degraded` because history is missing": (
        (32, 64),
        lambda: index_of(
            HALF,
            topology=CONFIGURED,
            state=PodState.DEGRADED,
        ),
    ),
    SIZED: (
        (32, 48),
        lambda: index_of(HALF, topology=CONFIGURED, state=PodState.DEGRADED, num_gpu_blocks=4),
    ),
    "`rebuilding`, `stale`: removals may be missing": (
        (0, 64),
        lambda: index_of(STORED, topology=CONFIGURED, state=PodState.REBUILDING),
    ),
    "a contradiction of configuration or places": (
        (0, 64),
        lambda: index_of(STORED, replace(STORED, kv_cache_spec_kind="mamba"), topology=CONFIGURED),
    ),
}


EXACT: Final = "state `exact`, everything placed"


def asked(situation: str) -> Request:
    lora = "poet" if "adapter" in situation else None
    tiers = ["gpu"] if situation == SIZED else ["gpu", "cpu"]
    return Request(model="m", token_ids=[*TOKENS, 7], tiers=tiers, lora=lora)


def test_every_situation_of_the_table_is_made_here() -> None:
    table, *_ = tables("placing-blocks.md", "From presence to bounds")
    assert [row[0] for row in table] == list(SITUATIONS)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_bounds_are_those_of_the_table(situation: str) -> None:
    bounds, make = SITUATIONS[situation]
    (row,) = make().score(asked(situation)).rows
    assert (row.lower, row.upper) == bounds
    assert row.exactness == ("exact" if situation == EXACT else "bound")


def test_missing_history_promises_nothing_where_groups_are_only_learned() -> None:
    index = index_of(STORED, state=PodState.DEGRADED)
    (row,) = index.score(Request(model="m", token_ids=[*TOKENS, 7])).rows
    assert (row.lower, row.upper) == (0, 64)


REASONS: Final = {
    "hashes in limbo that may stand on this request": "some hashes have no certain place",
    "copies outside the GPU in doubt since a clear or restart, and not removed": (
        "copies outside the GPU are in doubt since a clear or a restart"
    ),
    "a kind or `chunk` unknown": "the kind, window or chunk of a group is not known",
    "unconfigured groups: an index is missing among those seen": "an index is missing among",
    "unconfigured groups: one of the `model_config` has told nothing yet": "a group of the model",
    "unconfigured groups: no prompt had four blocks of the smallest size yet": (
        "no prompt was of four blocks yet"
    ),
    "unconfigured groups: events lack an index, and lack a kind or come beside indexed ones": (
        "events have no group_idx"
    ),
    "`partial_hits` left out, and states are saved inside blocks": "states are saved inside",
    '`report_mode = "full"`': 'report_mode = "full", so a copy may be counted more than once',
    "`extra_keys = true`": "extra_keys is set, so what is counted may be held for another key",
    "`adapter_reloads = true`, and the request names an adapter": "adapter_reloads is set and",
    "from the first boundary on that is held for two keys, as far as events show": (
        "a boundary of this request is held for two keys"
    ),
    "SGLang with groups other than full attention": "the engine does not tell of all",
    "something was forgotten for lack of memory": "something that the pod holds was forgotten",
    "`degraded` because history is missing": "a reason",
    SIZED: "a reason",
    "`rebuilding`, `stale`: removals may be missing": "a reason",
    "a contradiction of configuration or places": "contradicts_kind",
}


def test_every_bound_of_the_table_has_its_reason() -> None:
    assert set(REASONS) == set(SITUATIONS) - {EXACT}


@pytest.mark.parametrize("situation", REASONS)
def test_an_explanation_says_why_the_answer_is_a_bound(situation: str) -> None:
    index = SITUATIONS[situation][1]()
    if REASONS[situation] != "a reason":  # The feed's reason would come first.
        index.set_state(POD, PodState.EXACT, reason="")
    (row,) = index.explain(asked(situation)).rows
    assert row.reason.startswith(REASONS[situation])
    assert "\n" not in row.reason


def test_an_explanation_of_an_exact_answer_has_no_reason() -> None:
    """Whatever else is true of the pod."""
    index = index_of(STORED, replace(ORPHAN, medium="CPU"), AllBlocksCleared(), STORED)
    index.set_state(POD, PodState.EXACT, reason="")
    (row,) = index.explain(Request(model="m", token_ids=[*TOKENS, 7])).rows
    assert (row.lower, row.upper, row.reason) == (64, 64, "")


SGLANG: Final = {**CONFIGURED, "engine": "sglang"}
DYNAMO: Final = {**SGLANG, "event_format": "dynamo"}


def of_adapter_loaded_again() -> FleetIndex:
    again = replace(ADAPTED, block_hashes=(11,), token_ids=TOKENS[:16])
    return index_of(ADAPTED, again, topology=SGLANG)


REASONS_OF_NAMES: Final[Mapping[str, tuple[Callable[[], FleetIndex], dict[str, Any], str]]] = {
    "extra key": (
        lambda: index_of(STORED, topology=SGLANG),
        {"extra_key": "k"},
        "the request has an extra_key, which the pod's events do not show; set event_format",
    ),
    "extra key and adapter": (
        lambda: index_of(ADAPTED, topology=DYNAMO),
        {"extra_key": "k", "lora": "poet"},
        "the pod's requests have an extra_key, and of an adapter it is not known",
    ),
    "first hash not shown": (
        lambda: index_of(topology=DYNAMO),
        {"extra_key": "k"},
        "the prompt begins with media, or no store without an extra_key has shown",
    ),
    "adapter loaded again": (
        of_adapter_loaded_again,
        {"lora": "poet"},
        "the adapter was loaded again, and what the newest load holds is not known",
    ),
}


@pytest.mark.parametrize("name", REASONS_OF_NAMES)
def test_an_explanation_names_what_in_the_request_makes_the_answer_a_bound(name: str) -> None:
    make, names, told = REASONS_OF_NAMES[name]
    index = make()
    index.set_state(POD, PodState.EXACT, reason="")
    (row,) = index.explain(Request(model="m", token_ids=[*TOKENS, 7], **names)).rows
    assert row.lower < row.upper
    assert row.reason.startswith(told)
