"""How much of a core does a gateway need that sends nothing, and reads the metrics of 100 pods?

All pods are one server, whose `/metrics` have the names, the labels and the length of vLLM's. The
CPU is that of the process `kvbraid route`, whole, over SECONDS of wall time.
"""

import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import httpx

from bench.fleet.service import wait_until
from bench.harness.measure import Row, Sample, Side, Target, cpu_us_of_process
from bench.router.gateways import PORT, server

NUM_PODS: Final = 100
SECONDS: Final = 3.0

_HISTOGRAMS: Final = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
    "request_prefill_time_seconds", "request_decode_time_seconds", "iteration_tokens_total",
    "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n",
    "request_params_max_tokens", "request_time_per_output_token_seconds",
)  # fmt: skip
_GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def vllm_metrics() -> bytes:
    """Return what vLLM's `/metrics` look like: 44 KB, of which three lines are looked for."""
    engine = 'engine="0",model_name="openai/gpt-oss-120b"'
    lines = [f"vllm:{gauge}{{{engine}}} 0.0" for gauge in _GAUGES]
    for name in _HISTOGRAMS:
        lines += [f"# HELP vllm:{name} Histogram of it.", f"# TYPE vllm:{name} histogram"]
        lines += [f'vllm:{name}_bucket{{{engine},le="{le}.0"}} {le * 3}.0' for le in range(30)]
        lines += [f"vllm:{name}_count{{{engine}}} 90.0", f"vllm:{name}_sum{{{engine}}} 12.5"]
    return "\n".join([*lines, ""]).encode()


def metrics_server(ready: Connection) -> None:
    """Answer every request with the metrics; send the port."""
    import asyncio

    import uvloop

    body = vllm_metrics()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head + body)

    async def run() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        ready.send(listening.sockets[0].getsockname()[1])
        await listening.serve_forever()

    uvloop.run(run())


def _config(port: int, metrics_s: str) -> str:
    pods = (
        f'[[pods]]\nid = "p{number}"\nmodel = "m"\nurl = "http://127.0.0.1:{port}"\n'
        '[[pods.topology.groups]]\nkind = "full_attention"\nblock_size = 16\n'
        for number in range(NUM_PODS)
    )
    return "".join([f"[gateway]\nmetrics_s = {metrics_s}\n", *pods])


def _polls(port: int) -> float:
    """Return how often the gateway has read a pod's metrics."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    name = 'kvbraid_gateway_polls_total{outcome="read"} '
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def _cores(pid: int, port: int, *, polled: bool) -> float:
    """Return the share of a core that a gateway uses for SECONDS."""
    wait_until(lambda: not polled or _polls(port) >= NUM_PODS, what="polls")
    before, begin, cpu = _polls(port), time.perf_counter(), cpu_us_of_process(pid)
    time.sleep(SECONDS)
    passed, used = time.perf_counter() - begin, cpu_us_of_process(pid) - cpu
    polls = _polls(port) - before
    assert not polled or polls > 0.8 * NUM_PODS * passed, polls
    return used / 1e6 / passed


def idle(metrics_s: str) -> Side:
    """The share of a core that a gateway needs before NUM_PODS pods without requests."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        here, there = multiprocessing.Pipe()
        engine = multiprocessing.get_context("spawn").Process(
            target=metrics_server, args=(there,), daemon=True
        )
        engine.start()
        try:
            with tempfile.TemporaryDirectory() as folder:
                config = Path(folder) / "fleet.toml"
                pods = here.recv()
                config.write_text(_config(pods, metrics_s))
                command = [sys.executable, "-m", "kvbraid", "route", "--config", str(config)]
                with server([*command, "--log-level", "error", "--port", PORT], pods) as running:
                    polled = metrics_s != "inf"
                    yield partial(_cores, running.pid, running.port, polled=polled)
        finally:
            engine.kill()
            engine.join()

    return side


ROWS = (
    Row(
        name="idle_100",
        question="share of a core of a gateway that reads the metrics of 100 pods each second",
        unit="cores",
        ours=idle("1.0"),
        target=Target(ours=0.1),
        beside={"without_metrics": idle("inf")},
    ),
)
