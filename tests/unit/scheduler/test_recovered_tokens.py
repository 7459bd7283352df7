"""Which tokens count, and which are findable, once loads have failed or brought everything."""

from kvbraid.loads import Failures
from kvbraid.scheduler import LoadReport, Offer, Query

from tests.unit.cache.caches import full
from tests.unit.scheduler.engines import Engine


def all_but_the_last(query: Query) -> Offer:
    return Offer(num_tokens=8 - query.num_hit_tokens, tier="host", is_async=False)


def test_tokens_that_recovery_takes_back_count_once_for_all_groups() -> None:
    engine = Engine(full(4), full(4), answer=all_but_the_last)
    request = engine.add(range(9))
    engine.schedule()
    failed = Failures(places={request: {0: [1], 1: [0, 1]}})
    engine.update([LoadReport(rank=0, ended=[0], failures=failed)])
    engine.run()
    assert engine.said[request][-1].num_recomputed == 8


def test_all_of_a_full_load_is_findable_before_its_last_token_is_computed() -> None:
    def whole(query: Query) -> Offer | None:
        return Offer(8, "host", is_async=True) if len(query.tokens) == 8 else None

    engine = Engine(full(4), full(4), answer=whole)
    engine.add(range(8))
    engine.schedule()
    engine.update([LoadReport(rank=0, ended=[0])])
    longer = engine.cache.add(range(9))
    assert engine.cache.match(longer).num_tokens == 8
