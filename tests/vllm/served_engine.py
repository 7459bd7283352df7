"""`vllm serve` with a tiny model, as a process that answers over HTTP."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx
import pytest

from tests.tiny_models import FOLDER, TOKENIZER
from tests.vllm.engine_process import ENVIRONMENT

START_SECONDS: Final = 900.0
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
