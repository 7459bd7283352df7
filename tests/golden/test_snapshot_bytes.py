"""The bytes of a snapshot: one that another build has written is read, and the same is written.

If this fails because something else is kept from now on, the format has a new version: raise
VERSION in `crates/core/src/fleet/snapshot/envelope.rs`, tell docs/design/snapshot.md, and write
the file anew with `python -m tests.golden.test_snapshot_bytes`.
"""

from pathlib import Path
from typing import Final

from kvbraid.events import AllBlocksCleared, BlockRemoved, BlockStored, encode_batch
from kvbraid.events.model import Event
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId, PodState

from tests.differential.fleet_worlds import known

FILE: Final = Path(__file__).parent / "pod.snapshot"
POD: Final = PodId("a")


def a_store(first: int, blocks: int, **more: object) -> BlockStored:
    fields: dict[str, object] = {
        "block_hashes": tuple(range(first, first + blocks)),
        "parent_block_hash": None,
        "token_ids": tuple(range(4 * first, 4 * (first + blocks))),
        "block_size": 4,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return BlockStored(**{**fields, **more})  # type: ignore[arg-type]


def empty_index() -> FleetIndex:
    index = FleetIndex(IndexOptions(secret=bytes(range(32))))
    index.register(POD, model="m")
    return index


def index() -> FleetIndex:
    """Knows something of every kind: placed, undecided, in doubt, salted, counted, forgotten."""
    index = empty_index()
    batches: list[list[Event]] = [
        [a_store(1, 8), a_store(1, 8, group_idx=1, kv_cache_spec_kind="mamba")],
        [a_store(20, 2, medium="CPU"), AllBlocksCleared()],
        [a_store(40, 4), a_store(50, 2, extra_keys=[["salt"], None])],
        [a_store(60, 3, parent_block_hash=999), BlockRemoved(block_hashes=(41,), group_idx=0)],
        [a_store(70, 2, token_ids=tuple(range(16)), group_idx=1, kv_cache_spec_kind="mamba")],
        [a_store(40, 4), a_store(80, 2, lora_name="l")],
    ]
    for events in batches:
        index.apply(POD, encode_batch(events))
    index.apply(POD, b"rubbish")
    index.set_state(POD, PodState.DEGRADED, reason="batch 3 is lost")
    return index


def test_the_bytes_are_those_of_the_golden_file() -> None:
    assert index().save(POD, note="a note") == FILE.read_bytes()


def test_the_golden_file_is_read() -> None:
    other = empty_index()
    assert other.load(POD, FILE.read_bytes()) == "a note"
    other.check_integrity()
    assert known(other) == known(index())
    request = Request(model="m", token_ids=[*range(160, 176), 1])
    assert other.score(request).rows == index().score(request).rows


if __name__ == "__main__":
    FILE.write_bytes(index().save(POD, note="a note"))
