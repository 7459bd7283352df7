"""The lean that the traffic decides, against models of all leans that run beside a model."""

import random
from collections.abc import Sequence

import pytest
from kvbraid.cache import ByValue, CacheManager, Need
from kvbraid.models import PrefillCost
from kvbraid.spec import GroupSpec

from tests.reference.cache_adapting import AdaptingModel
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
        found = native.leaning()
        assert found is not None
        assert (found.num_requests, found.since, found.num_changes) == (
            model.num_requests,
            model.since,
            model.num_changes,
        )
        order = [found.now, *found.others]
        policies = [shadow.policy for shadow in model.shadows]
        policies.insert(0, policies.pop(model.lean))
        assert [(each.lean, each.interval) for each in order] == [
            (policy.lean, policy.interval) for policy in policies
        ]
        shares = [saved / model.lately.all for saved in model.lately.saved]
        shares.insert(0, shares.pop(model.lean))
        assert [each.share for each in order] == pytest.approx(shares)
        native.debug.check_integrity()
    assert native.take_statistics().leaning == native.leaning()
