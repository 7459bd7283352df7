"""`vllm serve` with our scheduler works as usual: completions, cached tokens, metrics, a reset."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final

import httpx
import pytest

from tests.tiny_models import FOLDER, TOKENIZER
from tests.vllm.engine_process import ENVIRONMENT

START_SECONDS: Final = 500.0
NAME_OF_THE_OTHER_WHEEL: Final = Path(__file__).with_name("serve_path")
"""A folder for PYTHONPATH: its sitecustomize.py answers for the wheel that a server asks about."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    folder: str, *more: str, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[httpx.Client]:
    """Start a server and yield a client of it; stop it at the end."""
    environment = os.environ | ENVIRONMENT | {"VLLM_SERVER_DEV_MODE": "1"} | dict(variables)
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    paths = (os.environ.get("PYTHONPATH"), str(NAME_OF_THE_OTHER_WHEEL))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(FOLDER / folder)]
    options = {
        "--served-model-name": "tiny",
        "--tokenizer": str(FOLDER / TOKENIZER),
        "--host": "127.0.0.1",
        "--port": port,
        "--load-format": "dummy",
        "--max-model-len": 1_200,
        "--block-size": 32,
        "--num-gpu-blocks-override": 400,
        "--max-num-batched-tokens": 4_096,
        "--scheduler-cls": "kvbraid.integrations.vllm.KvbraidScheduler",
    }
    command += [str(part) for option in options.items() for part in option]
    command += ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += more
    with subprocess.Popen(command, env=environment) as server:
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
            ) as client:
                _wait(server, client)
                yield client
        finally:
            server.terminate()


def _wait(server: subprocess.Popen[bytes], client: httpx.Client) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, "the server ended; see stderr"
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"the server was not ready in {START_SECONDS} seconds")


def complete(client: httpx.Client, prompt: list[int]) -> int:
    """Have a prompt completed; return how many of its tokens were cached."""
    request: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 8}
    answer = client.post("/v1/completions", json=request | {"ignore_eos": True}).raise_for_status()
    details = answer.json()["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"]) if details else 0


@pytest.mark.timeout(900)
def test_a_server_on_our_cache_works_as_usual() -> None:
    random = Random(3)
    prompt = [random.randrange(10, 250) for _ in range(640)]
    with serving("gemma3") as client:
        assert [complete(client, prompt) for _ in range(2)] == [0, 608]
        assert "vllm:prefix_cache_hits_total" in client.get("/metrics").text
        client.post("/reset_prefix_cache").raise_for_status()
        assert complete(client, prompt) == 0


@pytest.mark.timeout(900)
def test_a_server_serves_which_policy_its_cache_has(tmp_path: Path) -> None:
    options = ("--additional-config", '{"kvbraid": {"retention": "value-flat", "interval": 0}}')
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with serving("gemma3", *options, variables=shared) as client:
        complete(client, list(range(10, 210)))
        complete(client, list(range(20, 220)))
        lines = client.get("/metrics").text.splitlines()
    assert 'kvbraid_policy{engine="0",policy="value"} 1.0' in lines
    assert 'kvbraid_policy{engine="0",policy="dense"} 0.0' in lines
    assert 'kvbraid_policy_gain{engine="0",policy="dense"} 0.0' in lines
    # A request ends in the last step, whose statistics may be under way when the answer comes.
    (age,) = [line for line in lines if line.startswith("kvbraid_policy_age_requests")]
    assert age.split() in (
        ['kvbraid_policy_age_requests{engine="0"}', ended] for ended in ("1.0", "2.0")
    )
