"""What TensorRT-LLM's buffer returns: JSON built by hand after its sources, none recorded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvbraid.events import buffered, decode
from kvbraid.events.buffered import BufferedReader, Drained
from kvbraid.fleet.index import FleetIndex
from kvbraid.hashing import MediaItem
from kvbraid.ids import PodState
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.contract.prompts import POD, TEXT, an_index, answer, exactly

FULL = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
WINDOW = GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=128)
BOTH = ["gpu", "cpu"]
LONG = 8192
CREATED = {"type": "created", "num_blocks_per_cache_level": [100, 10]}


def block(j: int, **fields: object) -> dict[str, Any]:
    tokens = TEXT.tokens[j * 16 : (j + 1) * 16]
    return {
        "type": "stored_block",
        "block_hash": TEXT.hash((j + 1) * 16),
        "tokens": [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in tokens],
        "cache_level": 0,
        "priority": 35,
        "mm_keys": [],
        **fields,
    }


def stored(first: int, last: int, **fields: object) -> dict[str, Any]:
    parent = TEXT.hash(first * 16) if first else None
    blocks = [block(j, **fields) for j in range(first, last)]
    return {"type": "stored", "parent_hash": parent, "blocks": blocks}


def removed(first: int, last: int) -> dict[str, Any]:
    hashes = [TEXT.hash((j + 1) * 16) for j in range(first, last)]
    return {"type": "removed", "block_hashes": hashes}


def moved(j: int, old: int, new: int) -> dict[str, Any]:
    change = {"type": "event_diff", "old_value": old, "new_value": new}
    block_hash = TEXT.hash((j + 1) * 16)
    return {"type": "updated", "block_hash": block_hash, "cache_level": change, "priority": None}


class Engine:
    """Numbers events, and hands them to the index as a drain returns them."""

    def __init__(self, *groups: GroupSpec) -> None:
        self.index: FleetIndex = an_index(Topology(groups=groups or (FULL,)), dp_size=2)
        self.reader = BufferedReader()
        self.next = 0

    def event(self, data: object, *, window: int = LONG, **fields: object) -> dict[str, Any]:
        self.next += 1
        return {"event_id": self.next - 1, "data": data, "window_size": window, **fields}

    def drained(self, *events: object) -> Drained:
        read = self.reader.read(json.dumps(events).encode())
        for payload in read.payloads:
            self.index.apply(POD, payload)
            self.index.check_integrity()
        return read

    def tell(self, *data: object, **fields: Any) -> Drained:  # noqa: ANN401
        return self.drained(*(self.event(each, **fields) for each in data))

    def state(self) -> tuple[PodState, dict[str, int]]:
        pod = self.index.pods()[0]
        return pod.state, dict(pod.refused)


EXACT: tuple[PodState, dict[str, int]] = (PodState.EXACT, {})


def test_what_is_stored_and_removed_is_answered_exactly() -> None:
    engine = Engine()
    engine.tell(CREATED, stored(0, 32), stored(32, 64))
    assert answer(engine.index) == exactly(1024)
    engine.tell(removed(48, 64))
    assert answer(engine.index) == exactly(768)
    assert engine.state() == EXACT


def test_a_move_is_between_tiers_and_a_removal_is_wherever_the_block_is() -> None:
    engine = Engine()
    engine.tell(CREATED, stored(0, 64), moved(40, 0, 1), moved(50, 0, 2))
    assert (answer(engine.index), answer(engine.index, tiers=BOTH)) == (exactly(640), exactly(800))
    engine.tell(moved(40, 1, 0))
    assert answer(engine.index) == exactly(800)
    engine.tell(removed(50, 51), moved(10, 0, 1), removed(10, 12))
    assert answer(engine.index, tiers=[*BOTH, "storage"]) == exactly(160)
    assert engine.state() == EXACT


def test_blocks_may_be_stored_on_several_levels_and_the_last_may_be_a_part() -> None:
    engine = Engine()
    part = {**block(2), "tokens": block(2)["tokens"][:5], "block_hash": 77}
    event = stored(0, 2)
    event["blocks"][1]["cache_level"] = 1
    engine.tell(CREATED, {**event, "blocks": [*event["blocks"], part]})
    assert (answer(engine.index), answer(engine.index, tiers=BOTH)) == (exactly(16), exactly(32))
    assert engine.state() == EXACT


def test_more_moved_blocks_than_are_remembered_are_removed_on_every_tier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffered, "MAX_MOVED", 1)
    engine = Engine()
    engine.tell(CREATED, stored(0, 8, cache_level=1), removed(4, 8))
    assert answer(engine.index, tiers=BOTH) == exactly(64)


@pytest.mark.parametrize("numbered", [False, True], ids=["by window", "by layer group"])
def test_each_window_is_a_group(numbered: bool) -> None:
    engine = Engine(FULL, WINDOW)

    def of(group: int, *data: object) -> list[dict[str, Any]]:
        window = (LONG, 128)[group]
        fields = {"layer_group_id": group} if numbered else {}
        return [engine.event(each, window=window, **fields) for each in data]

    engine.drained(*of(0, CREATED), *of(1, CREATED))
    engine.drained(*of(0, stored(0, 64)), *of(1, stored(0, 40)))
    assert answer(engine.index) == exactly(640)
    engine.drained(*of(1, removed(0, 30)))
    assert answer(engine.index) == exactly(640)
    engine.drained(*of(1, removed(30, 33)))
    assert answer(engine.index) == exactly(0)
    assert engine.state() == EXACT


def test_ranks_have_numbers_of_their_own() -> None:
    engine = Engine()
    rows = [engine.event(data, attention_dp_rank=1) for data in (CREATED, stored(0, 64))]
    engine.next = 0
    engine.drained(*rows, engine.event(CREATED, attention_dp_rank=0))
    assert (answer(engine.index), answer(engine.index, dp_rank=1)) == (exactly(0), exactly(1024))


def test_a_missing_number_ends_promises_until_the_engine_starts_again() -> None:
    engine = Engine()
    engine.tell(CREATED, stored(0, 32))
    engine.event(removed(0, 32))
    engine.tell(stored(32, 64))
    assert answer(engine.index) == (0, 1024)
    assert engine.state() == (PodState.DEGRADED, {"unknown_event": 1})
    engine.next = 0
    engine.tell(CREATED, stored(0, 16))
    assert answer(engine.index) == exactly(256)


def test_a_buffer_that_was_read_before_promises_nothing() -> None:
    engine = Engine()
    engine.next = 5
    engine.tell(stored(0, 32))
    assert answer(engine.index) == (0, 1024)


def test_salts_and_media_are_kept_apart() -> None:
    engine = Engine()
    image = {"type": "mm_key", "hash": "a1" * 32, "start_offset": 0}
    shown = stored(32, 33, mm_keys=[image], cache_salt="s")
    engine.tell(CREATED, stored(0, 32, cache_salt="s"), shown)
    assert answer(engine.index) == exactly(0)
    assert answer(engine.index, cache_salt="s") == exactly(512)
    item = MediaItem("a1" * 32, 514, 4)
    assert answer(engine.index, cache_salt="s", extra_keys=[item]) == (512, 1024)


def test_hashes_may_be_written_in_hexadecimal_digits_and_tokens_have_extra_ids() -> None:
    engine = Engine()
    events = [block(j, block_hash=TEXT.digest((j + 1) * 16).hex()) for j in range(4)]
    events[3]["tokens"][0]["token_extra_id"] = 9
    engine.tell(CREATED, {"type": "stored", "parent_hash": None, "blocks": events})
    assert answer(engine.index) == exactly(48)
    engine.tell({"type": "removed", "block_hashes": [TEXT.digest(48).hex()]})
    assert answer(engine.index) == exactly(32)


UNREADABLE: dict[str, Any] = {
    "an unknown type": {"type": "cleared"},
    "no type": {"block_hashes": [1]},
    "no hashes": {"type": "removed"},
    "a hash of 65 bits": {"type": "removed", "block_hashes": [1 << 64]},
    "a hash that is no number": {"type": "removed", "block_hashes": ["xyz"]},
    "a level below 0": moved(0, 0, -1),
    "a token of 65 bits": {
        "type": "stored",
        "blocks": [{"block_hash": 1, "tokens": [{"token_id": 1 << 64}]}],
    },
    "not an object": 7,
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_event_that_cannot_be_read_costs_its_neighbours_nothing(what: str) -> None:
    engine = Engine()
    engine.tell(CREATED, stored(0, 32), UNREADABLE[what], stored(32, 64))
    lower, upper = answer(engine.index, [*TEXT.prompt, *range(16)])
    assert (lower, upper) == (0, 1040)
    assert engine.state() == (PodState.DEGRADED, {"unknown_event": 1})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "malformed_batch"),
        (b"{}", "malformed_batch"),
        (b"[" * 100_000, "malformed_batch"),
        (b'[{"data": {}}]', "malformed_event"),
        (b'[{"event_id": 1.5, "data": {}}]', "malformed_event"),
        (b'[{"event_id": 0, "data": {}, "attention_dp_rank": 4096}]', "bad_rank"),
        (b" " * (buffered.MAX_BODY_BYTES + 1), "too_large"),
    ],
)
def test_what_belongs_to_no_rank_is_counted(body: bytes, reason: str) -> None:
    assert BufferedReader().read(body) == Drained(refused={reason: 1})  # type: ignore[arg-type]


def test_no_number_of_windows_makes_more_groups_than_an_engine_has() -> None:
    engine = Engine()
    engine.drained(*(engine.event(removed(0, 1), window=window) for window in range(1, 400)))
    state, refused = engine.state()
    assert (state, "large_group" in refused) == (PodState.DEGRADED, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    """Whatever field or byte is changed, what comes out is a payload that decodes."""
    engine = Engine()
    told = [CREATED, stored(0, 3), moved(1, 0, 1), removed(0, 2)]
    events = json.loads(json.dumps([engine.event(each, layer_group_id=0) for each in told]))
    event = data.draw(st.sampled_from(events))
    for holder in (event, event["data"]):
        if data.draw(st.booleans()):
            holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(VALUES)
    body = json.dumps(events).encode()
    at = data.draw(st.integers(0, len(body)))
    body = body[:at] + data.draw(st.binary(max_size=2)) + body[at + data.draw(st.integers(0, 2)) :]
    for payload in BufferedReader().read(body).payloads:
        decode(payload)
