"""`kvbraid demo`: a server and four simulated hybrid engines, a workload, and the verdict.

Everything runs in local processes on free ports. All processes end with the demo, also after
Ctrl-C or an error. The last line of output is the verdict as JSON.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, TypeAlias

import httpx

from kvbraid.sim.fleet.driver import Driver, Outcome, PodTally, totals
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
"""The pods and their models. Routing needs two pods per model; two models show two hybrids."""

Watch: TypeAlias = Callable[[Iterable[Outcome], Collection[PodTally], int], None]
"""Shows outcomes as they come, given the pods' tallies and the number of requests."""

_MIN_SETTLED_SHARE: Final = 0.8
_INTERRUPTED: Final = 130


def run_demo(*, serve: bool, requests: int, seed: int, watch: Watch) -> int:
    """Run the demo and return its exit status: 0 if no prediction was wrong. `watch` shows it.

    With `serve`, the server and its engines keep running after the workload until Ctrl-C.
    Raises InvalidValueError if there are no requests, ServiceError if a process fails.
    """
    models = sorted({model for _, model in FLEET})
    workload = list(shared_prefix_workload(models, requests=requests, seed=seed))
    tallies: list[PodTally] = []
    with handled_interrupts() as interrupts, ExitStack() as stack, suppress(KeyboardInterrupt):
        driver, url = _start_fleet(stack, interrupts)
        tallies.extend(driver.tallies.values())
        watch(_outcomes(driver, workload), tallies, len(workload))
        if serve:
            _keep_serving(url, workload[-1])
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


def _outcomes(driver: Driver, workload: Sequence[WorkRequest]) -> Iterator[Outcome]:
    """Play the workload; end when the server has seen all events of its last request."""
    yield from driver.play(workload)
    driver.settle()


def _keep_serving(url: str, request: WorkRequest) -> None:
    """Print how to query the server, and wait for an interrupt."""
    body = {"model": request.model, "token_ids": request.prompt}
    with tempfile.TemporaryDirectory(prefix="kvbraid-demo-") as folder:
        path = Path(folder, "request.json")
        path.write_text(json.dumps(body), encoding="utf-8")
        _say(
            f"Serving at {url} until Ctrl-C. Ask about the last request:\n"
            f"  curl -s {url}/v1/score -H 'content-type: application/json' -d @{path}"
        )
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
    _say(
        f"{exact} of {exact + wrong} settled predictions exact, {wrong} wrong, {early} made "
        f"early; predicted {predicted} tokens, reused {true}\n{json.dumps(verdict)}"
    )
    if num_requests < num_expected:
        return _INTERRUPTED
    return int(wrong > 0 or exact + wrong < _MIN_SETTLED_SHARE * num_requests)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
