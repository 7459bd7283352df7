"""`kvbraid demo`: a server and four simulated hybrid engines, a workload, and the verdict.

Everything runs in processes of this machine on free ports, and ends with the demo, also on
Ctrl-C and on errors. The last line of output is the verdict as JSON.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from kvbraid.sim.fleet.display import Display, totals
from kvbraid.sim.fleet.driver import Driver, PodTally
from kvbraid.sim.fleet.interrupts import Interrupts, handled_interrupts
from kvbraid.sim.fleet.presets import PRESETS
from kvbraid.sim.fleet.processes import EngineProcess, ServerProcess
from kvbraid.sim.fleet.workload import WorkRequest, shared_prefix_workload

FLEET: Final = (
    ("gpt-oss-0", "gpt-oss-sim"),
    ("gpt-oss-1", "gpt-oss-sim"),
    ("qwen3-next-0", "qwen3-next-sim"),
    ("qwen3-next-1", "qwen3-next-sim"),
)
"""Pods and models: routing needs two pods of a model, and two models show two kinds of hybrid."""

_PAUSE_S: Final = 0.05  # Between requests on a terminal, so that the table can be read.
_MIN_SETTLED_SHARE: Final = 0.8
_INTERRUPTED: Final = 130


def run_demo(*, serve: bool, requests: int, seed: int) -> int:
    """Run the demo and return its exit status: 0 if no prediction was wrong.

    With `serve` the server and its engines stay until Ctrl-C, after the workload.
    Raises InvalidValueError for no requests, ServiceError when a process fails.
    """
    models = sorted({model for _, model in FLEET})
    workload = list(shared_prefix_workload(models, requests=requests, seed=seed))
    console = Console(highlight=False)
    tallies: list[PodTally] = []
    with handled_interrupts() as interrupts, ExitStack() as stack, suppress(KeyboardInterrupt):
        driver, url = _start_fleet(stack, interrupts)
        tallies.extend(driver.tallies.values())
        _play(console, driver, workload)
        if serve:
            _keep_serving(console, url, workload[-1])
    return _verdict(tallies, num_expected=requests)


def _start_fleet(stack: ExitStack, interrupts: Interrupts) -> tuple[Driver, str]:
    """Start all processes at once, wait for each, and register the engines."""
    with interrupts.held():
        server = stack.enter_context(ServerProcess())
        engines = [stack.enter_context(EngineProcess(pod, PRESETS[model])) for pod, model in FLEET]
    server.wait_until_healthy()
    client = stack.enter_context(httpx.Client(base_url=server.url, timeout=10.0))
    driver = Driver(client, engines)
    driver.register()
    return driver, server.url


def _play(console: Console, driver: Driver, workload: Sequence[WorkRequest]) -> None:
    """Play the workload on the screen, and leave the last table there, also when interrupted."""
    display = Display(console, list(driver.tallies.values()), num_requests=len(workload))
    number = 0
    try:
        with display:
            for number, outcome in enumerate(driver.play(workload), start=1):
                display.show(number, outcome)
                if display.is_live:
                    time.sleep(_PAUSE_S)
        driver.settle()
    finally:
        console.print(display.table(number))


def _keep_serving(console: Console, url: str, request: WorkRequest) -> None:
    """Say how to ask the server, and wait to be interrupted."""
    body = {"model": request.model, "token_ids": request.prompt}
    with tempfile.TemporaryDirectory(prefix="kvbraid-demo-") as folder:
        path = Path(folder, "request.json")
        path.write_text(json.dumps(body), encoding="utf-8")
        lines = (
            f"Serving at {url} until Ctrl-C. Ask about the last request:",
            f"  curl -s {url}/v1/score -H 'content-type: application/json' -d @{path}",
        )
        for line in lines:
            console.print(line, soft_wrap=True)
        threading.Event().wait()


def _verdict(tallies: Sequence[PodTally], *, num_expected: int) -> int:
    """Write the verdict as the last line; return the exit status."""
    exact, wrong, early, predicted, true = totals(tallies)
    num_requests = exact + wrong + early
    verdict = {
        "requests": num_requests,
        "exact": exact,
        "wrong": wrong,
        "pods": len(tallies),
        "messages": sum(tally.messages for tally in tallies),
    }
    sys.stdout.write(
        f"{exact} of {exact + wrong} settled predictions exact, {wrong} wrong, {early} made "
        f"early; predicted {predicted} tokens, reused {true}\n{json.dumps(verdict)}\n"
    )
    sys.stdout.flush()
    if num_requests < num_expected:
        return _INTERRUPTED
    return int(wrong > 0 or exact + wrong < _MIN_SETTLED_SHARE * num_requests)
