"""A fleet on a clock: its times by hand, the same run twice, and what bounds promise."""

from collections.abc import Sequence

import pytest
from kvbraid.cache import CacheConfig, CacheManager, Interval
from kvbraid.errors import InvalidValueError, TooLargeError, UnknownError
from kvbraid.policy import CostRule
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.sim.routing.arrivals import AtTime, ClosedLoop, OpenLoop
from kvbraid.sim.routing.clock import Clock
from kvbraid.sim.routing.fleet import POLICIES, RoutingRule, play, simulate
from kvbraid.sim.routing.workloads import Ask, Scale, made_up
from kvbraid.sim.traces.models import SimulatedModel

from tests.unit.sim.routing.fleets import FULL, STATES, ask, fleet, work

COST = RoutingRule.named("cost")
SMALL = Scale(length=0.05, count=0.1)


class At:
    """Requests at given times."""

    def __init__(self, *times: float) -> None:
        self._times = times

    def begin(self, asks: Sequence[Ask], send: AtTime, clock: Clock, seed: int) -> AtTime:
        del asks, seed
        for number, time in enumerate(self._times):
            clock.at(time, lambda now, number=number: send(number, now))  # type: ignore[misc]
        return lambda number, now: None


def test_a_pod_prefills_one_prompt_after_the_other() -> None:
    """100 tokens take 2 s; 64 of the second 100 are cached; the third waits for both."""
    prompts = [[*range(100)], [*range(64), *range(500, 536)], [*range(900, 950)]]
    asks = work(*(ask(number, prompt) for number, prompt in enumerate(prompts)))
    first, second, third = play(asks, fleet(), At(1.0, 1.5, 2.0), COST)
    assert (first.began, first.busy_s, first.cached) == (1.0, 2.0, 0)
    assert (second.began, second.busy_s, second.cached) == (3.0, 1.0 + 0.01 * 36, 64)
    assert (third.began, third.busy_s, third.cached) == (second.began + second.busy_s, 1.5, 0)
    assert third.ttft_s == pytest.approx(3.0 + 1.36 + 1.5 - 2.0)


def test_a_router_that_knows_events_alone_learns_after_the_delay() -> None:
    """The same prompt comes during the prefill, within the delay after it, and later."""
    asks = work(*(ask(number, range(65)) for number in range(4)))
    rule = RoutingRule.named("cost", in_flight=False)
    found = play(asks, fleet(delay_s=10.0), At(0.0, 1.0, 5.0, 30.0), rule)
    assert [each.expected for each in found] == [0, 0, 0, 64]
    assert [each.cached for each in found] == [0, 64, 64, 64]
    assert [each.is_settled for each in found] == [True, False, False, True]
    sent = play(asks, fleet(delay_s=1.0), At(0.0, 1.0, 5.0, 30.0), COST)
    assert [each.expected for each in sent] == [0, 64, 64, 64]


@pytest.mark.parametrize("model", [FULL, STATES], ids=lambda model: model.name)
def test_a_single_pod_has_the_hits_of_one_request_at_a_time(model: SimulatedModel) -> None:
    asks = made_up("agents", seed=3, num_requests=120, scale=SMALL)
    fleet_of_one = fleet(model, num_blocks=200)
    found = play(asks, fleet_of_one, OpenLoop(1.0), COST)
    config = CacheConfig(topology=model.topology, num_blocks=200, retention=Interval(0))
    engine = OneByOne(CacheManager(config), max_step_tokens=8_192)
    assert [each.cached for each in found] == [engine.run(each.prompt()) for each in asks.asks]
    assert any(each.cached for each in found)


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_can_be_repeated(name: str) -> None:
    asks = made_up("mixed", seed=2, num_requests=60, scale=SMALL)
    rule, pods = RoutingRule.named(name), fleet(num_pods=3, num_blocks=250)
    once, again, other = (
        simulate(asks, pods, OpenLoop(2.0), rule, seed=seed) for seed in (1, 1, 2)
    )
    assert once == again
    assert once != other


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("model", [FULL, STATES], ids=lambda model: model.name)
def test_no_bound_is_violated_even_if_messages_get_lost(
    model: SimulatedModel, loss: float
) -> None:
    asks = made_up("agents", seed=1, num_requests=300, scale=SMALL)
    pods = fleet(model, num_pods=3, num_blocks=150, loss=loss)
    result = simulate(asks, pods, OpenLoop(0.5), COST)
    assert result.num_checked > 40
    assert result.num_violated == 0


def test_without_loss_an_idle_pod_delivers_exactly_what_was_promised() -> None:
    asks = made_up("chat", seed=1, num_requests=200, scale=SMALL)
    found = play(asks, fleet(num_pods=2, num_blocks=200), OpenLoop(0.2), COST)
    settled = [each for each in found if each.is_settled]
    assert len(settled) > 50
    assert all(each.lower == each.cached == each.upper for each in settled)


def test_a_lost_message_shows_when_the_next_one_comes() -> None:
    """Every message is lost, so none ever comes: what was sent counts, and nothing binds."""
    asks = work(*(ask(number, range(65)) for number in range(3)))
    found = play(asks, fleet(loss=1.0), At(0.0, 10.0, 20.0), COST)
    assert [each.is_settled for each in found] == [True, False, False]
    assert [each.cached for each in found] == [0, 64, 64]
    assert [each.expected for each in found] == [0, 64, 64]


def test_users_wait_for_their_answers() -> None:
    """Two users: the first request of a third session waits for the end of another one.

    A prefill of 100 new tokens takes 2 s, an answer of 4 tokens 2 s, and a user thinks for 10 s.
    """
    asks = work(
        ask(0, range(100), num_outputs=4),
        ask(1, range(1_000, 1_100), num_outputs=4),
        ask(2, range(2_000, 2_100), num_outputs=4),
        ask(0, range(100, 200), num_outputs=4),
    )
    found = play(asks, fleet(num_pods=4), ClosedLoop(users=2, think_s=10.0), COST)
    came = {each.number: each.came for each in found}
    assert 0 <= min(came[0], came[1]) < max(came[0], came[1]) <= 10
    assert came[3] == pytest.approx(came[0] + 2.0 + 2.0 + 10.0)
    assert came[2] == pytest.approx(came[1] + 2.0 + 2.0 + 10.0)


def test_all_requests_of_a_fan_out_come_at_once() -> None:
    asks = work(ask(0, range(10)), ask(1, range(20))._replace(is_together=True), ask(2, range(9)))
    first, second, third = play(asks, fleet(num_pods=3), OpenLoop(1.0), COST)
    assert first.came == second.came < third.came


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda: RoutingRule.named("best"), UnknownError, "'best' is not known; expected one of"),
        (lambda: OpenLoop(0.0), InvalidValueError, "rate is 0.0; expected a finite number"),
        (lambda: ClosedLoop(users=0), InvalidValueError, "users is 0; expected"),
        (lambda: ClosedLoop(users=1, think_s=-1.0), InvalidValueError, "think_s is -1.0"),
        (lambda: fleet(num_pods=0), InvalidValueError, "num_pods is 0"),
        (lambda: fleet(loss=1.5), InvalidValueError, "loss is 1.5; expected a share"),
        (lambda: fleet(delay_s=-1.0), InvalidValueError, "delay_s is -1.0"),
        (lambda: fleet(num_blocks=1), InvalidValueError, "a pool of 1 block"),
        (
            lambda: simulate(work(ask(0, range(9))), fleet(), OpenLoop(1.0), COST),
            InvalidValueError,
            "number of requests is 1",
        ),
        (
            lambda: play(work(ask(0, range(2_000))), fleet(), OpenLoop(1.0), COST),
            TooLargeError,
            "a prompt of 2,000 tokens does not fit into a pod's pool of 100 blocks; give",
        ),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    change: "object", error: type[Exception], message: str
) -> None:
    assert callable(change)
    with pytest.raises(error, match=message):
        change()


def test_the_default_policy_is_the_rule_of_kvbraid() -> None:
    assert next(iter(POLICIES)) == CostRule.name
