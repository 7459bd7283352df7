"""The index of one tier: which slot is taken next, and what it says that it has lost."""

from collections.abc import Sequence

from kvbraid.ids import BlockId
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload.index import TierIndex

from tests.unit.transfer.offload.engine import HYBRID

KEYS = tuple(BlockKey(bytes([number]) * 32, number % 2) for number in range(6))


def index_of(keys: Sequence[BlockKey], num_slots: int = 4) -> TierIndex:
    """An index that has blocks, the first of which was used longest ago."""
    index = TierIndex(HYBRID, "host", "CPU", num_slots)
    slots = [slot for slot, _ in index.take(len(keys))]
    for slot, key in zip(slots, keys, strict=True):
        index.add(slot, key, 4)
    index.pins.free(*slots)
    index.check_integrity()
    return index


def slots_of(index: TierIndex, *keys: BlockKey) -> list[BlockId | None]:
    return [index.slot_of(key) for key in keys]


def test_slots_are_taken_together_and_say_what_they_held() -> None:
    index = index_of(KEYS[:4])
    index.touch([KEYS[0]])
    slots = slots_of(index, KEYS[1], KEYS[2])
    assert index.take(2) == [(slots[0], KEYS[1]), (slots[1], KEYS[2])]
    assert index.lacks(KEYS) == {KEYS[1], KEYS[2], *KEYS[4:]}
    assert index.take_removed() == [KEYS[1], KEYS[2]]
    assert index.take_removed() == []
    index.check_integrity()


def test_fewer_slots_are_taken_if_the_others_are_pinned() -> None:
    index = index_of(KEYS[:4])
    pinned = [slot for slot in slots_of(index, *KEYS[:3]) if slot]
    index.pins.hold(*pinned)
    assert [evicted for _, evicted in index.take(3)] == [KEYS[3]]
    assert index.take(1) == []
    index.check_integrity()


def test_an_emptied_slot_is_taken_before_any_that_holds_something() -> None:
    index = index_of(KEYS[:4])
    (slot,) = slots_of(index, KEYS[3])
    assert index.forget(KEYS[3])
    assert not index.forget(KEYS[3])
    assert index.take_removed() == [KEYS[3]]
    assert index.take(1) == [(slot, None)]


def test_a_slot_that_is_emptied_while_it_is_pinned_stays_so() -> None:
    index = index_of(KEYS[:4])
    slots = [slot for slot in slots_of(index, KEYS[2]) if slot]
    index.pins.hold(*slots)
    index.forget(KEYS[2])
    index.check_integrity()
    assert index.take(1) == [(slots_of(index_of(KEYS[:4]), KEYS[0])[0], KEYS[0])]
    index.pins.free(*slots)
    assert index.take(1) == [(slots[0], None)]


def test_what_was_touched_is_taken_last_in_the_order_of_its_use() -> None:
    index = index_of(KEYS[:4])
    index.touch([KEYS[1], KEYS[5], KEYS[0]])
    assert [evicted for _, evicted in index.take(4)] == [KEYS[2], KEYS[3], KEYS[1], KEYS[0]]
