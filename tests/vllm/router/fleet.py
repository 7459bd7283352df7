"""Three real engines with one tiny model, and kvbraid before them."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
from kvbraid.sim.fleet.presets import topology_body

from tests.vllm.live_engine import ENGINE, LiveModel
from tests.vllm.router.conversations import OUTPUT
from tests.vllm.router.planes import PLANES, Plane
from tests.vllm.router.recording import Recording, recording
from tests.vllm.router.telling_picker import Ended
from tests.vllm.served_engine import free_port, serving

PODS: Final = ("a", "b", "c")
AS_STARTED: Final = {"dialect": ENGINE.dialect.value, "hash_seed": ENGINE.hash_seed}
SETTLE_SECONDS: Final = 60.0
STILL_SECONDS: Final = 0.03


class Engines(NamedTuple):
    """What runs, a record of what it publishes, and each pod as kvbraid is told of it."""

    model: LiveModel
    record: Recording
    pods: Mapping[str, Mapping[str, object]]


class Turn(NamedTuple):
    """One request as its client saw it, and what it came to; times are of `time.monotonic`."""

    prompt: list[int]
    outputs: list[int]
    sent: float
    answered: float
    ended: Ended

    def is_as_promised(self) -> bool:
        """Whether the engine reused what the bounds promised, and they were one number."""
        return self.ended.lower == self.ended.delivered == self.ended.upper

    def difference(self) -> str:
        """What happened between the promise and the engine's decision, if they differ."""
        delivered = self.ended.delivered
        if delivered is None:
            return "not_reported"
        if delivered < self.ended.lower:
            return "evicted"
        return "computed" if delivered > self.ended.upper else "uncertain"

    def is_as_expected(self) -> bool:
        """Whether it reused what was expected with all that was on its way to it."""
        return self.ended.delivered == self.ended.resumable


class RealFleet:
    """Engines, a record of what they publish, and what is before them.

    `name` is that of the model and of the plane.
    """

    def __init__(self, engines: Engines, name: str, plane: Plane) -> None:
        self.model, self.record = engines.model, engines.record
        self.name = f"{self.model.folder}_{name}"
        self._ended = plane.ended
        self._clients = httpx.Client(base_url=plane.url, timeout=120, trust_env=False)
        self._kvbraid = httpx.Client(base_url=plane.kvbraid, timeout=120, trust_env=False)

    def ask(self, prompt: list[int]) -> Turn:
        """Send one request, and wait for its answer."""
        sent = time.monotonic()
        answer = self._clients.post(
            "/v1/completions",
            headers={"x-kvbraid-explain": "1"},
            json={
                "model": "tiny",
                "prompt": prompt,
                "max_tokens": OUTPUT,
                "ignore_eos": True,
                "return_token_ids": True,
                "temperature": 0,
            },
        )
        answered = time.monotonic()
        assert answer.status_code == 200, answer.text
        outputs = answer.json()["choices"][0]["token_ids"]
        return Turn(prompt, outputs, sent, answered, self._ended(answer))

    def settle(self) -> None:
        """Wait until the gateway has every message, and none has come for a while."""
        end = time.monotonic() + SETTLE_SECONDS
        before = self._seqs()
        while True:
            time.sleep(STILL_SECONDS)
            now = self._seqs()
            if now == before and now[0] == now[1]:
                return
            assert time.monotonic() < end, now
            before = now

    def _seqs(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the last message of each pod that was published, and that the gateway has."""
        rows = {row["pod"]: row["last_seq"] for row in self._get("/v1/pods")["pods"]}
        known = {pod: -1 if rows[pod] is None else rows[pod] for pod in PODS}
        return {pod: self.record.last_seq(pod) for pod in PODS}, known

    def ladder(self) -> Any:  # noqa: ANN401 - JSON.
        """Return the sums of the hit ladder."""
        return self._get("/v1/ladder")

    def register(self, pod: str, fields: Mapping[str, object]) -> None:
        """Tell the gateway of an engine."""
        self._kvbraid.put(f"/v1/pods/{pod}", json=dict(fields)).raise_for_status()

    def wait_until_ready(self) -> None:
        """Wait until the gateway has what every engine has published so far."""
        end = time.monotonic() + SETTLE_SECONDS
        while not self._kvbraid.get("/readyz").is_success:
            assert time.monotonic() < end, self._kvbraid.get("/readyz").text
            time.sleep(STILL_SECONDS)

    def close(self) -> None:
        """Close the client's connections."""
        self._clients.close()
        self._kvbraid.close()

    def _get(self, path: str) -> Any:  # noqa: ANN401 - JSON.
        return self._kvbraid.get(path).raise_for_status().json()


@contextmanager
def running(model: LiveModel) -> Iterator[Engines]:
    """Start the engines, and end them."""
    ports = {pod: (free_port(), free_port()) for pod in PODS}
    with ExitStack() as open_:
        record = open_.enter_context(
            recording({pod: f"tcp://127.0.0.1:{events}" for pod, (events, _) in ports.items()})
        )
        engines = [_engine(model, *ports[pod]) for pod in PODS]
        with ThreadPoolExecutor() as threads:  # Each takes half a minute to start.
            clients = list(threads.map(open_.enter_context, engines))
        pods = {
            pod: {
                "model": "tiny",
                "endpoint": f"tcp://127.0.0.1:{ports[pod][0]}",
                "replay_endpoint": f"tcp://127.0.0.1:{ports[pod][1]}",
                "num_gpu_blocks": model.num_blocks,
                "url": str(client.base_url).rstrip("/"),
                "topology": topology_body(model.topology) | AS_STARTED,
            }
            for pod, client in zip(PODS, clients, strict=True)
        }
        yield Engines(model, record, pods)


@contextmanager
def routed(engines: Engines, name: str) -> Iterator[RealFleet]:
    """Run the plane of this name before engines."""
    with (
        tempfile.TemporaryDirectory() as folder,
        PLANES[name](Path(folder)) as plane,
        closing(RealFleet(engines, name, plane)) as fleet,
    ):
        for pod, fields in engines.pods.items():
            fleet.register(pod, fields)
        fleet.wait_until_ready()
        yield fleet


def _engine(model: LiveModel, events: int, replays: int) -> AbstractContextManager[httpx.Client]:
    publishes = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replays}",
    }
    options = {
        "--block-size": model.block_size,
        "--num-gpu-blocks-override": model.num_blocks,
        "--max-model-len": model.max_model_len,
        "--kv-events-config": json.dumps(publishes),
    }
    return serving(model.folder, *(str(part) for option in options.items() for part in option))
