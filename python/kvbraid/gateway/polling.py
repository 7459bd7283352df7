"""Asks each pod for its `/metrics` from time to time, and tells the router what they say of load.

Invariant: a pod is asked once at a time, for a limited time and a limited number of bytes, so a
pod that is slow or lies spoils only what is known of its own load. Questions are spread over the
period, so answers do not come to the event loop all at once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from math import isfinite
from typing import Final, Literal, TypeAlias

import aiohttp
from yarl import URL

from kvbraid.gateway.client import new_session, read_body
from kvbraid.gateway.engine_metrics import read_engine_load
from kvbraid.gateway.fleet import Fleet, PodAddress
from kvbraid.ids import PodId
from kvbraid.policy import EngineLoad
from kvbraid.policy.view import RankId
from kvbraid.service.journal import Journal, Rank

PATIENCE_S: Final = 2.0
"""An engine answers within milliseconds, unless it is stuck."""

MOST_BYTES: Final = 2 << 20
"""Of an answer: vLLM writes about 50 KB for each data-parallel rank."""

Poll: TypeAlias = Literal["read", "no_load", "refused", "too_long", "slow", "failed"]
"""How a poll can end; all but the first leave the pod's load unknown."""


class LoadPoller:
    """Polls the pods of a fleet. It works on the loop of its first `start`.

    Attributes:
        polls: How polls ended.
    """

    def __init__(
        self,
        fleet: Fleet,
        note: Callable[[RankId, EngineLoad], None],
        journal: Journal,
        *,
        every_s: float,
    ) -> None:
        self._fleet = fleet
        self._note = note
        self._journal = journal
        self._every_s = every_s
        self._session: aiohttp.ClientSession | None = None
        self._tasks: dict[PodId | None, asyncio.Task[None]] = {}  # None: the one that asks others.
        self._silent: set[PodId] = set()
        self.polls: Counter[str] = Counter()

    def start(self) -> None:
        """Begin, unless it has begun, or is never to."""
        if self._session is None and isfinite(self._every_s):
            self._session = new_session(PATIENCE_S)
            self._tasks[None] = asyncio.ensure_future(self._run(self._session))

    async def close(self) -> None:
        """End all of it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _run(self, session: aiohttp.ClientSession) -> None:
        while True:
            targets = self._fleet.targets()
            self._silent.intersection_update(targets)
            for pod, target in targets.items():
                if pod not in self._tasks:
                    task = asyncio.ensure_future(self._poll(session, pod, target))
                    self._tasks[pod] = task
                await asyncio.sleep(self._every_s / len(targets))
            if not targets:
                await asyncio.sleep(self._every_s)

    async def _poll(self, session: aiohttp.ClientSession, pod: PodId, target: PodAddress) -> None:
        try:
            body = await _get(session, target.url + "/metrics")
        except TimeoutError:
            outcome: Poll = "slow"
        except (aiohttp.ClientError, OSError):
            outcome = "failed"
        else:
            outcome = body if isinstance(body, str) else self._read(pod, target.num_ranks, body)
        finally:
            del self._tasks[pod]
        self._end(pod, outcome)

    def _read(self, pod: PodId, num_ranks: int, body: bytes) -> Poll:
        loads = read_engine_load(body, num_ranks)
        for rank, load in loads.items():
            self._note((pod, rank), load)
        return "read" if loads else "no_load"

    def _end(self, pod: PodId, outcome: Poll) -> None:
        self.polls[outcome] += 1
        if outcome == "read" and pod in self._silent:
            self._silent.discard(pod)
            self._journal.note("load_known", Rank(pod), "its metrics are read again")
        elif outcome != "read" and pod not in self._silent:
            self._silent.add(pod)
            self._journal.note("load_unknown", Rank(pod), f"its metrics: {outcome}")


async def _get(session: aiohttp.ClientSession, url: str) -> bytes | Literal["refused", "too_long"]:
    async with session.get(URL(url, encoded=True), allow_redirects=False) as response:
        if response.status != 200:
            return "refused"
        body = await read_body(response, MOST_BYTES)
        return "too_long" if body is None else body
