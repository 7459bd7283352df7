"""Three real engines with one tiny model, and `kvbraid route` before them."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from kvbraid.sim.fleet.presets import topology_body

from tests.service.serving import serving as serving_kvbraid
from tests.vllm.live_engine import ENGINE, LiveModel
from tests.vllm.router.conversations import OUTPUT
from tests.vllm.router.recording import Recording, recording
from tests.vllm.served_engine import free_port, serving

PODS: Final = ("a", "b", "c")
AS_STARTED: Final = {"dialect": ENGINE.dialect.value, "hash_seed": ENGINE.hash_seed}
SETTLE_SECONDS: Final = 10.0
STILL_SECONDS: Final = 0.03


@dataclass(frozen=True, slots=True)
class Turn:
    """One request as its client saw it; times are of `time.monotonic`.

    `lower` and `upper` are from events alone, `resumable` counts what was on its way as well.
    """

    pod: str
    prompt: list[int]
    outputs: list[int]
    sent: float
    answered: float
    lower: int
    upper: int
    resumable: int
    delivered: int

    def is_as_promised(self) -> bool:
        """Whether the engine reused what the bounds promised, and they were one number."""
        return self.lower == self.delivered == self.upper

    def is_as_expected(self) -> bool:
        """Whether it reused what was expected with all that was on its way to it."""
        return self.delivered == self.resumable


class RealFleet:
    """A gateway, the engines that it asks, and a record of what they publish."""

    def __init__(self, model: LiveModel, gateway: str, record: Recording) -> None:
        self.model = model
        self.record = record
        self._gateway = httpx.Client(base_url=gateway, timeout=120, trust_env=False)

    def ask(self, prompt: list[int]) -> Turn:
        """Send one request, and wait for its answer."""
        sent = time.monotonic()
        answer = self._gateway.post(
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
        body = answer.json()
        lower, upper = map(int, answer.headers["x-kvbraid-predicted"].split("-"))
        return Turn(
            pod=answer.headers["x-kvbraid-pod"],
            prompt=prompt,
            outputs=body["choices"][0]["token_ids"],
            sent=sent,
            answered=answered,
            lower=lower,
            upper=upper,
            resumable=int(answer.headers["x-kvbraid-ladder"].rpartition("resumable=")[2]),
            delivered=body["usage"]["prompt_tokens_details"]["cached_tokens"],
        )

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
        self._gateway.put(f"/v1/pods/{pod}", json=dict(fields)).raise_for_status()

    def wait_until_ready(self) -> None:
        """Wait until the gateway has what every engine has published so far."""
        end = time.monotonic() + SETTLE_SECONDS
        while not self._gateway.get("/readyz").is_success:
            assert time.monotonic() < end, self._gateway.get("/readyz").text
            time.sleep(STILL_SECONDS)

    def close(self) -> None:
        """Close the client's connections."""
        self._gateway.close()

    def _get(self, path: str) -> Any:  # noqa: ANN401 - JSON.
        return self._gateway.get(path).raise_for_status().json()


@contextmanager
def real_fleet(model: LiveModel) -> Iterator[RealFleet]:
    """Start everything, and end it."""
    ports = {pod: (free_port(), free_port()) for pod in PODS}
    with ExitStack() as open_, tempfile.TemporaryDirectory() as folder:
        record = open_.enter_context(
            recording({pod: f"tcp://127.0.0.1:{events}" for pod, (events, _) in ports.items()})
        )
        engines = [_engine(model, *ports[pod]) for pod in PODS]
        with ThreadPoolExecutor() as threads:  # Each takes half a minute to start.
            clients = list(threads.map(open_.enter_context, engines))
        config = Path(folder, "fleet.toml")
        config.write_text("[server]\nready_after_s = 0\n")
        _, url = open_.enter_context(serving_kvbraid("--config", str(config), name="route"))
        fleet = RealFleet(model, url, record)
        open_.callback(fleet.close)
        for pod, client in zip(PODS, clients, strict=True):
            events, replays = ports[pod]
            fleet.register(
                pod,
                {
                    "model": "tiny",
                    "endpoint": f"tcp://127.0.0.1:{events}",
                    "replay_endpoint": f"tcp://127.0.0.1:{replays}",
                    "num_gpu_blocks": model.num_blocks,
                    "url": str(client.base_url).rstrip("/"),
                    "topology": topology_body(model.topology) | AS_STARTED,
                },
            )
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
