"""Recorded lives of real engines over our cache and its model: every message, evictions included.

Whole captures are used if they are beside the repository, otherwise the first operations of some.
"""

import os
from dataclasses import dataclass
from typing import Final

import pytest
from kvbraid.cache import Work
from kvbraid.events import encode_batch
from kvbraid.events.model import Event

from tests.captures import LIVES, folder_of
from tests.contract.recorded_life import assert_is_lived_again
from tests.reference.cache_model import CacheModel
from tests.unit.cache.caches import FreesAtOnce

MOST_OPERATIONS: Final = int(os.environ.get("KVBRAID_MAX_OPERATIONS", "200"))
"""Of a life that the model, which tries every length, lives again."""


@dataclass(frozen=True)
class Said:
    """A step's events of the model, with the bytes that an engine writes."""

    events: tuple[Event, ...]

    def __len__(self) -> int:
        return len(self.events)

    def to_bytes(self, ts: float, dp_rank: int | None) -> bytes:
        return encode_batch(self.events, ts=ts, dp_rank=dp_rank)


class Model(CacheModel):
    """The model, with events as the cache has them; copies as in `FreesAtOnce`."""

    def take_work(self, *, caller_frees: bool = False) -> Work:
        work = super().take_work(caller_frees=True)
        if not caller_frees:
            self.pool.free([block for pair in work.copies for block in pair])
        return work

    def take_events(self) -> Said:  # type: ignore[override]
        return Said(super().take_events())


@pytest.mark.parametrize("name", LIVES)
def test_every_message_of_a_recorded_life_is_ours(name: str) -> None:
    assert assert_is_lived_again(folder_of(name), FreesAtOnce) > 0


@pytest.mark.parametrize("name", LIVES)
def test_every_message_of_a_recorded_life_is_the_models(name: str) -> None:
    assert assert_is_lived_again(folder_of(name), Model, most=MOST_OPERATIONS) > 0
