"""A soak of `kvbraid route`: rounds of random traffic and failures, and a quiet moment after each.

A round draws everything from the seed and its number. In the quiet moment nothing may be left of
the traffic, every pod must become exact again, and every prediction must be what is delivered.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from kvbraid.sim.fleet.presets import PRESETS

from tests.service.route_pods import post
from tests.soak_router.clients import Clients
from tests.soak_router.findings import Findings
from tests.soak_router.gateway_process import GatewayProcess, gateway_before
from tests.soak_router.pods import BEHAVIOURS, SoakPod

BLOCKS: Final = (500, 4000, 500, 4000)
"""Of each pod's cache: small ones evict all the time, large ones hardly ever."""
CLIENTS: Final = 6
HURTS: Final = {"kill": 2, "restart": 3, "cut": 2, "deaf": 1, "mood": 3, "well": 5}
"""What is done to pods, and how often: most of them serve at any time."""
PROBES: Final = 3
LONG_EVERY: Final = 5
"""One in this many rounds is long: one pod stays away for all of it, so attempts get rare."""
LONG: Final = 4.0
"""How many rounds a long one lasts."""
SHOWN_EVERY: Final = 10.0
"""Seconds between two lines of progress."""
SETTLE_S: Final = 30.0
"""How long a quiet moment may take before the soak goes on without it."""
SPARE_FILES: Final = 2


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    """`seconds` of rounds of `round_s` each; pods have `exact_s` to become exact again.

    Samples of memory count after `warm_s`.
    """

    seconds: float
    seed: int
    exact_s: float = 5.0
    round_s: float = 5.0

    @property
    def warm_s(self) -> float:
        return min(600.0, self.seconds / 3)


class Soak:
    """One soak, with its gateway and its pods."""

    def __init__(
        self, gateway: GatewayProcess, pods: Sequence[SoakPod], options: SoakOptions
    ) -> None:
        self._gateway = gateway
        self._pods = pods
        self._options = options
        self._began = self._shown = time.monotonic()
        self._files = 0
        self.findings = Findings()

    async def run(self) -> None:
        """Run rounds until the time is up."""
        named = {pod.name: pod for pod in self._pods}
        while True:
            random = Random(f"{self._options.seed} {self.findings.rounds}")
            clients = Clients(self._gateway, named, random, self.findings)
            await self._calm_down(clients)
            if time.monotonic() - self._began > self._options.seconds:
                break
            await self._rage(clients)
            self.findings.rounds += 1
            self._show()
        self.findings.judge_memory(self._options.warm_s)

    # ---- traffic and failures ---------------------------------------------------------------

    async def _rage(self, clients: Clients) -> None:
        random, lasts_s, pods = clients.random, self._options.round_s, list(self._pods)
        if self.findings.rounds % LONG_EVERY == LONG_EVERY - 1:
            lasts_s *= LONG
            away = pods.pop(random.randrange(len(pods)))
            await self._hurt_one(away, "kill", random)
        end = time.monotonic() + lasts_s

        async def keep_asking() -> None:
            while time.monotonic() < end:
                await clients.act()

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(keep_asking())
            group.create_task(self._hurt(pods, random, end))

    async def _hurt(self, pods: Sequence[SoakPod], random: Random, end: float) -> None:
        while time.monotonic() < end:
            act = random.choices(list(HURTS), list(HURTS.values()))[0]
            await self._hurt_one(random.choice(pods), act, random)
            await asyncio.sleep(random.uniform(0.05, 0.6))

    async def _hurt_one(self, pod: SoakPod, act: str, random: Random) -> None:
        if act in ("kill", "restart"):
            await pod.kill()
        if act in ("restart", "well"):
            await pod.heal()
        elif act == "cut":
            await pod.cut_events(random.uniform(0, 0.5))
        elif act == "deaf":
            await pod.stop_listening()
        elif act == "mood":
            pod.mood = act = random.choice(list(BEHAVIOURS))
        self.findings.acts[act] += 1

    # ---- quiet moments ----------------------------------------------------------------------

    async def _calm_down(self, clients: Clients) -> None:
        for pod in self._pods:
            await pod.heal()
            self._run_on(
                pod, clients
            )  # A message that was lost is missed when the next one comes.
        took, limit = await self._until_none(self._inexact), self._options.exact_s
        if took > limit:
            self.findings.blame("late", f"not all exact within {limit:g} s: {took:.1f} s")
        self.findings.exact_s.append(took)
        await self._until_none(self._missing)
        for pod in self._pods:
            await self._compare(pod, clients)
        for _ in range(PROBES):
            await self._probe(clients)
        await self._until_none(self._missing)
        clients.note_quiet()
        self._sample()

    def _run_on(self, pod: SoakPod, clients: Clients) -> int:
        return pod.run(clients.prompts.draw()["prompt"], [1, 2]).hit

    async def _until_none(self, missing: Callable[[], Awaitable[list[str]]]) -> float:
        """Wait until nothing is missing; return the seconds."""
        began = time.monotonic()
        while left := await missing():
            if time.monotonic() - began > SETTLE_S:
                self.findings.blame("never_quiet", ", ".join(left))
                break
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def _inexact(self) -> list[str]:
        """Name the pods of which the gateway does not know everything."""
        rows, found = await self._gateway.rows(), []
        for pod in self._pods:
            row = rows[pod.name]
            last_seq = -1 if row["last_seq"] is None else row["last_seq"]
            if (row["state"], last_seq) != ("exact", pod.last_seq):
                found.append(f"{pod.name} sent {pod.last_seq}, and is {row['state']}, {last_seq}")
        return found

    async def _missing(self) -> list[str]:
        """Name those pods, and what the gateway still has to do."""
        busy = await self._gateway.busy()
        return [*await self._inexact(), *(f"{name} is {value:g}" for name, value in busy.items())]

    async def _compare(self, pod: SoakPod, clients: Clients) -> None:
        """Compare a score of one pod with what the pod then really reuses."""
        prompt = clients.prompts.draw()["prompt"]
        body = json.dumps({"model": pod.preset.model, "token_ids": prompt}).encode()
        json_body: Any = {"content_type": "application/json"}
        _, answer = await self._gateway.ask(post("/v1/score", body, **json_body))
        [row] = [row for row in json.loads(answer)["pods"] if row["pod"] == pod.name]
        hit = pod.run(prompt, [1, 2]).hit
        self._expect(f"score of {pod.name}", (row["lower"], row["upper"]), hit)

    async def _probe(self, clients: Clients) -> None:
        """Compare a prediction of the gateway with what is delivered through it."""
        await self._until_none(self._inexact)
        connection = await self._gateway.connect()
        try:
            head, name = await clients.ask(connection, clients.prompts.draw())
            body = await connection.reader.readexactly(int(head.headers["content-length"]))
        finally:
            connection.leave()
        if head.status != 200:
            self.findings.blame("probe", f"{name}: {head.status} {body[:200]!r}")
            return
        lower, upper = map(int, head.headers["x-kvbraid-predicted"].split("-"))
        cached = json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        self._expect(f"probe of {head.headers['x-kvbraid-pod']}", (lower, upper), cached)

    def _expect(self, what: str, predicted: tuple[int, int], hit: int) -> None:
        is_right = predicted == (hit, hit)
        self.findings.predictions["quiet: exact" if is_right else "quiet: wrong"] += 1
        if not is_right:
            told = f"round {self.findings.rounds}, {what}: {predicted}, delivered {hit}"
            self.findings.blame("prediction", told)

    # ---- what is watched --------------------------------------------------------------------

    def _sample(self) -> None:
        at = time.monotonic() - self._began
        self.findings.memory.append((at, self._gateway.memory_mib()))

    async def check_end(self) -> None:
        """Check that the gateway has let go of everything, and let it end."""
        began = time.monotonic()
        while (files := self._gateway.num_files()) > self._files + SPARE_FILES:
            if time.monotonic() - began > SETTLE_S:
                self.findings.blame("files", f"{files} are open, {self._files} at the start")
                break
            await asyncio.sleep(0.1)
        status = await asyncio.to_thread(self._gateway.end)
        if status:
            self.findings.blame("exit_status", str(status))
        for line in self._gateway.complaints():
            self.findings.blame("log", line)

    async def note_start(self) -> None:
        """Note how many files are open once every pod is known."""
        await self._until_none(self._missing)
        self._files = self._gateway.num_files()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < SHOWN_EVERY:
            return
        self._shown = now
        found = self.findings
        print(
            f"{now - self._began:.0f} of {self._options.seconds:.0f} s, {found.rounds} rounds, "
            f"{found.outcomes.total()} requests, {found.acts.total()} failures, exact after "
            f"{max(found.exact_s):.2f} s at most, {found.memory[-1][1]:.1f} MiB, "
            f"{self._gateway.num_files()} files, {found.wrong.total()} wrong",
            file=sys.stderr,
            flush=True,
        )


async def soak(options: SoakOptions) -> Findings:
    """Run a soak to its end."""
    preset = PRESETS["gpt-oss-sim"]
    pods = [
        SoakPod(name, replace(preset, num_blocks=blocks), f"{options.seed} {name}")
        for name, blocks in zip("abcd", BLOCKS, strict=True)
    ]
    async with AsyncExitStack() as stack:
        for pod in pods:
            stack.push_async_callback(pod.end)
            await pod.start()
        gateway = await stack.enter_async_context(gateway_before(pods))
        running = Soak(gateway, pods, options)
        for pod in pods:
            pod.run(list(range(100)), [1])
        await running.note_start()
        await running.run()
        await running.check_end()
    return running.findings
