"""What is made up: the same for a seed, with the shares that each kind is known for."""

from collections import Counter
from itertools import pairwise

import pytest
from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.sim.routing.workloads import KINDS, TRACE_OUTPUTS, made_up, recorded
from kvbraid.sim.traces.prefix_hashes import num_shared
from kvbraid.sim.traces.trace import Trace, TraceRequest


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_requests_each_time(kind: str) -> None:
    one, same, other = (made_up(kind, seed=seed, num_requests=30) for seed in (1, 1, 2))
    prompts = [[each.prompt() for each in work.asks] for work in (one, same, other)]
    assert prompts[0] == prompts[1]
    assert prompts[0] != prompts[2]
    assert [each[2:] for each in one.asks] == [each[2:] for each in same.asks]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_knows_how_long_its_prompt_is(kind: str) -> None:
    asks = made_up(kind, seed=1, num_requests=50).asks
    assert all(len(each.prompt()) == each.num_tokens and each.num_outputs > 0 for each in asks)


def test_more_requests_begin_with_fewer() -> None:
    few, many = (made_up("mixed", seed=1, num_requests=number) for number in (20, 40))
    assert [each.prompt() for each in few.asks] == [each.prompt() for each in many.asks[:20]]


def test_a_session_goes_on_where_it_ended() -> None:
    asks = made_up("chat", seed=1, num_requests=2_000).asks
    first = asks[0].session
    turns = [each.prompt() for each in asks if each.session == first]
    assert len(turns) > 1
    assert all(later[: len(turn)] == turn for turn, later in pairwise(turns))


def test_agents_fan_out() -> None:
    asks = made_up("agents", seed=1, num_requests=300).asks
    fans = [number for number, each in enumerate(asks) if each.is_together]
    assert 30 < len(fans) < 150
    number = fans[0]
    tasks = asks[number - 1].prompt(), asks[number].prompt()
    assert num_shared(*tasks) > 1_500


def test_documents_are_asked_about_again() -> None:
    asks = made_up("docs", seed=1, num_requests=400).asks
    times = Counter(each.session for each in asks)
    assert set(times.values()) == {1, 2, 3}
    assert 0.3 < sum(number > 1 for number in times.values()) / len(times) < 0.5
    again = next(number for number, times in times.items() if times > 1)
    prompts = [each.prompt() for each in asks if each.session == again]
    assert num_shared(*prompts[:2]) > 6_000


def test_what_cannot_be_made_up_is_refused() -> None:
    with pytest.raises(UnknownError, match="'talk' is not known; expected one of chat, shared"):
        made_up("talk", seed=1, num_requests=10)
    with pytest.raises(InvalidValueError, match="num_requests is 0"):
        made_up("chat", seed=1, num_requests=0)


def test_prompts_of_a_trace_share_exactly_what_their_ids_share() -> None:
    rows = [
        TraceRequest(1, 40, [5, 6]),  # 8 tokens after the last whole block: one of them counts.
        TraceRequest(1, 64, [5, 6, 7, -8]),
        TraceRequest(2, 3, []),
    ]
    trace = Trace(name="t", block_tokens=16, num_requests=3, play=lambda: iter(rows))
    asks = recorded(trace).asks
    first, second, third = (each.prompt() for each in asks)
    assert [len(each) for each in (first, second, third)] == [33, 64, 1]
    assert [each.num_tokens for each in asks] == [33, 64, 1]
    assert first[:32] == second[:32]
    assert {each.num_outputs for each in asks} == {TRACE_OUTPUTS}
    assert len(recorded(trace, num_requests=2).asks) == 2
