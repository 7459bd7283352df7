"""The router in Ray's own routing loop: Ray asks again, shares ids, swaps, and gives up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.integrations.ray import KvbraidRouter, router_config
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import FIFOMixin, PendingRequest

from tests.ray.fakes import DEPLOYMENT, FakeReplica, booked_at, new_router, pending

NAMES = "abc"
PATIENCE_S = 30


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


async def choose(router: KvbraidRouter, *calls: PendingRequest) -> list[str]:
    chosen = await asyncio.gather(*map(router._choose_replica_for_request, calls))
    return [replica.replica_id.unique_id for replica in chosen]


def test_the_class_survives_the_way_in_which_ray_copies_it() -> None:
    for named in ("kvbraid.integrations.ray:KvbraidRouter", KvbraidRouter):
        config = RequestRouterConfig(request_router_class=named)
        assert issubclass(config.get_request_router_class(), FIFOMixin)
    config = router_config(model="m", stats_period_s=1.0)
    assert config.request_router_kwargs == {"model": "m"}
    assert config.request_routing_stats_period_s == 1.0


def test_arguments_are_refused_where_a_deployment_is_written() -> None:
    with pytest.raises(InvalidValueError, match=r"did you mean model\?"):
        router_config(modle="m")
    with pytest.raises(InvalidValueError, match="topology"):
        router_config(pod={"topology": {"groups": [{"kind": "none"}]}})


def test_calls_within_one_request_are_all_answered_each_where_it_is_booked() -> None:
    async def test() -> None:
        router = new_router(map(FakeReplica, NAMES))
        calls = [pending("one", 1000 * number) for number in range(12)]
        chosen = await choose(router, *calls)
        assert chosen == [booked_at(router, call) for call in calls]
        assert set(chosen) == set(NAMES)
        for replica in chosen:
            replica_id = next(r for r in router.curr_replicas if r.unique_id == replica)
            router.on_request_completed(replica_id, "one")
        assert router._chooser.router.num_booked() == 0

    run(test)


def test_no_call_gets_the_replica_that_was_chosen_for_another() -> None:
    """The first is probed for so long that the second is ready before it."""

    async def test() -> None:
        replicas = {name: FakeReplica(name) for name in NAMES}
        router = new_router(replicas.values())
        await asyncio.sleep(0.01)  # All of them have told their queues.
        first = pending("first")
        chosen = await choose(router, first)
        router.on_request_completed(replicas[chosen[0]].replica_id, "first")
        router.replica_queue_len_cache.invalidate_key(replicas[chosen[0]].replica_id)
        replicas[chosen[0]].slow_s = 0.05
        again, other = pending("again"), pending("other", 50_000)
        assert await choose(router, again, other) == [
            booked_at(router, again), booked_at(router, other),
        ]  # fmt: skip

    run(test)


def test_without_the_method_that_is_not_public_calls_are_answered_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(KvbraidRouter, "_get_pending_request_matching_metadata")

    async def test() -> None:
        router = new_router(map(FakeReplica, NAMES))
        calls = [pending("one", 1000 * number) for number in range(6)]
        assert len(await choose(router, *calls)) == 6

    run(test)


def test_a_full_replica_is_passed_over_and_the_booking_follows() -> None:
    async def test() -> None:
        replicas = {name: FakeReplica(name, most=1) for name in NAMES}
        router = new_router(replicas.values())
        await asyncio.sleep(0.01)
        [best] = await choose(router, pending("warm"))
        router.on_request_completed(replicas[best].replica_id, "warm")
        replicas[best].queue = 1
        router.on_new_queue_len_info(replicas[best].replica_id, 1)
        call = pending("call", 0)
        [chosen] = await choose(router, call)
        assert chosen != best
        router.on_request_routed(call, replicas[chosen].replica_id, None)
        assert booked_at(router, call) == chosen
        router.on_request_completed(replicas[best].replica_id, "call")
        assert booked_at(router, call) == chosen
        router.on_request_completed(replicas[chosen].replica_id, "call")
        assert router._chooser.router.num_booked() == 0

    run(test)


def test_while_all_are_full_ray_asks_with_rests_and_the_call_is_booked_once() -> None:
    async def test() -> None:
        replicas = [FakeReplica(name, most=1) for name in NAMES]
        for replica in replicas:
            replica.queue = 1
        router = new_router(replicas)
        call = pending("call")
        waiting = asyncio.ensure_future(choose(router, call))
        await asyncio.sleep(0.3)
        counts = router._chooser.counts()
        assert not waiting.done()
        assert counts["in_flight"] == router._chooser.router.num_booked() == 1
        assert 1 < counts["picked"] < 100  # Without rests it is thousands.
        replicas[1].queue = 0
        assert await waiting == ["b"]
        router._chooser.check_integrity()

    run(test)


def test_a_call_that_is_cancelled_while_it_waits_is_released_by_time() -> None:
    async def test() -> None:
        full = FakeReplica("a", most=1)
        full.queue = 1
        router = new_router([full], router={"grace_s": 0.0})
        waiting = asyncio.ensure_future(choose(router, pending("gone")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        full.queue = 0
        while router._chooser.router.booking("gone.0") is not None:
            await asyncio.sleep(0.1)
            await choose(router, pending("next", 7000))
        router._chooser.check_integrity()

    run(test)


def test_what_is_only_picked_does_not_stay_booked() -> None:
    """As under direct streaming: somebody else sends it, and nobody tells of its end."""

    async def test() -> None:
        router = new_router(map(FakeReplica, NAMES), router={"grace_s": 0.0})
        for number in range(40):
            asked = router._choose_replicas_with_backoff(pending(f"call{number}", 1000 * number))
            assert len(await anext(asked)) == 1
            await asked.aclose()
            await asyncio.sleep(0.02)
        assert router._chooser.router.num_booked() < 40
        assert not router._pending
        router._chooser.check_integrity()

    run(test)


def test_replicas_come_go_and_die() -> None:
    async def test() -> None:
        replicas = {name: FakeReplica(name) for name in "abcd"}
        router = new_router(replicas[name] for name in NAMES)
        call = pending("call")
        [chosen] = await choose(router, call)
        router.on_replica_actor_died(replicas[chosen].replica_id)
        assert booked_at(router, call) is None
        others = [replica for name, replica in replicas.items() if name != chosen]
        assert set(await choose(router, *(pending(f"{n}", 1000 * n) for n in range(9)))) < {
            *replicas
        } - {chosen}
        router.update_replicas(others)
        found = await choose(router, *(pending(f"x{n}", 9000 + 1000 * n) for n in range(20)))
        assert set(found) == {replica.replica_id.unique_id for replica in others}

    run(test)


def test_a_replica_hears_what_was_predicted_for_it() -> None:
    async def test() -> None:
        router = new_router([FakeReplica("a")], prediction="predicted")
        call = pending("call")
        await choose(router, call)
        told: dict[str, Any] = call.kwargs["predicted"]
        assert {**told, "upper": 0} == {
            "replica": "a", "dp_rank": 0, "lower": 0, "upper": 0, "expected": 0,
        }  # fmt: skip
        assert router._options.model == DEPLOYMENT.name

    run(test)
