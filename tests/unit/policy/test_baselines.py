"""Each baseline against its published formula, by hand."""

from collections import Counter

import pytest
from kvbraid.policy import BASELINES, RoutingPolicy
from kvbraid.policy.baselines import BoundedHash, LlmD, LlmDGate

from tests.unit.policy.views import of_prompt, view


def made(name: str) -> RoutingPolicy:
    policy = BASELINES[name]()
    assert policy.name == name
    return policy


def chosen(policy: RoutingPolicy, **columns: object) -> int:
    costs = policy.costs(view(**columns))  # type: ignore[arg-type]
    return costs.index(min(costs))


def test_round_robin_takes_each_in_turn() -> None:
    policy = made("round_robin")
    assert [chosen(policy, num=3) for _ in range(5)] in ([0, 1, 2, 0, 1], [1, 2, 0, 1, 2])


def test_random_has_no_preference() -> None:
    assert set(made("random").costs(view(num=3))) == {0.0}


def test_least_loaded_takes_the_fewest_requests() -> None:
    assert chosen(made("least_loaded"), num=3, running=[2, 1, 3]) == 1


def test_power_of_two_never_takes_the_most_loaded_of_three() -> None:
    policy, seen = made("power_of_two"), view(num=3, running=[2, 1, 3])
    drawn = Counter(costs.index(min(costs)) for costs in (policy.costs(seen) for _ in range(300)))
    assert set(drawn) == {0, 1}
    assert drawn[1] > drawn[0]
    assert policy.costs(view(num=1)) == [0.0]


def test_bounded_hash_follows_the_beginning_of_the_prompt_up_to_its_bound() -> None:
    policy = BoundedHash()
    seen = view(num=4)
    start = list(range(25))
    same = {
        tuple(policy.costs(of_prompt(seen, [*start, *range(tail, tail + 975)])))
        for tail in (1000, 5000)
    }
    assert len(same) == 1
    others = {
        (costs := policy.costs(of_prompt(seen, range(first, first + 1000)))).index(min(costs))
        for first in range(40)
    }
    assert others == {0, 1, 2, 3}
    (home,) = {costs.index(min(costs)) for costs in map(list, same)}
    running = [10 if place == home else 0 for place in range(4)]
    loaded = policy.costs(of_prompt(view(num=4, running=running), [*start, *range(975)]))
    assert loaded[home] == float("inf")


def test_llm_d_weighs_prefix_queue_and_pool() -> None:
    costs = LlmD().costs(view(num=3, present=[500, 0, 0], waiting=[4, 2, 0]))
    assert costs == pytest.approx([-(1.5 + 0 + 2), -(0 + 1 + 2), -(0 + 2 + 2)])
    assert LlmD().costs(view(num=2)) == [-4.0, -4.0]


def test_the_gate_of_llm_d_keeps_to_the_holder_until_it_is_18_s_late() -> None:
    loaded = {"num": 2, "present": [900, 0], "waiting": [9, 0]}
    assert chosen(LlmD(prefix=2.0), **loaded) == 1
    assert chosen(LlmDGate(prefix=2.0), **loaded, waiting_tokens=[15_928 * 17, 0]) == 0
    assert chosen(LlmDGate(prefix=2.0), **loaded, waiting_tokens=[15_928 * 19, 0]) == 1


def test_dynamo_adds_what_waits_what_comes_and_what_decodes() -> None:
    costs = made("dynamo").costs(view(present=[600, 0], waiting_tokens=[800, 0], running=[160, 0]))
    assert costs == [(800 + 400 + 160) / 16, 1000 / 16]


def test_lmetric_multiplies_tokens_by_the_batch() -> None:
    costs = made("lmetric").costs(view(present=[600, 0], waiting_tokens=[100, 0], running=[2, 0]))
    assert costs == [500 * 3, 1000]


@pytest.mark.parametrize(
    ("present", "running", "place"),
    [
        ([400, 0], [5, 0], 0),  # A match of 40 % is worth more than load.
        ([200, 0], [5, 0], 1),  # One of 20 % is not.
        ([900, 0], [200, 0], 1),  # 64 requests above the mean of 100, and 1.5 times as much.
    ],
)
def test_cache_aware_keeps_to_the_holder_unless_overloaded(
    present: list[int], running: list[int], place: int
) -> None:
    assert chosen(made("cache_aware"), present=present, running=running) == place


def test_load_aware_subtracts_the_excess_over_the_mean() -> None:
    costs = made("load_aware").costs(view(present=[500, 0], running=[3, 1]))
    assert costs == [(3 - 2) / 2 - 0.5, (1 - 2) / 2]


def test_full_attention_counts_what_a_hybrid_cannot_resume() -> None:
    columns = {"present": [900, 500], "resumable": [0, 500]}
    assert chosen(made("full_attention"), **columns) == 0
    assert chosen(made("greedy"), **columns) == 1


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_has_a_cost_for_each_candidate(name: str) -> None:
    for num in (1, 2, 7):
        costs = made(name).costs(view(num=num))
        assert len(costs) == num
        assert min(costs) < float("inf")
