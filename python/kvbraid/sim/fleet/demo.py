"""`kvbraid demo`: a server and four simulated hybrid engines, a workload, and the verdict.

Everything runs in local processes on free ports. All processes end with the demo, also after
Ctrl-C or an error. The last line of output is the verdict as JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
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

Watch: TypeAlias = Callable[[Iterable[Outcome], Collection[PodTally], int | None], None]
"""Shows outcomes as they come, given the pods' tallies and how many will come (None: no end)."""

_MIN_JUDGED_SHARE: Final = 0.8
_PAUSE_S: Final = 0.5  # Before each request of the traffic that goes on: people can follow it.
_INTERRUPTED: Final = 130


def run_demo(*, serve: bool, requests: int, seed: int, watch: Watch) -> int:
    """Run the demo and return its exit status: 0 if no prediction was wrong. `watch` shows it.

    With `serve`, the server and its engines keep running after the workload until Ctrl-C, and a
    request goes to one of them now and then. Raises ServiceError if a process fails.
    """
    models = sorted({model for _, model in FLEET})
    workload = shared_prefix_workload(models, seed=seed)
    tallies: list[PodTally] = []
    with handled_interrupts() as interrupts, ExitStack() as stack, suppress(KeyboardInterrupt):
        driver, url = _start_fleet(stack, interrupts)
        tallies.extend(driver.tallies.values())
        checked = list(islice(workload, requests))
        watch(_outcomes(driver, checked), tallies, requests)
        if serve:
            _say(_judged(tallies))
            with _explained(url, driver.most_overstated(checked)):
                watch(driver.play(_slowly(workload), picks=True), tallies, None)
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


def _slowly(requests: Iterable[WorkRequest]) -> Iterator[WorkRequest]:
    for request in requests:
        time.sleep(_PAUSE_S)
        yield request


@contextmanager
def _explained(url: str, request: WorkRequest) -> Iterator[None]:
    """Say how to look at the running fleet; the file with the request is there meanwhile."""
    body = {"model": request.model, "token_ids": request.prompt}
    with tempfile.TemporaryDirectory(prefix="kvbraid-demo-") as folder:
        path = Path(folder, "request.json")
        path.write_text(json.dumps(body), encoding="utf-8")
        _say(
            f"\nServing at {url} until Ctrl-C, with two requests a second. "
            "Open it in a browser, or in another terminal:\n"
            f"  export KVBRAID_URL={url}\n"
            "  kvbraid tail                  # events, as the engines publish them\n"
            "  kvbraid pods                  # what is known of each engine\n"
            f"  kvbraid score {path}    # what each could reuse of a request\n"
            f"  kvbraid explain {path}  # and why less than its full attention holds\n"
            f"  curl -s {url}/v1/score -H 'content-type: application/json' -d @{path}\n"
        )
        yield


def _judged(tallies: Sequence[PodTally]) -> str:
    exact, wrong, early, predicted, true, present = totals(tallies)
    not_judged = (
        f" {early} more requests were not judged: the demo asks about one in ten before the "
        "engines' last messages have arrived, as a gateway often must."
        if early
        else ""
    )
    return (
        f"{exact} of {exact + wrong} predictions exact, {wrong} wrong: predicted {predicted} "
        f"tokens, reused {true}. Counting full-attention blocks alone would have promised "
        f"{present}.{not_judged}"
    )


def _verdict(tallies: Sequence[PodTally], *, num_expected: int) -> int:
    """Write the verdict as the last line; return the exit status."""
    exact, wrong, early, *_ = totals(tallies)
    num_requests = exact + wrong + early
    verdict = {
        "requests": num_requests,
        "exact": exact,
        "wrong": wrong,
        "pods": len(tallies),
        "messages": sum(tally.messages for tally in tallies),
    }
    _say(f"{_judged(tallies)}\n{json.dumps(verdict)}")
    if num_requests < num_expected:
        return _INTERRUPTED
    return int(wrong > 0 or exact + wrong < _MIN_JUDGED_SHARE * num_requests)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
