"""Events of tiers: what they say, and when."""

from collections import Counter

from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.events.wire import encode_batch
from kvbraid.hashing import ExtraKeys, Lora, MediaItem
from kvbraid.spec import GroupSpec, SpecKind, Topology
from kvbraid.transfer.keys import BlockKey
from kvbraid.transfer.offload import OffloadOptions

from tests.unit.transfer.offload.engine import FULL, STATE, WINDOW, Engine

PROMPT = range(10)


def stored(engine: Engine) -> list[BlockStored]:
    return [e for e in engine.manager.take_events() if isinstance(e, BlockStored)]


def test_a_store_says_its_tokens_and_what_comes_before() -> None:
    engine = Engine(topology=Topology(groups=(FULL,)), tiers=[("disk", 9)])
    request = engine.compute(PROMPT)
    hashes = [int.from_bytes(h[-8:], "big") for h in engine.cache.tiers.block_hashes(request)]
    events = stored(engine)
    assert [event.medium for event in events] == ["CPU", "STORAGE"]
    assert (events[0].parent_block_hash, list(events[0].block_hashes)) == (None, hashes)
    assert (events[0].token_ids, events[0].block_size) == (tuple(range(8)), 4)
    assert (events[0].group_idx, events[0].kv_cache_spec_kind) == (0, "full_attention")
    engine.compute(range(14))
    (event, _) = stored(engine)
    assert (event.parent_block_hash, event.token_ids) == (hashes[1], (8, 9, 10, 11))


def test_groups_with_blocks_of_several_sizes_say_what_comes_before() -> None:
    """Hashes are as far apart as the greatest common divisor says, if nothing else does."""
    long = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=8)
    engine = Engine(topology=Topology(groups=(long, WINDOW)))
    request = engine.compute(range(18))
    hashes = [int.from_bytes(h[-8:], "big") for h in engine.cache.tiers.block_hashes(request)]
    events = stored(engine)
    assert [list(event.block_hashes) for event in events] == [hashes[1::2], hashes]
    assert [event.parent_block_hash for event in events] == [None, None]


def test_a_window_says_how_long_it_is() -> None:
    engine = Engine(topology=Topology(groups=(WINDOW,)))
    engine.compute(PROMPT)
    assert {event.kv_cache_spec_sliding_window for event in stored(engine)} == {8}


def test_what_separates_blocks_is_repeated() -> None:
    engine = Engine(topology=Topology(groups=(FULL,)))
    extra = ExtraKeys(lora=Lora("adapter", "/adapter"), cache_salt="salt")
    engine.compute(PROMPT, extra=extra)
    (event,) = stored(engine)
    assert event.lora_name == "adapter"
    assert event.extra_keys == (("adapter", "salt"), ("adapter",))


def test_states_and_media_are_placeholders() -> None:
    engine = Engine(topology=Topology(groups=(FULL, STATE)))
    engine.compute(range(8))
    assert {e.block_size for e in stored(engine) if e.group_idx == 1} == {0}
    media = ExtraKeys(media=(MediaItem("picture", 1, 2),))
    engine.compute(range(20, 30), extra=media)
    assert {event.block_size for event in stored(engine)} == {0}


def test_blocks_of_a_request_that_nobody_knows_are_placeholders() -> None:
    engine = Engine(options=OffloadOptions(max_known_requests=1))
    request = engine.cache.add(PROMPT)
    engine.manager.lookup(request, PROMPT)
    engine.compute(range(20, 30))
    assert all(event.token_ids for event in stored(engine))
    engine.compute_known(request, PROMPT)
    assert {event.block_size for event in stored(engine)} == {0}


def test_a_tier_announces_at_the_start_what_it_has() -> None:
    engine = Engine(tiers=[("disk", 3)])
    engine.forgotten(PROMPT)
    records = list(engine.workers[0].records["disk"])
    assert len(records) == 3
    engine.start()
    had_news = [engine.manager.has_news]
    engine.manager.opened("disk", records)
    had_news.append(engine.manager.has_news)
    events = stored(engine)
    assert [*had_news, engine.manager.has_news] == [False, True, False]
    assert {event.block_size for event in events} == {0}
    assert sum(len(event.block_hashes) for event in events) == 3
    assert {event.medium for event in events} == {"STORAGE"}


def test_what_does_not_fit_at_the_start_is_dropped() -> None:
    engine = Engine(tiers=[("disk", 9)])
    engine.forgotten(PROMPT)
    engine.tiers = [("disk", 2)]
    engine.start()
    engine.manager.opened("disk", list(engine.workers[0].records["disk"]))
    engine.run()
    assert len(engine.workers[0].records["disk"]) == 2


def test_a_tier_of_several_ranks_has_what_all_of_them_have() -> None:
    engine = Engine(tiers=[("disk", 9)], num_ranks=2)
    keys = [BlockKey(bytes([n]) * 32, 0) for n in range(3)]
    for worker in engine.workers:
        worker.records["disk"] = {}
    engine.manager.opened("disk", keys, 0)
    assert engine.manager.take_events() == []
    engine.manager.opened("disk", keys[1:], 1)
    (event,) = engine.manager.take_events()
    assert isinstance(event, BlockStored)
    assert len(event.block_hashes) == 2


def test_events_replayed_give_what_tiers_have() -> None:
    engine = Engine(host_slots=9, tiers=[("disk", 20)])
    counts = Counter[tuple[str, int]]()
    for start in range(0, 200, 20):
        engine.forgotten(range(start, start + 14))
        for event in engine.manager.take_events():
            for block_hash in event.block_hashes:
                counts[event.medium, block_hash] += 1 if isinstance(event, BlockStored) else -1
    held = sum(engine.manager.num_blocks().values())
    assert (sum(counts.values()), min(counts.values())) == (held, 0)


def test_removals_of_a_group_in_a_row_are_one_event() -> None:
    engine = Engine(host_slots=4)
    engine.compute(PROMPT)
    short = {
        group: [
            int.from_bytes(key.block_hash[-8:], "big")
            for key in engine.manager.contents()["host"]
            if key.group == group
        ][::-1]  # What ends the longest prefix goes first.
        for group in (0, 1)
    }
    engine.manager.take_events()
    engine.evict()
    engine.compute(range(20, 30))
    removed = [e for e in engine.manager.take_events() if isinstance(e, BlockRemoved)]
    assert [event.medium for event in removed] == ["CPU", "CPU"]
    assert {event.group_idx: [*event.block_hashes] for event in removed} == short


def test_a_start_and_a_reset_with_many_records_are_told_in_parts() -> None:
    keys = [BlockKey(number.to_bytes(32, "big"), number % 2) for number in range(100_000)]
    keys.sort(key=lambda key: key.group)
    engine = Engine(tiers=[("disk", len(keys))])
    engine.manager.opened("disk", keys)
    hashes = [int.from_bytes(key.block_hash[-8:], "big") for key in keys]
    assert told_in_parts(engine) == {BlockStored: hashes}
    engine.manager.reset()
    assert told_in_parts(engine) == {BlockRemoved: hashes}


def told_in_parts(engine: Engine) -> dict[type, list[object]]:
    """Return the hashes of all events, and check that each batch is bounded."""
    told: dict[type, list[object]] = {}
    while engine.manager.has_news:
        events = engine.manager.take_events()
        assert 0 < sum(len(event.block_hashes) for event in events) <= 8_192
        assert len(encode_batch(events)) < 2 << 20
        for event in events:
            assert len(event.block_hashes) <= 1_024
            told.setdefault(type(event), []).extend(event.block_hashes)
    return told


def test_a_batch_has_a_limit_of_tokens_too() -> None:
    long = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=1 << 17)
    engine = Engine(topology=Topology(groups=(long,)), num_blocks=20)
    engine.compute(range(9 << 17))
    sizes = []
    while engine.manager.has_news:
        events = [e for e in engine.manager.take_events() if isinstance(e, BlockStored)]
        sizes.append(sum(len(event.token_ids) for event in events))
    assert sizes == [8 << 17, 1 << 17]


def test_what_tiers_have_is_told_again_in_parts_and_as_it_is_by_then() -> None:
    keys = [BlockKey(number.to_bytes(32, "big"), number % 2) for number in range(10_000)]
    engine = Engine(tiers=[("disk", len(keys))])
    engine.manager.opened("disk", keys)
    told_in_parts(engine)
    engine.manager.tell_again()
    first = engine.manager.take_events()
    assert sum(len(event.block_hashes) for event in first) <= 8_192
    engine.manager.vanished("disk", keys[-100:])
    later = told_in_parts(engine)
    removed = [h for e in first if isinstance(e, BlockRemoved) for h in e.block_hashes]
    stored_again = [h for e in first if isinstance(e, BlockStored) for h in e.block_hashes]
    assert len(stored_again) == 4_096
    assert len(stored_again + later[BlockStored]) == len(keys) - 100
    assert len(removed + later[BlockRemoved]) == len(keys)
