"""What the router promised is what real engines reused, of every request that came alone.

With clients at the same time, a promise is made before the engine decides, and what the others did
meanwhile counts: each difference has to be shown from the events of the engine itself.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.gateway.envoy import ENVOY
from tests.vllm.live_engine import MODELS
from tests.vllm.router.conversations import Traffic
from tests.vllm.router.fleet import PODS, Engines, RealFleet, Turn, routed, running
from tests.vllm.router.proofs import unproven

NUM_TURNS: Final = 600
NUM_CLIENTS: Final = 8
ROUTED: Final = [model for model in MODELS if model.folder in {"gemma3", "gptoss", "qwen3next"}]

pytestmark = pytest.mark.timeout(3_600)


@pytest.fixture(scope="module", params=ROUTED, ids=lambda model: model.folder)
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    with running(request.param) as made:
        yield made


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("envoy", marks=pytest.mark.skipif(ENVOY is None, reason="needs envoy")),
    ],
)
def fleet(request: pytest.FixtureRequest, engines: Engines) -> Iterator[RealFleet]:
    with routed(engines, request.param) as made:
        yield made


def play(fleet: RealFleet, traffic: Traffic, num_turns: int, *, is_alone: bool) -> list[Turn]:
    """Play turns one after the other; one that is alone waits for all events before it."""
    turns = []
    for _ in range(num_turns):
        conversation = traffic.next()
        if is_alone:
            fleet.settle()
        else:
            time.sleep(traffic.pause())
        turns.append(fleet.ask(list(conversation.prompt)))
        conversation.go_on(turns[-1].outputs)
    return turns


def tell(name: str, fleet: RealFleet, turns: Sequence[Turn]) -> None:
    """Print what came of it, and check that the traffic was worth it."""
    prompts, reused = sum(len(t.prompt) for t in turns), sum(t.ended.delivered or 0 for t in turns)
    pods = Counter(turn.ended.pod for turn in turns)
    row = {
        "predicted": f"{fleet.name}_{name}",
        "requests": len(turns),
        "as_promised": sum(turn.is_as_promised() for turn in turns),
        "differ": Counter(turn.difference() for turn in turns if not turn.is_as_promised()),
        "as_expected": sum(turn.is_as_expected() for turn in turns),
        "reused": round(reused / prompts, 3),
        "pods": dict(sorted(pods.items())),
    }
    print(json.dumps(row))
    assert set(pods) == set(PODS)
    assert 0.3 < reused / prompts < 0.99


def test_every_request_that_comes_alone_reuses_what_was_promised(fleet: RealFleet) -> None:
    turns = play(fleet, Traffic(fleet.name, 0, 24), NUM_TURNS, is_alone=True)
    tell("alone", fleet, turns)
    assert not [turn for turn in turns if not turn.is_as_promised()]


def test_with_clients_at_once_each_difference_is_shown_by_the_engines_events(
    fleet: RealFleet,
) -> None:
    def client(stream: int) -> list[Turn]:
        return play(
            fleet, Traffic(fleet.name, stream, 3), NUM_TURNS // NUM_CLIENTS, is_alone=False
        )

    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        turns = [turn for each in threads.map(client, range(1, NUM_CLIENTS + 1)) for turn in each]
    fleet.settle()
    tell("together", fleet, turns)
    others = [turn for turn in turns if not turn.is_as_promised()]
    for pod, messages in fleet.record.messages.items():
        left = unproven(fleet.model, messages, [turn for turn in others if turn.ended.pod == pod])
        assert not left, left[0]
