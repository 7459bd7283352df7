"""The expected value: what the events have shown, or probably mean, between the bounds."""

from dataclasses import replace
from typing import Any

import pytest
from kvbraid.errors import UnknownError
from kvbraid.events import AllBlocksCleared
from kvbraid.fleet.answer import PodScore
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import FULL, MODEL, OTHER, POD, TEXT, Text, an_index, tell
from tests.contract.wires import SGLANG, SGLANG_HYBRID, page, publish, signed


def row_of(index: FleetIndex, tiers: tuple[str, ...] = ()) -> PodScore:
    request = Request(model=MODEL, token_ids=list(TEXT.prompt), tiers=list(tiers) or None)
    (row,) = index.score(request).rows
    return row


def values(row: PodScore) -> tuple[int, int, int]:
    return row.lower, row.expected, row.upper


def a_pod() -> FleetIndex:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32)))
    return index


def test_it_equals_the_bounds_where_they_meet() -> None:
    assert values(row_of(a_pod())) == (512, 512, 512)


@pytest.mark.parametrize("state", [PodState.STALE, PodState.REBUILDING, PodState.DEGRADED])
def test_what_was_shown_probably_stands_where_nothing_is_promised(state: PodState) -> None:
    index = a_pod()
    index.set_state(POD, state)
    assert values(row_of(index)) == (0, 512, 1024)


def test_a_copy_in_doubt_is_probably_there() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32), medium="CPU"), AllBlocksCleared())
    assert values(row_of(index, ("gpu", "cpu"))) == (0, 512, 512)
    assert values(row_of(index)) == (0, 0, 0)


def test_what_hangs_on_an_unknown_parent_probably_is_not_part_of_the_prompt() -> None:
    index = a_pod()
    tell(index, TEXT.stored(FULL, range(48, 64)))
    assert values(row_of(index))[1] == 512


def test_groups_of_which_nothing_is_told_are_expected_to_hold_what_full_attention_holds() -> None:
    index = an_index(SGLANG_HYBRID, engine=SGLANG)
    publish(index, [page(TEXT, 0, 32, "GPU")])
    assert values(row_of(index)) == (0, 512, 512)


# --- the score follows it ----------------------------------------------------------------------


@pytest.mark.parametrize("state", [PodState.STALE, PodState.REBUILDING, PodState.DEGRADED])
def test_an_empty_pod_does_not_win_against_one_that_probably_holds_the_prompt(
    state: PodState,
) -> None:
    index = an_index(pods=(OTHER, POD))
    tell(index, TEXT.stored(FULL, range(32)))
    tell(index, TEXT.stored(FULL, range(2)), pod=OTHER)
    tell(index, AllBlocksCleared(), pod=OTHER)
    for pod in (POD, OTHER):
        index.set_state(pod, state)
    rows = index.score(Request(model=MODEL, token_ids=list(TEXT.prompt))).rows
    assert {row.pod: (row.lower, row.score) for row in rows} == {POD: (0, 512.0), OTHER: (0, 0.0)}


def test_a_copy_in_doubt_counts_with_the_weight_of_its_tier() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32), medium="CPU"), AllBlocksCleared())
    for tiers in ((), ("gpu",), ("gpu", "cpu")):
        assert row_of(index, tiers).score == pytest.approx(512 * 0.8)
    tell(index, TEXT.stored(FULL, range(16)))
    assert row_of(index).score == pytest.approx(256 + 256 * 0.8)


def test_a_copy_in_doubt_does_not_hide_one_that_is_certain() -> None:
    index = an_index()
    tell(index, TEXT.stored(FULL, range(32), medium="CPU"), AllBlocksCleared())
    tell(index, TEXT.stored(FULL, range(32), medium="STORAGE"))
    assert row_of(index).score == pytest.approx(512 * 0.5)


def test_it_follows_what_is_likely_of_groups_that_no_event_tells_of() -> None:
    """On further tiers as well as on the GPU."""
    index = an_index(SGLANG_HYBRID, engine=SGLANG)
    publish(index, [page(TEXT, 0, 32, "GPU")])
    assert row_of(index).score == 512
    publish(index, [page(TEXT, 0, 32, "CPU_PINNED"), removed(*range(32))])
    assert values(row_of(index)) == (0, 0, 0)
    assert row_of(index).score == pytest.approx(512 * 0.8)


# --- groups that no event tells of: marks ------------------------------------------------------

STATES = Topology(
    groups=(
        GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
        GroupSpec(kind=SpecKind.MAMBA, block_size=16),
    ),
    alignment=64,
)
WINDOWS = SGLANG_HYBRID


def store(first: int, last: int) -> list[Any]:
    return page(TEXT, first, last, "GPU")


def removed(*blocks: int) -> list[Any]:
    return ["BlockRemoved", [signed(TEXT.hash((j + 1) * 16)) for j in blocks], "GPU"]


def expected_after(topology: Topology, *events: list[Any], end: int, **profile: Any) -> int:  # noqa: ANN401
    """The value for a prompt of which only so many tokens are the text's."""
    index = an_index(topology, engine=replace(SGLANG, **profile))
    for event in events:
        publish(index, [event])
    prompt = [*TEXT.tokens[:end], *range(2000, 2100)]
    (row,) = index.score(Request(model=MODEL, token_ids=prompt)).rows
    return row.expected


def test_an_insert_keeps_a_window_at_its_end_and_a_state() -> None:
    assert expected_after(WINDOWS, store(0, 32), end=512) == 512
    assert expected_after(STATES, store(0, 32), end=512) == 512


def test_a_prompt_that_leaves_an_insert_before_its_end_finds_neither() -> None:
    """The window of the pages from 24 on does not reach back far enough."""
    assert expected_after(WINDOWS, store(0, 32), end=496) == 0
    assert expected_after(STATES, store(0, 32), end=496) == 0


def test_what_a_short_prompt_needs_is_there_from_its_start() -> None:
    assert expected_after(WINDOWS, store(0, 4), end=64) == 64


def test_the_page_that_a_store_hangs_on_gets_one_too() -> None:
    fork = page(Text(seed=1), 20, 24, "GPU")
    fork[2] = signed(TEXT.hash(320))
    assert expected_after(WINDOWS, store(0, 32), fork, end=320) == 320
    assert expected_after(STATES, store(0, 32), fork, end=320) == 320


def test_a_state_at_a_fork_stands_on_the_grid() -> None:
    fork = page(Text(seed=1), 22, 24, "GPU")
    fork[2] = signed(TEXT.hash(352))
    assert expected_after(STATES, store(0, 32), fork, end=352) == 320


@pytest.mark.parametrize("topology", [WINDOWS, STATES])
def test_a_prefill_that_is_cut_inserts_at_each_cut(topology: Topology) -> None:
    long, later = store(0, 32), store(32, 64)
    assert expected_after(topology, long, end=300) == 0
    assert expected_after(topology, long, end=300, chunked_prefill_size=256) == 256
    assert expected_after(topology, long, later, end=800, chunked_prefill_size=256) == 768


def test_a_pool_of_known_size_loses_what_is_oldest() -> None:
    """Three slots, or two windows, are of running requests."""
    first, others = store(0, 4), [page(Text(seed=n), 0, 4, "GPU") for n in (1, 2, 3)]
    child = store(4, 12)  # The state of a leaf is certain.
    for slots, expected in ((7, 0), (8, 64)):
        got = expected_after(STATES, first, child, *others, end=64, state_slots=slots)
        assert got == expected
    for tokens, expected in ((256 + 128, 0), (256 + 256, 64)):
        got = expected_after(WINDOWS, first, *others, end=64, window_pool_tokens=tokens)
        assert got == expected


@pytest.mark.parametrize("topology", [WINDOWS, STATES])
def test_a_page_that_is_removed_has_nothing(topology: Topology) -> None:
    assert expected_after(topology, store(0, 32), removed(31), end=512) == 0
    assert expected_after(topology, store(0, 32), ["AllBlocksCleared"], end=512) == 0
    again = [store(0, 32), removed(*range(16, 32)), store(16, 32)]
    assert expected_after(topology, *again, end=512) == 512


def test_pages_that_are_copied_to_the_host_take_their_windows_along() -> None:
    index = an_index(WINDOWS, engine=SGLANG)
    publish(index, [store(0, 32), page(TEXT, 0, 32, "CPU_PINNED"), removed(*range(32))])
    assert values(row_of(index, ("gpu", "cpu"))) == (0, 512, 512)
    publish(index, [["BlockRemoved", [signed(TEXT.hash(512))], "CPU_PINNED"]])
    assert values(row_of(index, ("gpu", "cpu"))) == (0, 0, 496)
    publish(index, [page(TEXT, 31, 32, "CPU_PINNED")])
    assert values(row_of(index, ("gpu", "cpu"))) == (0, 0, 512)


def test_a_loss_forgets_the_marks() -> None:
    index = an_index(STATES, engine=SGLANG)
    publish(index, [store(0, 32)])
    index.lose(POD)
    assert values(row_of(index))[1] == 0
    index.check_integrity()


# --- what a gateway tells ----------------------------------------------------------------------


def sent(index: FleetIndex, end: int, produced: int = 1) -> None:
    """A prompt of the text, one token longer than `end`, and what follows in the text."""
    request = Request(model=MODEL, token_ids=TEXT.tokens[: end + 1])
    index.routed(POD, request, TEXT.tokens[end + 1 : end + 1 + produced])
    index.check_integrity()


def after_two_requests(topology: Topology, second: int, **profile: Any) -> FleetIndex:  # noqa: ANN401
    """The first request has 512 tokens and one, the second only so many of these."""
    index = an_index(topology, engine=replace(SGLANG, **profile))
    sent(index, 512)
    publish(index, [store(0, 32)])
    sent(index, second)
    return index


def expected_of(index: FleetIndex, end: int) -> int:
    prompt = [*TEXT.tokens[:end], *range(2000, 2100)]
    (row,) = index.score(Request(model=MODEL, token_ids=prompt)).rows
    index.check_integrity()
    return row.expected


@pytest.mark.parametrize(("topology", "expected"), [(WINDOWS, 496), (STATES, 448)])
def test_what_is_made_again_without_a_store_is_known_from_the_request(
    topology: Topology, expected: int
) -> None:
    index = after_two_requests(topology, 496)
    assert expected_of(index, 496) == expected
    assert expected_of(index, 512) == 512
    publish(index, [["AllBlocksCleared"]])
    assert expected_of(index, 512) == 0


def test_a_request_leaves_its_marks_when_its_pages_are_there() -> None:
    index = an_index(WINDOWS, engine=SGLANG)
    sent(index, 256, produced=257)
    publish(index, [store(0, 16)])
    assert expected_of(index, 256) == 0
    publish(index, [store(16, 32)])
    assert (expected_of(index, 256), expected_of(index, 512)) == (256, 512)


def test_states_of_produced_tokens_stand_on_a_grid_of_their_own() -> None:
    index = an_index(STATES, engine=SGLANG)
    sent(index, 64, produced=400)
    publish(index, [store(0, 16)])
    assert [expected_of(index, end) for end in (64, 192, 256)] == [64, 64, 256]


def test_what_requests_use_stays_when_memory_is_full() -> None:
    """There is room for two texts and some pages; the first one is used before the third."""
    for uses, expected in ((True, 64), (False, 0)):
        index = an_index(WINDOWS, engine=replace(SGLANG, window_pool_tokens=16 * 11))
        for text in (TEXT, Text(seed=1), Text(seed=2)):
            if uses and text.seed == 2:
                sent(index, 64)
            request = Request(model=MODEL, token_ids=[*text.tokens[:64], 7])
            index.routed(POD, request, [8])
            publish(index, [page(text, 0, 4, "GPU")])
        assert expected_of(index, 64) == expected


def test_only_pods_with_silent_groups_listen_to_gateways() -> None:
    index = a_pod()
    sent(index, 512)
    assert values(row_of(index)) == (512, 512, 512)


def test_with_a_host_tier_stores_leave_marks_whatever_gateways_tell() -> None:
    index = an_index(WINDOWS, engine=SGLANG)
    sent(index, 512)
    publish(index, [store(0, 16), page(TEXT, 0, 16, "CPU_PINNED")])
    sent(index, 512)
    publish(index, [store(16, 32)])
    assert expected_of(index, 256) == 256


def test_what_nobody_serves_cannot_be_sent() -> None:
    index = a_pod()
    request = Request(model="other", token_ids=[1])
    for pod, told in ((OTHER, "not registered"), (POD, 'does not serve model "other"')):
        with pytest.raises(UnknownError, match=told):
            index.routed(pod, request, [])


def test_many_requests_whose_pages_never_come_are_forgotten() -> None:
    index = an_index(STATES, engine=SGLANG)
    for _ in range(3):
        sent(index, 512)
    before = index.memory_bytes()
    for _ in range(200):
        sent(index, 512)
    assert index.memory_bytes() <= before + 4096


def test_it_is_part_of_the_body() -> None:
    index = a_pod()
    request = Request(model=MODEL, token_ids=list(TEXT.prompt))
    assert b'"upper":512,"expected":512,' in index.score(request).to_json()
