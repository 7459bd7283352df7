"""What a caller can do wrong: it gets a named error, and the cache is as it was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from kvbraid.cache import CacheManager, GroupOptions, Interval, Need, Recovery
from kvbraid.errors import InvalidValueError, KvbraidError, NotHeldError, UnknownError
from kvbraid.ids import BlockId
from kvbraid.spec import GroupSpec, SpecKind

from tests.unit.cache.caches import chunked, compute, config, full, leave, mamba, picture, window

TOKENS = list(range(40))
NOBODY = 12_345
DIGEST = b"d" * 32
ONE, GONE, NEGATIVE = BlockId(1), BlockId(64), BlockId(-1)


@dataclass
class Busy:
    """A cache that served somebody and serves two: one runs, one was only added."""

    cache: CacheManager
    runs: int
    waits: int

    @property
    def used(self) -> BlockId:
        return self.cache.blocks(self.runs)[0][0]

    def need(self, **fields: Any) -> Need:  # noqa: ANN401 - fields of the need
        return Need(**{"request": self.runs, "num_new_tokens": 1, **fields})

    def recover(self, *, forget: Sequence[BlockId] = (), **parts: Any) -> None:  # noqa: ANN401 - fields of the recovery
        """Recover; before what is wrong, a block is to be forgotten that could be."""
        self.cache.recover(Recovery(forget=[self.used, *forget], **parts))


@pytest.fixture
def busy() -> Busy:
    zeroed = (GroupOptions(needs_zeroing=True), GroupOptions(), GroupOptions())
    cache = CacheManager(config(full(4), window(8, 4), mamba(4), group_options=zeroed))
    leave(cache, TOKENS, 4)
    cache.take_work()
    runs, waits = cache.add([*TOKENS[:10], 77, 78]), cache.add(TOKENS)
    compute(cache, runs, [10], hit=8)
    cache.take_work()
    return Busy(cache, runs, waits)


Call = Callable[[Busy], object]
UNKNOWN: dict[str, Call] = {
    "match": lambda b: b.cache.match(NOBODY),
    "extend": lambda b: b.cache.extend(NOBODY, [1]),
    "commit": lambda b: b.cache.commit(NOBODY, 4),
    "free_skipped": lambda b: b.cache.free_skipped(NOBODY, 4),
    "roll_back": lambda b: b.cache.roll_back(NOBODY, 0),
    "rewind": lambda b: b.cache.tables.rewind(NOBODY, 4),
    "resume_points, one of two": lambda b: b.cache.tables.resume_points([b.runs, NOBODY], []),
    "truncate": lambda b: b.cache.truncate(NOBODY, 4),
    "blocks": lambda b: b.cache.blocks(NOBODY),
    "pop_blocks": lambda b: b.cache.pop_blocks(NOBODY),
    "common prefix": lambda b: b.cache.num_common_prefix_blocks([b.runs, NOBODY]),
    "release": lambda b: b.cache.release([NOBODY]),
    "release, one of two": lambda b: b.cache.release([b.runs, NOBODY]),
    "preempt": lambda b: b.cache.preempt([b.runs, NOBODY]),
    "decode": lambda b: b.cache.decode([b.runs, NOBODY], [1, 2]),
    "allocate": lambda b: b.cache.allocate([b.need(), b.need(request=NOBODY)]),
    "blocks_needed": lambda b: b.cache.blocks_needed(b.need(request=NOBODY)),
    "cursors": lambda b: b.cache.debug.cursors(NOBODY),
    "record_blocks_for_zeroing": lambda b: b.cache.record_blocks_for_zeroing(NOBODY, 0),
    "take_state_tails": lambda b: b.cache.take_state_tails(NOBODY),
    "recover, to commit": lambda b: b.recover(commit={b.runs: 4, NOBODY: 4}),
    "recover, to rewind": lambda b: b.recover(rewind={NOBODY: 4}),
    "recover, to preempt": lambda b: b.recover(preempt=[b.runs, NOBODY]),
    "recover, to zero": lambda b: b.recover(zero={NOBODY: 4}),
}
WRONG: dict[str, Call] = {
    "release twice in one call": lambda b: b.cache.release([b.runs, b.runs]),
    "preempt twice in one call": lambda b: b.cache.preempt([b.runs, b.runs]),
    "allocate twice in one call": lambda b: b.cache.allocate([b.need(), b.need()]),
    "adopt a hit twice in one call": lambda b: b.cache.allocate(
        [b.need(request=b.waits, num_hit_tokens=8)] * 2
    ),
    "commit of more than is computed": lambda b: b.cache.commit(b.runs, 11),
    "commit of a negative count": lambda b: b.cache.commit(b.runs, -1),
    "roll back forwards": lambda b: b.cache.roll_back(b.runs, 11),
    "roll back below zero": lambda b: b.cache.roll_back(b.runs, -1),
    "rewind forwards": lambda b: b.cache.tables.rewind(b.runs, 11),
    "rewind below zero": lambda b: b.cache.tables.rewind(b.runs, -1),
    "rewind a state": lambda b: b.cache.tables.rewind(b.runs, 8),
    "requests of a block that does not exist": lambda b: b.cache.tables.requests_of([ONE, GONE]),
    "requests of a negative block": lambda b: b.cache.tables.requests_of([NEGATIVE]),
    "resume without a block that does not exist": lambda b: b.cache.tables.resume_points(
        [b.runs], [GONE]
    ),
    "resume without a negative block": lambda b: b.cache.tables.resume_points(
        [b.runs], [NEGATIVE]
    ),
    "one limit for two requests": lambda b: b.cache.tables.resume_points(
        [b.runs, b.waits], [], limits=[4]
    ),
    "a limit below zero": lambda b: b.cache.tables.resume_points([b.runs], [], limits=[-1]),
    "fewer refusals than none": lambda b: b.cache.tables.resume_points(
        [b.runs], [], max_refusals=-1
    ),
    "truncate to more than there is": lambda b: b.cache.truncate(b.runs, 13),
    "truncate into what others find": lambda b: b.cache.truncate(b.runs, 3),
    "truncate below zero": lambda b: b.cache.truncate(b.runs, -1),
    "free skipped below zero": lambda b: b.cache.free_skipped(b.runs, -1),
    "extend by a negative token": lambda b: b.cache.extend(b.runs, [3, -1]),
    "extend by too many hashes": lambda b: b.cache.extend(b.runs, [1], block_hashes=[b"x" * 32]),
    "add nothing": lambda b: b.cache.add([]),
    "add a negative token": lambda b: b.cache.add([1, -1]),
    "add a longer prompt than tokens": lambda b: b.cache.add([1], num_prompt_tokens=2),
    "add no prompt": lambda b: b.cache.add([1], num_prompt_tokens=0),
    "add a negative prompt": lambda b: b.cache.add([1], num_prompt_tokens=-1),
    "add too many hashes": lambda b: b.cache.add([1, 2, 3], block_hashes=[b"x" * 32]),
    "add a short hash": lambda b: b.cache.add([1, 2, 3, 4], block_hashes=[b"x"]),
    "decode without tokens": lambda b: b.cache.decode([b.runs], []),
    "decode a negative token": lambda b: b.cache.decode([b.runs], [-1]),
    "nothing to do": lambda b: b.cache.allocate([b.need(num_new_tokens=0)]),
    "nothing to do, second": lambda b: b.cache.allocate(
        [b.need(), b.need(request=b.waits, num_new_tokens=0)]
    ),
    "a hit while it runs": lambda b: b.cache.allocate([b.need(num_hit_tokens=4)]),
    "a hit that nobody holds": lambda b: b.cache.allocate(
        [b.need(request=b.waits, num_hit_tokens=38)]
    ),
    "a hit beyond the tokens": lambda b: b.cache.allocate(
        [b.need(request=b.waits, num_hit_tokens=400)]
    ),
    "negative reserve": lambda b: b.cache.allocate([b.need()], reserved_blocks=-1),
    "free a block that does not exist": lambda b: b.cache.pool.free([GONE]),
    "free a negative block": lambda b: b.cache.pool.free([NEGATIVE]),
    "free a free block": lambda b: b.cache.pool.free([b.cache.debug.free_queue()[0]]),
    "free a block too often": lambda b: b.cache.pool.free([b.used] * 9),
    "free a block of a request": lambda b: b.cache.pool.free([b.used]),
    "load for a group that does not exist": lambda b: b.cache.allocate(
        [b.need(), b.need(request=b.waits, num_external_tokens=8, loading_groups=(0, 3))]
    ),
    "load for a negative group": lambda b: b.cache.allocate([b.need(loading_groups=(-1,))]),
    "blocks needed to load for a group that does not exist": lambda b: b.cache.blocks_needed(
        b.need(loading_groups=(3,))
    ),
    "zero again from inside a block": lambda b: b.cache.record_blocks_for_zeroing(b.runs, 11),
    "zero again what others find": lambda b: b.cache.record_blocks_for_zeroing(b.runs, 0),
    "zero again below zero": lambda b: b.cache.record_blocks_for_zeroing(b.runs, -1),
    "recover, and preempt twice": lambda b: b.recover(preempt=[b.runs, b.runs]),
    "recover, and preempt what is rewound": lambda b: b.recover(
        rewind={b.waits: 0}, preempt=[b.runs, b.waits]
    ),
    "recover, and rewind a state": lambda b: b.recover(rewind={b.runs: 8}),
    "recover, and rewind forwards": lambda b: b.recover(rewind={b.waits: 1}),
    "recover, and commit more than is computed": lambda b: b.recover(commit={b.runs: 11}),
    "recover, and zero what others find": lambda b: b.recover(zero={b.runs: 0}),
    "recover, and forget a block that does not exist": lambda b: b.recover(forget=[GONE]),
    "recover, and hold a block that does not exist": lambda b: b.recover(hold=[b.used, GONE]),
    "recover, and hold a block that nobody has": lambda b: b.recover(
        hold=[b.used, b.cache.debug.free_queue()[0]], preempt=[b.runs]
    ),
    "recover, and hold a negative block": lambda b: b.recover(hold=[NEGATIVE]),
    "recover with a negative boundary": lambda b: b.recover(rewind={b.runs: -1}),
    "forget a block that does not exist": lambda b: b.cache.pool.forget([b.used, GONE]),
    "forget a negative block": lambda b: b.cache.pool.forget([NEGATIVE]),
    "take more blocks than are free": lambda b: b.cache.pool.take(64),
    "take a negative number of blocks": lambda b: b.cache.pool.take(-1),
    "hold a block that does not exist": lambda b: b.cache.pool.hold([b.used, GONE]),
    "hold a negative block": lambda b: b.cache.pool.hold([NEGATIVE]),
    "register the null block": lambda b: b.cache.pool.register(BlockId(0), 0, DIGEST, 4),
    "register a block that does not exist": lambda b: b.cache.pool.register(GONE, 0, DIGEST, 4),
    "register in a group that does not exist": lambda b: b.cache.pool.register(
        b.used, 3, DIGEST, 4
    ),
    "register a short hash": lambda b: b.cache.pool.register(b.used, 0, b"x", 4),
    "register for a negative count": lambda b: b.cache.pool.register(b.used, 0, DIGEST, -1),
    "unregister in a group that does not exist": lambda b: b.cache.pool.unregister(ONE, 3, DIGEST),
    "unregister a short hash": lambda b: b.cache.pool.unregister(ONE, 0, b"x"),
    "holders in a group that does not exist": lambda b: b.cache.pool.holders(-1, DIGEST),
    "holders of a short hash": lambda b: b.cache.pool.holders(0, b"x"),
    "kept blocks of a group that does not exist": lambda b: b.cache.debug.kept_blocks(
        3, range(2), []
    ),
    "blocks needed for a hit that nobody holds": lambda b: b.cache.blocks_needed(
        b.need(request=b.waits, num_hit_tokens=38)
    ),
    "blocks needed for a negative count": lambda b: b.cache.blocks_needed(
        b.need(num_new_tokens=-1)
    ),
}
for name in (
    "num_new_tokens",
    "num_hit_tokens",
    "junction",
    "num_external_tokens",
    "num_lookahead_tokens",
    "num_in_flight_tokens",
    "num_encoder_tokens",
    "num_computed_tokens",
):
    WRONG[f"negative {name}"] = lambda b, name=name: b.cache.allocate(  # type: ignore[misc]
        [b.need(**{name: -1})]
    )


def unchanged(busy: Busy, call: Call, error: type[KvbraidError]) -> str:
    requests = [busy.runs, busy.waits]
    before = picture(busy.cache, requests)
    busy.cache.take_events()
    with pytest.raises(error) as caught:
        call(busy)
    assert picture(busy.cache, requests) == before
    assert len(busy.cache.take_events()) == 0
    assert busy.cache.take_work() == ([], [], [])
    busy.cache.debug.check_integrity()
    busy.cache.release(requests)
    assert busy.cache.reset()
    return str(caught.value)


@pytest.mark.parametrize("call", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_request_is_named_and_nothing_changes(busy: Busy, call: Call) -> None:
    assert str(NOBODY) in unchanged(busy, call, UnknownError)


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_value_is_refused_and_nothing_changes(busy: Busy, call: Call) -> None:
    unchanged(busy, call, InvalidValueError)


def test_a_hit_that_is_gone_says_so_and_nothing_changes(busy: Busy) -> None:
    """The caller tells it from a mistake of its own by the class: it matches again."""
    hit = busy.cache.match(busy.waits).num_tokens
    assert hit == 36
    holders = [copy for copies in busy.cache.debug.cached().values() for copy in copies]
    busy.cache.pool.forget(holders)
    need = busy.need(request=busy.waits, num_hit_tokens=hit)
    assert issubclass(NotHeldError, InvalidValueError)
    message = unchanged(busy, lambda b: b.cache.allocate([need]), NotHeldError)
    assert message.endswith(
        f"group 0 does not hold block 0 of the hit of {hit} tokens; match again"
    )


def test_a_request_is_released_once(busy: Busy) -> None:
    busy.cache.release([busy.runs])
    for call in (busy.cache.match, busy.cache.pop_blocks, busy.cache.blocks):
        with pytest.raises(UnknownError):
            call(busy.runs)
    with pytest.raises(UnknownError):
        busy.cache.release([busy.runs])
    assert busy.cache.blocks(busy.waits) == [[], [], []]


def test_popped_blocks_are_freed_once(busy: Busy) -> None:
    blocks = busy.cache.pop_blocks(busy.runs)
    with pytest.raises(UnknownError):
        busy.cache.release([busy.runs])
    busy.cache.pool.free(blocks[::-1])
    with pytest.raises(InvalidValueError):
        busy.cache.pool.free([block for block in blocks if block])
    busy.cache.debug.check_integrity()


def test_what_does_not_fit_is_a_result() -> None:
    cache = CacheManager(config(full(4), num_blocks=4))
    first, second = cache.add(TOKENS[:8]), cache.add(TOKENS[:9])
    needs = [Need(request=first, num_new_tokens=8), Need(request=second, num_new_tokens=9)]
    got = cache.allocate(needs)
    assert got.num_fit == 1
    assert cache.blocks(second) == [[]]
    assert cache.pool.num_free == 1


# ---- caches that cannot work -------------------------------------------------------------

RING = GroupOptions(is_ring=True)
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a block of no whole hash blocks": (
        lambda: config(full(4), window(8, 6), topology={"hash_block_size": 4}),
        "group 1",
    ),
    "an alignment of no whole blocks": (
        lambda: config(full(4), window(8, 6), topology={"alignment": 6}),
        "group 0",
    ),
    "a chunk group without its chunk": (
        lambda: config(full(4), replace(chunked(8, 4), chunk=None)),
        "group 1",
    ),
    "a window group without its window": (
        lambda: config(full(4), GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=4)),
        "window",
    ),
    "an unknown kind": (
        lambda: config(full(4), GroupSpec(kind=SpecKind.UNKNOWN, block_size=4)),
        "group 1",
    ),
    "a cacheable ring": (
        lambda: config(full(4), full(4), group_options=(GroupOptions(), RING)),
        "group 1",
    ),
    "drafts without a state": (
        lambda: config(full(4), group_options=(GroupOptions(num_speculative_blocks=1),)),
        "group 0",
    ),
    "retained tokens without a window": (
        lambda: config(full(4), group_options=(GroupOptions(extra_retained_tokens=1),)),
        "group 0",
    ),
    "checkpoints of no state": (
        lambda: config(full(4), group_options=(GroupOptions(checkpoint_alignment=1),)),
        "group 0",
    ),
    "checkpoints at every zeroth token": (
        lambda: config(mamba(4), group_options=(GroupOptions(checkpoint_alignment=0),)),
        "group 0.* at least one",
    ),
    "options of other groups": (
        lambda: config(full(4), group_options=(GroupOptions(), GroupOptions())),
        "2 group_options",
    ),
    "no block but the null block": (lambda: config(full(4), num_blocks=1), "num_blocks"),
    "an interval of no whole units": (
        lambda: config(full(4), window(8, 4), retention=Interval(6)),
        "6",
    ),
    "a negative interval": (
        lambda: config(full(4), window(8, 4), retention=Interval(-4)),
        "-4",
    ),
    "a watermark above all": (lambda: config(full(4), watermark=1.5), "watermark"),
    "a negative watermark": (lambda: config(full(4), watermark=-0.1), "watermark"),
    "an interval of no whole units of a full model": (
        lambda: config(full(4), retention=Interval(6)),
        "6",
    ),
    "no group, and nothing to reuse": (config, "no groups"),
    "65 groups": (lambda: config(*[full(4)] * 65, num_blocks=999), "64"),
    "a draft head on chunks": (lambda: config(full(4), replace(chunked(8, 4), eagle=True)), "1"),
    "replay beside states": (
        lambda: config(full(4), mamba(4), window(8, 4), topology={"replay_tokens": 4}),
        "replay",
    ),
    "replay beside chunks": (
        lambda: config(full(4), chunked(8, 4), window(8, 4), topology={"replay_tokens": 4}),
        "replay",
    ),
    "drafts longer than a unit": (
        lambda: config(full(4, eagle=True), window(8, 4), num_reprefillable_tokens=4),
        "num_reprefillable_tokens",
    ),
    "junctions inside blocks, and no hits there": (
        lambda: config(full(4), mamba(4), partial_junctions=True),
        "partial_hits",
    ),
    "junctions inside blocks, and tokens computed again": (
        lambda: config(
            full(8),
            mamba(8),
            topology={"hash_block_size": 4, "partial_hits": True},
            partial_junctions=True,
            num_reprefillable_tokens=1,
        ),
        "re-prefillable",
    ),
    "more tokens again than none": (
        lambda: config(full(4), num_reprefillable_tokens=-1),
        "num_reprefillable_tokens",
    ),
}


@pytest.mark.parametrize(("build", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_cache_that_cannot_work_is_refused_by_name(build: Callable[[], Any], says: str) -> None:
    with pytest.raises(InvalidValueError, match=says):
        CacheManager(build())


def test_no_group_at_all_is_a_cache_that_holds_nothing() -> None:
    cache = CacheManager(config(caching=False))
    request = cache.add(TOKENS)
    assert cache.match(request).num_tokens == 0
    assert cache.allocate([Need(request=request, num_new_tokens=40)]).num_fit == 1
    assert cache.blocks(request) == []
    cache.release([request])
    assert cache.reset()


def test_64_groups_are_served() -> None:
    groups = [full(4), window(8, 4), mamba(4), chunked(8, 4)] * 16
    cache = CacheManager(config(*groups, num_blocks=64 * 20))
    leave(cache, TOKENS, 4)
    assert cache.match(cache.add(TOKENS)).num_tokens == 36


def test_a_request_longer_than_the_model_allows_gets_no_block() -> None:
    cache = CacheManager(config(full(4), num_blocks=20, max_model_len=8))
    long, short = cache.add(range(9)), cache.add(range(8))
    with pytest.raises(InvalidValueError, match="9 tokens, max_model_len is 8"):
        cache.allocate([Need(request=long, num_new_tokens=9)])
    cache.allocate([Need(request=short, num_new_tokens=8)])
    before = picture(cache, [long, short])
    with pytest.raises(InvalidValueError, match="9 tokens, max_model_len is 8; end it there"):
        cache.decode([short], [1])
    assert picture(cache, [long, short]) == before
    cache.debug.check_integrity()
