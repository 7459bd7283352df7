"""`kvbraid serve` with the real index and subscriber, over real sockets."""

import json
import platform
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import httpx
import pytest
from kvbraid import __version__
from kvbraid.fleet.index import FleetIndex
from kvbraid.ids import PodId
from kvbraid.service.answers import PodsAnswer, ScoreAnswer
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.service.feeds.rank_feed import PodFeed
from kvbraid.service.feeds.subscriber import Subscriber
from kvbraid.service.http.app import Application
from kvbraid.service.http.client import Client, TokenBytes
from kvbraid.service.registry import Service
from kvbraid.sim.captures.read import Lookup, read_capture
from kvbraid.sim.fleet.processes import free_port

from tests.service.engines import RawEngine, open_publisher
from tests.service.in_process import TestClient
from tests.service.score_app import LLAMA4, TOKENS, stored
from tests.service.serving import MAIN, serving, until

CAPTURES = Path(__file__).parents[1] / "fixtures" / "captures"
CHUNK = 256  # Of the model in the capture `llama4`.


def score(url: str) -> ScoreAnswer:
    with Client(url) as client:
        return client.score(TokenBytes(array("I", TOKENS).tobytes()), {"model": "m"})


def test_what_an_engine_published_before_and_after_is_in_the_answers(tmp_path: Path) -> None:
    with Publisher(
        "tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", topic="kv@a@m", bind=True
    ) as publisher:
        publisher.publish(stored())
        config = tmp_path / "fleet.toml"
        config.write_text(
            f'[[pods]]\nid = "a"\nmodel = "m"\nendpoint = "{publisher.endpoint}"\n'
            f'replay_endpoint = "{publisher.replay_endpoint}"\n'
        )
        with serving("--config", str(config)) as (process, url):
            answer = until(lambda: score(url), lambda a: a.pods[0].exactness == "exact")
            assert [(row.pod, row.lower, row.upper) for row in answer.pods] == [("a", 64, 64)]
            assert httpx.get(f"{url}/readyz").status_code == 200
            with Client(url) as client:
                pods: PodsAnswer = client.pods()
            assert (pods.pods[0].last_seq, pods.pods[0].messages) == (0, 1)
            assert "kvbraid_memory_bytes" in httpx.get(f"{url}/metrics").text
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0


def readiness(url: str) -> tuple[int, str]:
    answer = httpx.get(f"{url}/readyz")
    return answer.status_code, answer.json().get("error", {}).get("message", "")


def test_it_is_ready_once_each_pod_has_been_reached_and_rebuilt(tmp_path: Path) -> None:
    late = f"tcp://127.0.0.1:{free_port()}"
    config = tmp_path / "fleet.toml"
    with Publisher(
        "tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", bind=True
    ) as publisher:
        publisher.publish(stored())
        config.write_text(
            "[server]\nready_after_s = inf\n"
            f'[[pods]]\nid = "early"\nmodel = "m"\nendpoint = "{publisher.endpoint}"\n'
            f'replay_endpoint = "{publisher.replay_endpoint}"\n'
            f'[[pods]]\nid = "late"\nmodel = "m"\nendpoint = "{late}"\n'
        )
        with serving("--config", str(config)) as (_, url):
            assert readiness(url)[0] == 503
            told = until(lambda: readiness(url), lambda answer: "early" not in answer[1])
            assert told == (503, "not connected: late")
            with open_publisher(late):
                told = until(lambda: readiness(url), lambda answer: answer[0] == 200)
                assert told == (200, "")
            until(lambda: states(url), lambda found: found["late"] == "stale")
            assert states(url) == {"early": "exact", "late": "stale"}
            assert readiness(url) == (200, "")  # It was known once; the rows say how it stands.


def states(url: str) -> dict[str, str]:
    return {row["pod"]: row["state"] for row in httpx.get(f"{url}/v1/pods").json()["pods"]}


def test_it_does_not_wait_for_ever_for_a_pod_that_never_comes(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    pod = f'[[pods]]\nid = "away"\nmodel = "m"\nendpoint = "tcp://127.0.0.1:{free_port()}"\n'
    config.write_text(f"[server]\nready_after_s = 0.5\n{pod}")
    with serving("--config", str(config)) as (_, url):
        assert until(lambda: readiness(url), lambda answer: answer[0] == 200) == (200, "")
        assert states(url) == {"away": "stale"}


def test_it_picks_as_the_file_says(tmp_path: Path) -> None:
    config = tmp_path / "fleet.toml"
    pod = (
        '[[pods]]\nid = "%s"\nmodel = "m"\nendpoint = "tcp://127.0.0.1:%d"\n'
        'url = "http://%s:8000"\ntopology = {groups = [{kind="full_attention", block_size=16}]}\n'
    )
    config.write_text(
        '[router]\npolicy = "least_loaded"\n[router.seconds.m]\nper_token = 0.001\n'
        + pod % ("a", free_port(), "a")
        + pod % ("b", free_port(), "b")
        + "drain = true\n"
    )
    request = {"model": "m", "token_ids": list(range(64))}
    with serving("--config", str(config)) as (_, url), httpx.Client(base_url=url) as client:
        picks = [client.post("/v1/pick", json=request).json() for _ in range(2)]
        assert [(p["policy"], p["seconds"], p["url"]) for p in picks] == [
            ("least_loaded", "given", "http://a:8000")
        ] * 2
        assert [(p["knowledge"], p["resumable"], p["terms"]) for p in picks] == [
            ("promises", 0, None), ("promises", 48, None),
        ]  # fmt: skip
        rows = {row["pod"]: row for row in client.get("/v1/pods").json()["pods"]}
        assert {pod: row["running"] for pod, row in rows.items()} == {"a": 2, "b": 0}
        for pick, status in ((picks[0]["pick"], "noted"), ("x", "unknown")):
            told = client.post("/v1/picked", json={"pick": pick, "event": "end"}).json()
            assert (told["pick"], told["status"]) == (pick, status)


def test_a_pod_whose_replay_is_under_way_is_missing() -> None:
    index = FleetIndex()
    with (
        RawEngine() as engine,
        Subscriber(index, replay_timeout_s=600) as feed,
        TestClient(Application(Service(index, feed))) as client,
    ):
        index.register(PodId("a"), model="m")
        feed.add(PodId("a"), PodFeed(engine.endpoint, engine.replay_endpoint))
        asked, _ = engine.asked()
        message = client.get("/readyz").json()["error"]["message"]
        assert message == "in the first rebuild: a"
        engine.end(asked)
        assert until(lambda: client.get("/readyz").status_code, lambda code: code == 200) == 200


def test_it_starts_empty_and_pods_come_and_go_over_http() -> None:
    with (
        serving() as (process, url),
        Publisher(
            "tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", bind=True
        ) as publisher,
    ):
        assert httpx.get(f"{url}/v1/pods").json()["pods"] == []
        body = {
            "model": "m",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
        }
        assert httpx.put(f"{url}/v1/pods/a", json=body).status_code == 201
        assert [row.lower for row in score(url).pods] == [0]
        publisher.publish(stored())
        answer = until(lambda: score(url), lambda a: a.pods[0].lower == 64)
        assert answer.pods[0].lower == 64
        tokens = json.dumps({"model": "m", "token_ids": TOKENS})
        explained = httpx.post(f"{url}/v1/explain", content=tokens).json()["pods"][0]
        assert explained["groups"][0]["held"] == [True] * 4
        assert httpx.delete(f"{url}/v1/pods/a").status_code == 200
        assert httpx.post(f"{url}/v1/score", content=tokens).status_code == 404
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


def test_a_models_config_alone_makes_answers_exact_that_events_leave_open() -> None:
    capture = read_capture(CAPTURES / "llama4")
    lookup = next(
        op
        for op in reversed(capture.operations)
        if isinstance(op, Lookup) and op.reused_tokens > CHUNK
    )
    with (
        serving() as (_, url),
        Publisher(
            "tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*", bind=True
        ) as publisher,
    ):
        for message in capture.messages[: lookup.messages_seen]:
            publisher.publish(message.payload)
        body = {
            "model": "m",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
        }
        told = {**body, "model_config": {**LLAMA4, "attention_chunk_size": CHUNK}}
        assert httpx.put(f"{url}/v1/pods/bare", json=body).status_code == 201
        assert httpx.put(f"{url}/v1/pods/told", json=told).status_code == 201
        until(lambda: httpx.get(f"{url}/readyz").status_code, lambda status: status == 200)
        pods = httpx.get(f"{url}/v1/pods").json()["pods"]
        chunks = {row["pod"]: [group["chunk"] for group in row["groups"]] for row in pods}
        assert chunks == {"bare": [None] * 4, "told": [CHUNK] * 3 + [None]}
        request = {"model": "m", "token_ids": list(lookup.token_ids)}
        bare, exact = httpx.post(f"{url}/v1/score", json=request).json()["pods"]
        assert (exact["lower"], exact["upper"]) == (lookup.reused_tokens, lookup.reused_tokens)
        assert bare["lower"] < exact["lower"] <= bare["upper"]


def test_requests_are_counted_by_route_and_status_on_every_way_to_an_answer() -> None:
    with serving() as (_, url), httpx.Client(base_url=url) as client:
        client.put("/v1/pods/a", json={"model": "m", "endpoint": f"tcp://127.0.0.1:{free_port()}"})
        for length in (1, 1, 900_000):  # The last one is too long for the event loop's own thread.
            client.post("/v1/score", json={"model": "m", "token_ids": [7] * length})
        client.post("/v1/score", json={"model": "x", "token_ids": [7]})
        client.get("/nowhere")
        client.patch("/v1/pods")
        lines = client.get("/metrics").text.splitlines()
    counted = {line for line in lines if line.startswith("kvbraid_http_requests_total{")}
    assert counted == {
        'kvbraid_http_requests_total{method="PUT",route="/v1/pods/{id}",status="201"} 1.0',
        'kvbraid_http_requests_total{method="POST",route="/v1/score",status="200"} 3.0',
        'kvbraid_http_requests_total{method="POST",route="/v1/score",status="404"} 1.0',
        'kvbraid_http_requests_total{method="other",route="other",status="404"} 1.0',
        'kvbraid_http_requests_total{method="other",route="other",status="405"} 1.0',
    }
    assert (
        f'kvbraid_build_info{{python="{platform.python_version()}",version="{__version__}"}} 1.0'
        in lines
    )


def test_a_models_config_that_is_refused_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    config = tmp_path / "fleet.toml"
    config.write_text(
        '[[pods]]\nid = "a"\nmodel = "m"\nendpoint = "tcp://h:1"\nmodel_config = "config.json"\n'
    )
    command = [sys.executable, "-c", MAIN, "serve", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    told = f"kvbraid: {config}: pods[0] (a): model_config: model_type = 'x' is not known; "
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == 1


def test_an_address_in_use_is_one_line_and_exit_2() -> None:
    with serving() as (_, url):
        port = url.rsplit(":", 1)[1]
        command = [sys.executable, "-c", MAIN, "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"kvbraid: cannot listen on 127.0.0.1:{port}: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["score", "explain", "pods", "tail", "serve", "model", "demo"])
def test_every_command_explains_itself(command: str) -> None:
    from click.testing import CliRunner
    from kvbraid.cli import cli

    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
