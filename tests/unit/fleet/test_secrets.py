"""Without seeing an index's secret, nobody can choose prompts or hashes that collide in it."""

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.events import BlockStored, encode_batch
from kvbraid.fleet.index import SECRET_BYTES, FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import GroupSpec, SpecKind, Topology

FULL = Topology(groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),))
VICTIM = tuple(range(1000, 1016))
DELTAS = (37, 41, -11, 63, 40, 121, -82, -20)
"""Differences of the last eight tokens that changed no key while the base was in the source."""
TWIN = VICTIM[:8] + tuple(token + d for token, d in zip(VICTIM[8:], DELTAS, strict=True))


def index_with(secret: bytes | None) -> FleetIndex:
    index = FleetIndex(IndexOptions(secret=secret))
    for pod, prompt, block_hash in (("holds", VICTIM, 1), ("twin", TWIN, 2)):
        index.register(PodId(pod), model="m", topology=FULL)
        store = BlockStored(
            block_hashes=(block_hash,), parent_block_hash=None, token_ids=prompt, block_size=16
        )
        index.apply(PodId(pod), encode_batch([store]))
    return index


@pytest.mark.parametrize("secret", [None, bytes(SECRET_BYTES), b"\xff" * SECRET_BYTES])
def test_a_prompt_that_was_made_to_collide_is_another_prompt(secret: bytes | None) -> None:
    index = index_with(secret)
    rows = index.score(Request(model="m", token_ids=(*VICTIM, 7))).rows
    assert [(row.pod, row.lower, row.upper) for row in rows] == [("holds", 16, 16), ("twin", 0, 0)]


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidValueError, match=f"secret has {length} bytes; it must have 32"):
        IndexOptions(secret=bytes(length))


def test_a_secret_is_not_shown() -> None:
    assert "\\x07" not in repr(IndexOptions(secret=b"\x07" * SECRET_BYTES))
