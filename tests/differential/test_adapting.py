"""The lean that the traffic decides, against models of all leans that run beside a model."""

import random
from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import count, pairwise

import pytest
from kvbraid.cache import ByValue, CacheManager, Lean, Need
from kvbraid.models import PrefillCost
from kvbraid.spec import GroupSpec

from tests.reference.cache_adapting import AdaptingModel, Adaption
from tests.reference.tape_model import Life
from tests.unit.cache.caches import chunked, config, full, mamba, window

MIXES = (
    [full(4)],
    [full(4), window(9, 4)],
    [full(4), mamba(4)],
    [full(4), window(5, 4), mamba(4)],
    [full(4), chunked(8, 4), window(6, 4)],
    [full(4, eagle=True), window(9, 4)],
    [full(4), mamba(8)],
    [window(9, 4), window(14, 4)],
)


def serve(
    cache: CacheManager | AdaptingModel,
    tokens: Sequence[int],
    num_outputs: int,
    will_return: float | None,
) -> int:
    """One request, its prompt in two steps, one token at a time after that."""
    request = cache.add(tokens, will_return=will_return)
    match = cache.match(request)
    ends = [end for end in (len(tokens) // 8 * 4, len(tokens)) if end > match.num_tokens]
    done, need = match.num_tokens, Need(request=request, num_new_tokens=0, match=match)
    for end in ends:
        need.num_new_tokens = end - done
        fits = cache.allocate([need]).num_fit == 1
        cache.take_work()
        cache.start_step()
        if not fits:
            break
        done, need = end, Need(request=request, num_new_tokens=0)
    for token in range(num_outputs) if done == len(tokens) else ():
        if cache.decode([request], [token]).num_fit == 1:
            cache.take_work()
            cache.start_step()
    cache.release([request])
    return match.num_tokens


def assert_leans_alike(native: CacheManager, adaption: Adaption) -> None:
    found = native.leaning()
    assert found is not None
    assert (found.num_requests, found.since, found.num_changes) == (
        adaption.num_requests,
        adaption.since,
        adaption.num_changes,
    )
    order = [found.now, *found.others]
    policies = [shadow.policy for shadow in adaption.shadows]
    policies.insert(0, policies.pop(adaption.lean))
    assert [(each.lean, each.interval) for each in order] == [
        (policy.lean, policy.interval) for policy in policies
    ]
    everything = adaption.lately.all or 1.0
    shares = [saved / everything for saved in adaption.lately.saved or [0.0] * len(order)]
    shares.insert(0, shares.pop(adaption.lean))
    assert [each.share for each in order] == pytest.approx(shares)


@pytest.mark.parametrize(
    "groups", MIXES, ids=lambda groups: "-".join(g.kind.value for g in groups)
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_cache_leans_as_the_models_of_all_leans_say(
    groups: list[GroupSpec], seed: int
) -> None:
    draw = random.Random(seed)
    cost = PrefillCost(1.0, draw.choice((0.0, 0.1)))
    setting = config(*groups, num_blocks=draw.choice((16, 24)), retention=ByValue(cost=cost))
    native, model = CacheManager(setting), AdaptingModel(setting)
    prefixes = [[draw.randrange(9) for _ in range(draw.choice((8, 16)))] for _ in range(4)]
    for number in range(40):
        tokens = [*draw.choice(prefixes), *[100 + number] * draw.randrange(1, 9)]
        num_outputs, hint = draw.choice((0, 0, 5)), draw.choice((None, True, False, 0.4))
        hits = [serve(cache, tokens, num_outputs, hint) for cache in (native, model)]
        assert hits[0] == hits[1]
        assert_leans_alike(native, model.adaption)
        native.debug.check_integrity()
    assert native.take_statistics().leaning == native.leaning()


# ---- longer lives ------------------------------------------------------------------------


def prompts(draw: random.Random, num_common: int, blocks: int) -> Iterator[list[bytes]]:
    """Hashes of prompts: for a while some prefixes return among prompts that never do, then each
    second prompt parts from the one before where no checkpoint is. All begin alike. The longest
    parts have nine times so many blocks."""
    numbers = count()

    def text(num_blocks: int) -> list[bytes]:
        base = next(numbers)
        return [sha256(b"%d %d" % (base, at)).digest() for at in range(num_blocks)]

    system, last = text(num_common), text(7 * blocks)
    families = [text(6 * blocks) for _ in range(4)]
    for number in count():
        if number // 150 % 2 == 0:
            returns = number % 2 == 0
            prompt = draw.choice(families) + text(blocks) if returns else text(9 * blocks)
            yield system + prompt
        else:
            last = text(7 * blocks) if number % 2 == 0 else last
            yield system + last + text(2 * blocks + number % 7)


class Pool:
    """A cache, and the model of its adaption with caches as shadows whose lean is fixed."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        groups = (full(block_size), window(4 * block_size, block_size))
        setting = config(*groups, num_blocks=num_blocks, retention=ByValue(), events=False)
        self.native, self.adaption = CacheManager(setting), Adaption(setting, CacheManager)
        self.block_size = block_size
        self.num_at_checkpoints = self.num_elsewhere = 0

    def serve(self, hashes: list[bytes], hint: float | None) -> None:
        """One request, its prompt in two steps."""
        num_tokens = self.block_size * len(hashes) + 1
        tokens = array("I", bytes(4 * num_tokens))
        request = self.native.add(tokens, block_hashes=hashes, will_return=hint)
        match = self.native.match(request)
        self.note_reuse(hashes, match.num_tokens)
        half = self.block_size * (len(hashes) // 2)
        ends = [end for end in (half, num_tokens) if end > match.num_tokens]
        need = Need(request=request, num_new_tokens=ends[0] - match.num_tokens, match=match)
        for end in ends:
            assert self.native.allocate([need]).num_fit == 1
            self.native.take_work()
            self.native.start_step()
            need = Need(request=request, num_new_tokens=num_tokens - end)
        self.native.release([request])
        life = Life(hashes, num_tokens, num_tokens, ends, hint)
        are_enough = self.num_at_checkpoints > self.num_elsewhere
        self.adaption.end(life, len(hashes), are_enough=are_enough)

    def note_reuse(self, hashes: list[bytes], num_tokens: int) -> None:
        """A checkpoint has its window, so it can be let go, and is in the queue."""
        if num_tokens:
            name = hashes[num_tokens // self.block_size - 1]
            is_kept = any(name == each.block_hash for each in self.native.debug.checkpoints())
            self.num_at_checkpoints += num_tokens * is_kept
            self.num_elsewhere += num_tokens * (not is_kept)


def test_a_small_pool_leans_as_its_shadows_say_when_its_traffic_turns() -> None:
    pool, draw = Pool(16, 350), random.Random(5)
    leans = []
    for hashes, _ in zip(prompts(draw, 0, 5), range(700), strict=False):
        pool.serve(hashes, draw.choice((None, None, True, 0.25)))
        assert_leans_alike(pool.native, pool.adaption)
        leans.append(pool.adaption.shadows[pool.adaption.lean].policy.lean)
    pool.native.debug.check_integrity()
    changes = {pair for pair in pairwise(leans) if pair[0] is not pair[1]}
    assert (Lean.VALUE, Lean.INTERVAL) in changes, "the very last requests end a bet"
    assert pool.adaption.num_vetoes > 0, "the very last requests speak against a lean"


def test_a_large_pool_leans_as_shadows_say_that_play_stretches_of_its_traffic() -> None:
    pool, draw = Pool(16, 9_000), random.Random(1)
    changes: set[tuple[int, int]] = set()
    for hashes, _ in zip(prompts(draw, 20, 100), range(1_100), strict=False):
        pool.serve(hashes, draw.choice((None, None, True, 0.25)))
        assert_leans_alike(pool.native, pool.adaption)
        changes.add((len(pool.adaption.tape.stretches), pool.adaption.num_changes))
    pool.native.debug.check_integrity()
    for stretch in (1, 2):
        assert len([pair for pair in changes if pair[0] == stretch]) > 1, "the lean has to change"


@pytest.mark.parametrize(
    ("block_size", "num_blocks", "num_common", "seed"), [(128, 9_000, 5, 4), (64, 40_000, 20, 5)]
)
def test_shadows_of_a_larger_pool_play_some_of_its_families(
    block_size: int, num_blocks: int, num_common: int, seed: int
) -> None:
    pool, draw = Pool(block_size, num_blocks), random.Random(seed)
    for hashes, _ in zip(prompts(draw, num_common, 100), range(200), strict=False):
        pool.serve(hashes, draw.choice((None, None, True, 0.25)))
        assert_leans_alike(pool.native, pool.adaption)
    pool.native.debug.check_integrity()
    assert pool.adaption.num_changes > 1, "evidence has to change the lean"
    assert pool.adaption.scale.sample > 1
