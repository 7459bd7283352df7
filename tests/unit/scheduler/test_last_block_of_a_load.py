"""An asynchronous load brings the last token, and only the block of that token fails.

The token is computed all the same, so the request needs nothing that failed.
"""

import pytest
from kvbraid.loads import Failures, GroupBlock
from kvbraid.recovery import Policy
from kvbraid.scheduler import Load, LoadReport, Offer, Query

from tests.unit.cache.caches import full, window
from tests.unit.scheduler.engines import Engine


def whole(query: Query) -> Offer | None:
    num_tokens = len(query.tokens) - query.num_hit_tokens
    return Offer(num_tokens=num_tokens, tier="host", is_async=True)


def loading(policy: Policy = Policy.RECOMPUTE) -> tuple[Engine, Load]:
    engine = Engine(full(4), window(5, 4), answer=whole, policy=policy)
    engine.add(range(9))
    step = engine.schedule()
    assert step is not None
    engine.update()
    return engine, step.loads[0]


def last_block(load: Load) -> Failures:
    target = max((t for t in load.targets if t.group == 0), key=lambda t: t.position)
    return Failures(group_blocks=[GroupBlock(target.group, target.block_id)])


@pytest.mark.parametrize("policy", Policy)
def test_the_request_goes_on(policy: Policy) -> None:
    engine, load = loading(policy)

    engine.report([LoadReport(rank=0, ended=[load.number], failures=last_block(load))])
    engine.run()

    assert [len(output.tokens) for output in engine.said[load.request]] == [1, 1]


def test_a_last_block_that_failed_is_not_findable_even_if_it_is_whole() -> None:
    engine = Engine(full(1), answer=whole)
    engine.add(range(9))
    step = engine.schedule()
    assert step is not None
    (load,) = step.loads
    engine.update()

    engine.report([LoadReport(rank=0, ended=[load.number], failures=last_block(load))])

    found = {block for copies in engine.cache.debug.cached().values() for block in copies}
    assert found == {target.block_id for target in load.targets[:-1]}
