"""What `kvbraid serve` writes to its log, over real sockets."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from kvbraid.events.wire import encode_batch
from kvbraid.service.journal import LINES

from tests.service.engines import LOOPBACK, LossyPublisher, open_publisher
from tests.service.recording_sink import TIMEOUT_S
from tests.service.score_app import stored
from tests.service.serving import serving, until

Line = dict[str, str | int]
Lines = Callable[[], list[Line]]
GARBAGE = encode_batch([]).replace(b"\x90", b"\x91\xa4what", 1)


@contextmanager
def logged(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, Lines]]:
    log = folder / "log"
    with (
        log.open("w") as written,
        serving("--log-format", "json", *arguments, stderr=written) as (process, url),
    ):
        yield process, url, lambda: [json.loads(line) for line in log.read_text().splitlines()]


def put(url: str, pod: str, engine: LossyPublisher) -> None:
    body = {
        "model": "m",
        "endpoint": engine.endpoint,
        "replay_endpoint": engine.replay_endpoint,
    }
    assert httpx.put(f"{url}/v1/pods/{pod}", json=body).is_success


def told(lines: list[Line]) -> list[str]:
    """What each line says, without whom it is about."""
    return [str(line["message"]).partition(": ")[2] for line in lines]


def test_the_life_of_a_pod_is_in_the_log(tmp_path: Path) -> None:
    with logged(tmp_path) as (_, url, lines):
        with open_publisher(replay_endpoint=LOOPBACK) as engine:
            endpoint = engine.endpoint
            engine.publish(stored())
            engine.publish(GARBAGE)
            put(url, "a", engine)
            until(lambda: told(lines()), lambda found: "state: exact" in found)
        until(lambda: told(lines()), lambda found: f"disconnected: {endpoint}" in found)
        httpx.delete(f"{url}/v1/pods/a")
        found = until(lines, lambda found: found[-1]["event"] == "removed")
    registered = f"registered: model m, 1 rank from {endpoint} on"
    assert registered in told(found)
    assert [line for line in told(found) if line != registered] == [
        "state: stale, not connected",
        f"connected: {endpoint}",
        "state: rebuilding, replay from 0 is under way",
        "refused events: 1, counted in GET /v1/pods, explained in docs/events.md",
        "state: exact",
        f"disconnected: {endpoint}",
        "state: stale, not connected",
        "removed: it is followed no longer",
    ]
    assert {line["pod"] for line in found} == {"a"}
    assert {line["level"] for line in found} == {"info", "warning"}


def test_a_loss_and_a_refusal_are_in_the_log(tmp_path: Path) -> None:
    with logged(tmp_path) as (_, url, lines), open_publisher(topic="kv@other@m") as engine:
        engine.publish(stored())
        put(url, "a", engine)
        assert engine.wait_subscribed(TIMEOUT_S)
        engine.publish(stored())
        degraded = "state: degraded, batches 0 to 0 are lost"
        found = until(lambda: told(lines()), lambda found: degraded in found)
    assert degraded in found
    assert [line for line in found if line.startswith("lost: messages, for good")]
    assert [line for line in found if line.startswith("refused topic_mismatch: ")]


def test_a_flood_of_refusals_is_a_few_lines_and_a_count(tmp_path: Path) -> None:
    with (
        open_publisher(topic="kv@other@m", replay_endpoint=LOOPBACK) as engine,
        logged(tmp_path) as (process, url, lines),
    ):
        put(url, "a", engine)
        assert engine.wait_subscribed(TIMEOUT_S)
        for _ in range(50):
            engine.publish(encode_batch([]))
        pods = f"{url}/v1/pods"
        refused = until(
            lambda: httpx.get(pods).json()["pods"][0]["refused"],
            lambda refused: refused.get("topic_mismatch") == 50,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        found = [line for line in lines() if line.get("detail") == "topic_mismatch"]
    assert refused == {"topic_mismatch": 50}
    assert [line.get("left_out", 0) for line in found] == [0] * LINES + [50 - LINES]


def test_a_log_of_errors_alone_has_no_line_about_pods(tmp_path: Path) -> None:
    with (
        open_publisher(replay_endpoint=LOOPBACK) as engine,
        logged(tmp_path, "--log-level", "error") as (_, url, lines),
    ):
        put(url, "a", engine)
        pods = f"{url}/v1/pods"
        row = until(
            lambda: httpx.get(pods).json()["pods"][0], lambda row: bool(row["state"] == "exact")
        )
        assert (row["state"], lines()) == ("exact", [])
