"""Our manager answers a scheduler as vLLM's own does, call by call, on scripted sequences."""

from dataclasses import replace
from typing import Any

import pytest

from tests.vllm.drop_in_pair import (
    LAYOUTS,
    Pair,
    chunk,
    config_of,
    full,
    prefill,
    states,
    tokens,
    window,
)

if True:  # Only after `drop_in_pair` has imported vLLM with its warnings off.
    import torch
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange


@pytest.fixture(params=LAYOUTS, ids=str)
def pair(request: pytest.FixtureRequest) -> Pair:
    return LAYOUTS[request.param]()


def test_requests_share_prefixes_and_evict_each_other(pair: Pair) -> None:
    documents = [tokens(seed, 200) for seed in range(3)]
    num_hits = 0
    for turn in range(24):
        document = documents[turn * 7 % 3]
        prompt = document[: 64 + turn * 11 % 130] + tokens(100 + turn, 10 + turn % 20)
        request = pair.request(prompt)
        hit = prefill(pair, request)
        assert hit is not None
        num_hits += hit > 0
        pair.decode(request, 20)
        pair.compare_blocks()
        pair.both("take_new_block_ids")
        pair.finish([request])
    assert num_hits > 3
    assert pair.num_events > 50


def test_two_run_together_and_one_is_preempted_and_comes_back(pair: Pair) -> None:
    first, second = pair.request(tokens(1, 150)), pair.request(tokens(1, 100) + tokens(2, 60))
    prefill(pair, first)
    prefill(pair, second)
    pair.both("get_blocks", first.request_id)
    pair.both("get_block_ids", second.request_id)
    pair.preempt(second)
    pair.decode(first, 5)
    prefill(pair, second)
    pair.both("get_block_ids_for_computed_tokens", second.request_id, 70)
    pair.finish([first, second])
    assert pair.both("reset_prefix_cache")
    pair.both("make_prefix_cache_stats")


def test_blocks_can_be_handed_over_and_freed_later(pair: Pair) -> None:
    request = pair.request(tokens(1, 150))
    prefill(pair, request)
    handed = [m.pop_blocks_for_free(request) for m in (pair.theirs, pair.ours)]
    assert [b.block_id for b in handed[1]] == [b.block_id for b in handed[0]]
    pair.compare()
    assert not pair.both("reset_prefix_cache")
    for manager, blocks in zip((pair.theirs, pair.ours), handed, strict=True):
        manager.block_pool.free_blocks(reversed(blocks))
    pair.compare()
    assert prefill(pair, pair.request(tokens(1, 150)))


def test_evicted_blocks_are_not_found_again(pair: Pair) -> None:
    request = pair.request(tokens(1, 150))
    prefill(pair, request)
    pair.both("evict_blocks", {block for ids in pair.ours.get_block_ids("1") for block in ids})
    pair.compare_blocks()
    pair.finish([request])
    assert prefill(pair, pair.request(tokens(1, 150))) == 0


def test_blocks_can_be_taken_held_and_found_beside_all_requests(pair: Pair) -> None:
    request = pair.request(tokens(1, 150))
    prefill(pair, request)
    pools = [manager.block_pool for manager in (pair.theirs, pair.ours)]
    taken = [pool.get_new_blocks(3) for pool in pools]
    for name in ("touch", "free_blocks", "free_blocks"):
        for pool, blocks in zip(pools, taken, strict=True):
            getattr(pool, name)(blocks)
        pair.compare()
        pair.compare_blocks()
    pair.finish([request])
    unit = pair.ours.cache.config.topology.hash_block_size or 16
    groups = pair.ours.cache.config.topology.groups
    num_found = 0
    for end in range(unit, 150, unit):
        for group in range(len(groups)):
            digest = request.block_hashes[end // unit - 1]
            theirs, ours = (pool.get_cached_block(digest, [group]) for pool in pools)
            assert [b.block_id for b in ours or ()] == [b.block_id for b in theirs or ()]
            num_found += ours is not None
    assert num_found
    held = set(pair.ours.cache.debug.cached().popitem()[1])
    for pool in pools:
        pool.evict_blocks(held)
    pair.compare()
    pair.compare_blocks()


@pytest.mark.parametrize("name", ["states", "states inside blocks"])
def test_states_to_store_are_told_with_their_blocks(name: str) -> None:
    pair = LAYOUTS[name]()
    prompt = tokens(1, 190)
    first, second = pair.request(prompt), pair.request([*prompt, *tokens(2, 40)])
    prefill(pair, first)
    pair.decode(first, 70)
    prefill(pair, second)
    seen = pair.num_states
    assert seen > 1
    pair.finish([first])
    # It ends where its prompt's last state is, before that is copied.
    whole = pair.request(tokens(5, 177))
    pair.both("new_step_starts")
    pair.start(whole, lambda _start, _end: 176)
    pair.finish([second, whole])
    assert pair.num_states > seen


def test_blocks_that_a_running_request_still_needs_are_counted(pair: Pair) -> None:
    request = pair.request(tokens(1, 150))
    prefill(pair, request)
    for num_tokens, num_drafts in ((150, 0), (151, 0), (151, 3), (400, 0), (700, 5)):
        for cap in (False, True):
            counts = [
                manager.coordinator.get_num_blocks_to_allocate(
                    request_id=request.request_id,
                    num_tokens=num_tokens + num_drafts,
                    new_computed_blocks=manager.empty_kv_cache_blocks.blocks,
                    num_encoder_tokens=0,
                    total_computed_tokens=request.num_computed_tokens,
                    num_local_computed_tokens=request.num_computed_tokens,
                    num_tokens_main_model=num_tokens,
                    apply_admission_cap=cap,
                )
                for manager in (pair.theirs, pair.ours)
            ]
            assert counts[0] == counts[1], (num_tokens, num_drafts, cap)
    pair.finish([request])


def test_a_request_that_does_not_fit_waits(pair: Pair) -> None:
    running = pair.request(tokens(1, 400))
    prefill(pair, running)
    assert prefill(pair, pair.request(tokens(2, 1_500))) is None


def test_lookahead_and_tokens_in_flight_keep_blocks(pair: Pair) -> None:
    request = pair.request(tokens(1, 100))
    prefill(pair, request)
    request.num_in_flight_tokens = 1
    for _ in range(30):
        assert pair.step(request, 1, num_lookahead_tokens=3)
        request.append_output_token_ids(7)
        pair.both("cache_blocks", request, request.num_computed_tokens - 1)
    pair.both("remove_skipped_blocks", request.request_id, 128, 100)
    pair.finish([request])


def test_copies_are_made_for_a_hit_inside_a_block() -> None:
    pair = LAYOUTS["states inside blocks"]()
    prompt = tokens(1, 190)
    first, again, longer = [pair.request(p) for p in (prompt, prompt, [*prompt, *tokens(3, 30)])]
    assert [prefill(pair, request) for request in (first, again, longer)] == [0, 176, 176]
    pair.decode(again, 80)
    pair.finish([first, again, longer])
    assert pair.num_copies > 2


@pytest.mark.parametrize(
    ("every", "expected"),
    [(1, [0, 192, 192, 320, 0, 80, 416]), (32, [0, 192, 192, 320, 0, 0, 416])],
)
def test_states_are_saved_inside_the_chunk_that_ends_a_prompt(
    every: int, expected: list[int]
) -> None:
    saving = states(64, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=every)
    pair = Pair(config_of(saving, full(64), num_blocks=30), alignment=64, unit=16)

    def at_once(start: int, end: int) -> int:
        return end - start

    hits = []
    for seed, length in ((1, 200), (1, 200), (1, 330), (1, 330), (2, 90), (2, 420), (2, 420)):
        pair.both("new_step_starts")
        request = pair.request(tokens(seed, length))
        hits.append(pair.start(request, at_once))
        pair.decode(request, 70)
        pair.compare_blocks()
        pair.finish([request])
    assert hits == expected
    assert pair.num_copies > 0


def test_loaded_tokens_are_found_once_the_load_is_done(pair: Pair) -> None:
    request = pair.request(tokens(1, 150))
    pair.both("new_step_starts")
    for manager in (pair.theirs, pair.ours):
        blocks, hit, _ = manager.get_computed_blocks(request)
        assert hit == 0
        assert manager.allocate_slots(
            request,
            0,
            new_computed_blocks=blocks,
            num_external_computed_tokens=128,
            delay_cache_blocks=True,
            reserved_blocks=2,
        )
    pair.compare()
    request.num_computed_tokens = 128
    pair.both("cache_blocks", request, 128)
    while request.num_computed_tokens < request.num_tokens:
        assert pair.step(request, chunk(request.num_computed_tokens, request.num_tokens))
    pair.finish([request])
    assert prefill(pair, pair.request(tokens(1, 150)))


@pytest.mark.parametrize("skipped", [(), (0,), (0, 1)])
def test_blocks_are_zeroed_unless_a_load_fills_them_or_when_it_failed(
    skipped: tuple[int, ...],
) -> None:
    narrow = replace(window(40), dtype=torch.bfloat16)
    pair = Pair(config_of(full(), narrow, num_blocks=60), alignment=16, unit=16)
    request = pair.request(tokens(1, 150))
    pair.both("new_step_starts")
    more: dict[str, Any] = {"num_external_computed_tokens": 128, "delay_cache_blocks": True}
    pair.both("allocate_slots", request, 0, skip_zeroing_group_ids=skipped, **more)
    listed = pair.both("take_new_block_ids")
    tables = pair.ours.get_block_ids(request.request_id)
    filled = [[block for block in ids if block] for ids in tables]
    assert listed == [b for g, ids in enumerate(filled) for b in ids if g not in skipped]
    request.num_computed_tokens = 96
    pair.both("cache_blocks", request, 96)
    pair.both("record_blocks_for_zeroing", request.request_id, 96)
    assert pair.both("take_new_block_ids") == [*tables[0][6:], *tables[1][6:]]
    pair.finish([request])


def test_a_load_covers_the_end_of_a_hit_inside_a_block() -> None:
    pair = LAYOUTS["states inside blocks"]()
    prompt = tokens(1, 190)
    first, request = pair.request(prompt), pair.request([*prompt, *tokens(3, 100)])
    pair.both("new_step_starts")
    assert pair.start(first, lambda _start, _end: 176) == 0  # It leaves no state at 128.
    assert pair.step(first, 14)
    pair.both("new_step_starts")
    for manager in (pair.theirs, pair.ours):
        blocks, hit, _ = manager.get_computed_blocks(request)
        assert hit == 176
        assert manager.allocate_slots(
            request,
            0,
            num_new_computed_tokens=128,
            new_computed_blocks=manager.truncate_computed_blocks(blocks, 128),
            num_external_computed_tokens=128,
            delay_cache_blocks=True,
            skip_zeroing_group_ids=(0, 1),
        )
    pair.compare()
    pair.compare_blocks()
    pair.both("get_block_ids", request.request_id)
    assert pair.both("take_new_block_ids") == []
    request.num_computed_tokens = 256
    pair.both("cache_blocks", request, 256)
    while request.num_computed_tokens < request.num_tokens:
        assert pair.step(request, chunk(request.num_computed_tokens, request.num_tokens))
    pair.finish([first, request])


@pytest.mark.parametrize("num_blocks", [5, 6, 7, 8])
def test_a_load_is_admitted_by_the_engines_own_count(num_blocks: int) -> None:
    # It leaves the loaded state out when it counts (5 blocks), and takes it all the same (6).
    pair = Pair(
        config_of(states(), full(), num_blocks=num_blocks), alignment=16, unit=16, watermark=0.25
    )
    request = pair.request(tokens(1, 64))
    pair.both("new_step_starts")
    more: dict[str, Any] = {"num_external_computed_tokens": 48}
    if num_blocks == 6:  # As many as it counts, fewer than it takes: it fails.
        with pytest.raises(ValueError, match="Cannot get"):
            pair.theirs.allocate_slots(request, 16, has_scheduled_reqs=False, **more)
        assert pair.ours.allocate_slots(request, 16, has_scheduled_reqs=False, **more) is None
        return
    fits = pair.both("allocate_slots", request, 16, **more) is not None
    assert fits == (num_blocks >= 7)


def test_events_tell_what_separates_caches() -> None:
    pair = LAYOUTS["unequal blocks"]()
    media = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=name,
            mm_position=PlaceholderRange(offset=offset, length=40),
        )
        for name, offset in (("cat", 10), ("dog", 70))
    ]
    for more in (
        {"cache_salt": "tenant"},
        {"lora_request": LoRARequest("poet", 3, "adapters/poet")},
        {"mm_features": media, "session_id": "s"},
        {"mm_features": media, "cache_salt": "t", "lora_request": LoRARequest("a", 1, "b")},
    ):
        request = pair.request(tokens(1, 150), **more)
        assert prefill(pair, request) == 0
        pair.finish([request])


def test_a_full_report_tells_reuse_again() -> None:
    pair = LAYOUTS["full and window"]()
    first = pair.request(tokens(1, 150))
    prefill(pair, first)
    pair.finish([first])
    seen = pair.num_events
    again = pair.request(tokens(1, 150), extra_args={"kv_cache_report_mode": "full"})
    assert prefill(pair, again)
    assert pair.num_events >= seen + 2  # One of each group.


def test_a_session_goes_on_with_its_next_input(pair: Pair) -> None:
    request = pair.request(tokens(1, 100), resumable=True)
    prefill(pair, request)
    pair.decode(request, 20)
    request.append_output_token_ids(9)
    more = tokens(2, 70)
    # As the scheduler goes on with a session: what was computed is the prompt now.
    computed = request.num_computed_tokens
    del request._all_token_ids[computed:]
    del request.block_hashes[computed // 16 :]
    request._output_token_ids.clear()
    request._all_token_ids.extend(more)
    request.prompt_token_ids = list(request._all_token_ids)
    request.update_block_hashes()
    request.num_prompt_tokens = request.num_tokens
    assert pair.step(request, 70)
    pair.decode(request, 20)
    pair.compare_blocks()
    pair.finish([request])
    prefill(pair, pair.request(request.prompt_token_ids))


@pytest.mark.parametrize("mode", ["none", "align"])
def test_without_reuse_blocks_are_only_handed_out(mode: str) -> None:
    groups = (states(4_096, mode), full())
    pair = Pair(
        config_of(*groups, num_blocks=40), alignment=4_096, unit=4_096, enable_caching=False
    )
    request = pair.request(tokens(1, 100))
    assert prefill(pair, request) == 0
    pair.decode(request, 30)
    pair.finish([request])


def test_look_ups_are_counted() -> None:
    pair = LAYOUTS["full"]()
    for _ in range(2):
        request = pair.request(tokens(1, 100))
        hit = prefill(pair, request)
        pair.both("record_prefix_cache_stats", request, hit)
        pair.finish([request])
    stats = pair.both("make_prefix_cache_stats")
    assert (stats.requests, stats.queries, stats.hits) == (2, 200, 96)
