"""`examples/gateway.py` over a real server: empty pods, one with lost history, one of SGLang, and
one that cannot be reached."""

import runpy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec.msgpack
from kvbraid.events.wire import encode_batch
from kvbraid.fleet.answer import PodScore
from kvbraid.ids import PodId, PodState
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.http.client import Client

from tests.contract.prompts import TEXT, Text
from tests.contract.wires import page
from tests.docs.markdown import ROOT
from tests.service.serving import serving, until

Rank = tuple[PodId, int]
EXAMPLE: Final = runpy.run_path(str(ROOT / "examples" / "gateway.py"), run_name="gateway")
ask: Callable[[Client, str, Sequence[int]], Sequence[PodScore]] = EXAMPLE["ask"]
choose: Callable[[Sequence[PodScore], Mapping[Rank, int]], Rank] = EXAMPLE["choose"]

OF_SGLANG, OF_NOBODY = Text(seed=1), Text(seed=2)
SGLANG: Final = """
topology = { engine = "sglang", groups = [
  { kind = "sliding_window", block_size = 16, window = 128 },
  { kind = "full_attention", block_size = 16 } ] }
"""
STATES: Final = {
    "away": PodState.STALE,
    "idle-0": PodState.EXACT,
    "idle-1": PodState.EXACT,
    "late": PodState.DEGRADED,
    "sglang": PodState.EXACT,
}
ANYWHERE: Final = "tcp://127.0.0.1:*"


def configured(pod: str, endpoint: str, *more: str) -> str:
    return "\n".join(
        ["[[pods]]", f'id = "{pod}"', 'model = "m"', f'endpoint = "{endpoint}"', *more]
    )


def fleet(engines: ExitStack) -> str:
    """Start the engines; return their fleet.toml. The late pod's first batches cannot be had."""
    pods = [configured("away", "tcp://127.0.0.1:9")]
    for name in sorted(STATES.keys() - {"away"}):
        engine = engines.enter_context(
            Publisher(ANYWHERE, replay_endpoint=ANYWHERE, bind=True, buffer_batches=1)
        )
        if name == "late":
            for _ in range(3):
                engine.publish(encode_batch([TEXT.stored()]))
        if name == "sglang":
            engine.publish(msgspec.msgpack.encode([0.0, [page(OF_SGLANG, 0, 64, "GPU")]]))
        replay = f'replay_endpoint = "{engine.replay_endpoint}"'
        pods.append(configured(name, engine.endpoint, replay, SGLANG if name == "sglang" else ""))
    return "\n".join(pods)


def loads(**busy: int) -> dict[Rank, int]:
    return {(PodId(pod), 0): busy.get(pod, 0) for pod in STATES}


def spread(rows: Sequence[PodScore], num_requests: int) -> dict[str, int]:
    """Send so many requests that stay; return how many each pod got."""
    load: Counter[Rank] = Counter(loads())
    for _ in range(num_requests):
        load[choose(rows, load)] += 1
    return {pod: requests for (pod, _), requests in load.items() if requests}


def test_requests_go_where_most_is_likely_reused_and_on_without_an_answer(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    with ExitStack() as engines:
        config.write_text(fleet(engines))
        with serving("--config", str(config)) as (process, url), Client(url) as server:

            def rows_of(text: Text) -> Sequence[PodScore]:
                return ask(server, "m", text.prompt)

            rows = until(
                lambda: rows_of(TEXT), lambda got: {r.pod: r.state for r in got} == STATES
            )
            assert {row.pod: row.state for row in rows} == STATES
            assert all(row.lower == 0 for row in rows)
            assert choose(rows, loads()) == ("late", 0)
            assert choose(rows_of(OF_SGLANG), loads()) == ("sglang", 0)
            assert choose(rows, loads(late=5))[0] in {"idle-0", "idle-1", "sglang"}
            reached = STATES.keys() - {"away"}
            assert spread(rows_of(OF_NOBODY), 40) == dict.fromkeys(reached, 10)
            process.kill()
            process.wait()
            assert rows_of(TEXT) == ()
            assert spread((), 40) == dict.fromkeys(STATES, 8)


def row(pod: str, state: PodState, score: float) -> PodScore:
    fields: dict[str, Any] = dict.fromkeys(("lower", "upper", "expected", "present"), 0)
    return PodScore(
        pod=PodId(pod), dp_rank=0, state=state, exactness="bound", tiers={}, limiting=None,
        score=score, **fields,
    )  # fmt: skip


def test_a_stale_pod_gets_requests_only_if_all_are_stale() -> None:
    load = {(PodId(pod), 0): 0 for pod in ("a", "b")}
    stale = row("a", PodState.STALE, 1024.0)
    assert choose([stale, row("b", PodState.DEGRADED, 0.0)], load) == ("b", 0)
    assert choose([stale, row("b", PodState.STALE, 0.0)], load) == ("a", 0)


def test_a_pod_that_the_server_does_not_know_gets_its_share() -> None:
    assert spread([row("late", PodState.DEGRADED, 256.0)], 6) == {
        **dict.fromkeys(STATES, 1),
        "late": 2,
    }
