"""Stores of a pod with one group of full attention, and a wait until they have come in."""

from collections.abc import Callable
from time import monotonic, sleep

from kvbraid.events import BlockStored, encode_batch
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.service.recording_sink import TIMEOUT_S

FULL = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=4),))


def stored(first: int, blocks: int) -> bytes:
    """So many blocks of a prompt of its own."""
    event = BlockStored(
        block_hashes=tuple(range(first, first + blocks)),
        parent_block_hash=None,
        token_ids=tuple(range(4 * first, 4 * (first + blocks))),
        block_size=4,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return encode_batch([event])


def wait_until(is_so: Callable[[], bool]) -> None:
    end = monotonic() + TIMEOUT_S
    while not is_so():
        assert monotonic() < end
        sleep(0.01)
