"""The shared-prefix workload: repeatable, sharing prefixes, and large enough to evict."""

from collections import Counter
from itertools import islice

import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.sim.fleet.engine import EngineRequest, SimulatedEngine
from kvbraid.sim.fleet.presets import PRESETS, topology_body
from kvbraid.sim.fleet.workload import WorkloadShape, WorkRequest, shared_prefix_workload


def take(requests: int, *, seed: int = 1, models: tuple[str, ...] = ("m",)) -> list[WorkRequest]:
    return list(islice(shared_prefix_workload(models, seed=seed), requests))


def test_the_same_seed_gives_the_same_requests() -> None:
    assert take(50, seed=7) == take(50, seed=7)
    assert take(50, seed=7) != take(50, seed=8)


def test_a_turn_extends_the_session_by_prompt_and_answer() -> None:
    by_session: dict[int, WorkRequest] = {}
    turns = 0
    for request in take(200):
        if before := by_session.get(request.session):
            said = (*before.prompt, *before.outputs)
            assert request.prompt[: len(said)] == said
            turns += 1
        by_session[request.session] = request
    assert turns > 50


def test_sessions_share_few_system_prompts_the_first_ones_most() -> None:
    first = {request.session: request for request in reversed(take(400))}
    heads = Counter(request.prompt[:100] for request in first.values())
    assert len(heads) == WorkloadShape().num_system_prompts
    counts = [count for _, count in heads.most_common()]
    assert counts[0] > 2 * counts[-1]


def test_forks_repeat_a_prefix_of_another_session_beyond_its_system_prompt() -> None:
    shape = WorkloadShape()
    seen: set[tuple[int, ...]] = set()
    forks = 0
    sessions: set[int] = set()
    for request in take(200):
        at = shape.system_tokens[1] + 50
        if request.session not in sessions and request.prompt[:at] in seen:
            forks += 1
        sessions.add(request.session)
        seen.add(request.prompt[:at] if len(request.prompt) > at else ())
    assert forks > 3


def test_prompts_stay_within_the_limit_and_every_model_is_used() -> None:
    requests = take(300, models=("a", "b"))
    assert max(len(request.prompt) for request in requests) <= WorkloadShape().max_prompt_tokens
    models = {request.session: request.model for request in requests}
    assert all(models[request.session] == request.model for request in requests)
    assert set(models.values()) == {"a", "b"}


def test_a_workload_for_no_model_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least one"):
        take(1, models=())


def test_a_longer_workload_begins_as_a_shorter_one() -> None:
    assert take(80)[:50] == take(50)


class Drain:
    """A sink that only numbers payloads."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, payload: bytes) -> int:
        self.payloads.append(payload)
        return len(self.payloads) - 1


@pytest.mark.parametrize("model", PRESETS)
def test_a_quarter_of_the_demo_already_evicts_and_mostly_hits_on_every_preset(model: str) -> None:
    sink = Drain()
    engine = SimulatedEngine(PRESETS[model], sink)
    requests = take(75)
    answers = [
        engine.serve(EngineRequest(list(request.prompt), list(request.outputs)))
        for request in requests
    ]
    assert all(answer.error is None for answer in answers)
    assert answers[-1].removed_blocks > 100
    assert answers[-1].last_seq == len(sink.payloads) - 1
    hits = sum(answer.hit for answer in answers) / sum(len(r.prompt) for r in requests)
    assert 0.4 < hits < 0.9
    engine.cache.debug.check_integrity()


def test_a_topology_is_told_with_the_fields_that_a_server_takes() -> None:
    body = topology_body(PRESETS["gpt-oss-sim"].topology)
    assert body["groups"][0] == {
        "kind": "sliding_window",
        "block_size": 16,
        "window": 128,
        "chunk": None,
    }
    assert body["hash_algo"] == "sha256"
