"""Pods that are asked where they publish: vLLM's `GET /kv_event_sources`, under the pod's URL.

Invariant: a pod is asked once at a time, for a limited time and a limited number of bytes, and can
name ports of its own host alone. An answer that is refused changes nothing: a pod of which no
socket is known stays as one without events, and one that is followed stays followed.

Three forms of the answer are read, each in vLLM's sources under
`vllm/entrypoints/serve/kv_events/api_router.py`: an object by rank (0.32, as merged with pull
request 55844), a list of objects with their `data_parallel_rank` (commit 153c3aa2), and an object
whose `sources` are such a list (commit f123199a). Each socket is the rank's own: the engine has
added the rank to the port already.
"""

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import httpx
import msgspec

from kvbraid.errors import KvbraidError, one_line, shortened
from kvbraid.ids import PodId
from kvbraid.service.config import Followed, PodConfig
from kvbraid.service.registry import Service

PATH: Final = "/kv_event_sources"

PATIENCE_S: Final = 2.0
"""An engine answers from a table, unless it is stuck."""

MOST_BYTES: Final = 1 << 20
"""Of an answer: vLLM writes about 250 bytes for each of at most 1024 ranks."""

AGAIN_S: Final = 30.0
"""So often an engine is asked that has answered: it may have started again on other ports."""

RETRY_MAX_S: Final = 10.0
"""The longest pause after a question without an answer that can be used."""

MOST_AT_ONCE: Final = 16
"""Questions on their way; further pods wait for their turn."""

_LOOK_S: Final = 0.5
_ANY_HOST: Final = frozenset({"*", "0.0.0.0", "[::]"})  # noqa: S104  Recognised, not bound.
_TCP: Final = re.compile(r"tcp://(\*|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,5})")
_LOGGER: Final = logging.getLogger("kvbraid.sources")

WhyUnknown: TypeAlias = Literal[
    "failed", "slow", "refused", "too_long", "unreadable", "no_events", "other_ranks",
    "other_host", "no_port", "not_followed",
]  # fmt: skip
"""What can be wrong; a question without it is counted as `found`."""


class NoSourceError(Exception):
    """No socket was found; `why` is what is counted, and the text says more."""

    def __init__(self, why: WhyUnknown, text: str) -> None:
        super().__init__(text)
        self.why = why


class _EventSource(msgspec.Struct, frozen=True):
    """What is read of a rank's entry."""

    endpoint: str | None
    replay_endpoint: str | None = None
    publisher: str = "zmq"
    data_parallel_rank: int | None = None


_Sources: TypeAlias = dict[str, _EventSource | list[_EventSource]] | list[_EventSource]


def read_sources(body: bytes, config: PodConfig) -> Followed:
    """Return what to follow of a pod, from the answer of its engine.

    Raises:
        NoSourceError: The pod cannot be followed by this answer.
    """
    try:
        answer = msgspec.json.decode(body, type=_Sources)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoSourceError("unreadable", shortened(str(error))) from None
    ranks = [source for source in _in_order(answer, config.dp_size) if source.publisher == "zmq"]
    if len(ranks) < config.dp_size or ranks[0].endpoint is None:
        raise NoSourceError("no_events", "the engine publishes none; set its --kv-events-config")
    host = _host(config)
    return Followed(
        model=config.model,
        endpoint=_base("endpoint", [source.endpoint for source in ranks], host),
        replay_endpoint=_base("replay_endpoint", [each.replay_endpoint for each in ranks], host)
        if ranks[0].replay_endpoint is not None
        else None,
        bind=False,
        dp_size=config.dp_size,
    )


def _in_order(answer: _Sources, dp_size: int) -> list[_EventSource]:
    """Return the entries of ranks 0 to `dp_size` - 1, or of the only rank; none: no events."""
    given = answer.get("sources", answer) if isinstance(answer, dict) else answer
    if isinstance(given, _EventSource):
        raise NoSourceError("unreadable", "sources is no list")
    named: list[tuple[str, _EventSource]] = []
    if isinstance(given, list):
        named = [(str(each.data_parallel_rank or 0), each) for each in given]
    else:
        for rank, each in given.items():
            if isinstance(each, list):
                raise NoSourceError("unreadable", f"rank {shortened(rank)} is a list")
            named.append((rank, each))
    if len(named) <= 1 == dp_size:
        return [source for _, source in named]  # Of any rank: each has a server of its own.
    ranks = dict(named)
    if named and (ranks.keys() != set(map(str, range(dp_size))) or len(named) != dp_size):
        told = ", ".join(shortened(rank) for rank, _ in named[:8])
        text = f"it names the ranks {told}, and the pod has dp_size = {dp_size}"
        raise NoSourceError("other_ranks", text)
    return [ranks[str(rank)] for rank in range(len(named))]


def _host(config: PodConfig) -> str:
    """Return the host of a pod's URL, as an endpoint has it."""
    host = urlsplit(config.serving.url or "").hostname or ""
    return f"[{host}]" if ":" in host else host


def _base(name: str, endpoints: list[str | None], host: str) -> str:
    """Return the endpoint of rank 0 at this host; those of other ranks are at the ports after it.

    That is what the feed takes for granted, and what `kvbraid tail` shows.
    """
    first = 0
    for rank, endpoint in enumerate(endpoints):
        told = f"rank {rank} has {name} {shortened(endpoint or '')}"
        match = _TCP.fullmatch(endpoint or "")
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise NoSourceError("no_port", f"{told}; expected tcp://HOST:PORT")
        if match[1] not in _ANY_HOST and match[1].lower() != host:
            text = f"{told}, and its url is of {host}; give the pod that url, or its endpoint"
            raise NoSourceError("other_host", text)
        first = int(match[2]) if rank == 0 else first
        if int(match[2]) != first + rank:
            text = f"{told}, not port {first + rank}; give the engine a port, and ranks follow it"
            raise NoSourceError("no_port", text)
    return f"tcp://{host}:{first}"


@dataclass(slots=True)
class _Asked:
    """How far one pod has been asked, as it is registered."""

    config: PodConfig
    due_at: float = 0.0
    pause_s: float = 0.0  # Of the last questions without an answer that can be used.
    is_asked: bool = False

    def wait(self, seconds: float) -> None:
        self.due_at = time.monotonic() + seconds


class Asking:
    """Asks the pods of a service that say so, each again and again. It belongs to one loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pods: dict[PodId, _Asked] = {}
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def run(self, is_over: threading.Event) -> None:
        """Go on until it is over."""
        async with _new_client() as client, asyncio.TaskGroup() as tasks:
            while not is_over.is_set():
                for pod, asked in self._due(time.monotonic()):
                    asked.is_asked = True
                    tasks.create_task(self._ask(client, pod, asked))
                await asyncio.sleep(_LOOK_S)

    def _due(self, now: float) -> list[tuple[PodId, _Asked]]:
        pods = {pod: config for pod, config in self._service.pods.items() if config.asks}
        known = self._pods
        self._pods = {
            pod: known[pod] if pod in known and known[pod].config is config else _Asked(config)
            for pod, config in pods.items()
        }
        return [
            (pod, asked)
            for pod, asked in self._pods.items()
            if not asked.is_asked and asked.due_at <= now
        ]

    async def _ask(self, client: httpx.AsyncClient, pod: PodId, asked: _Asked) -> None:
        try:
            async with self._turns:
                found = await _question(client, asked.config)
            await asyncio.to_thread(self._service.follow, pod, asked.config, found)
        except NoSourceError as error:
            await self._fail(pod, asked, error)
        except KvbraidError as error:
            await self._fail(pod, asked, NoSourceError("not_followed", one_line(str(error))))
        except Exception:  # The next answer may be a better one.
            _LOGGER.exception("pod %s could not be asked where it publishes", pod)
            asked.wait(AGAIN_S)
        else:
            asked.pause_s = 0.0
            asked.wait(AGAIN_S)
        finally:
            asked.is_asked = False

    async def _fail(self, pod: PodId, asked: _Asked, error: NoSourceError) -> None:
        asked.pause_s = min(2 * asked.pause_s or _LOOK_S, RETRY_MAX_S)
        asked.wait(asked.pause_s)
        told = f"{PATH}: {error.why}: {error}"
        await asyncio.to_thread(self._service.not_found, pod, asked.config, error.why, told)


async def _question(client: httpx.AsyncClient, config: PodConfig) -> Followed:
    url = (config.serving.url or "").rstrip("/") + PATH
    try:
        async with asyncio.timeout(PATIENCE_S):
            body = await _get(client, url)
    except TimeoutError:
        raise NoSourceError("slow", f"no whole answer in {PATIENCE_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoSourceError("failed", shortened(str(error) or type(error).__name__)) from None
    return read_sources(body, config)


def _new_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=2 * PATIENCE_S,  # The whole answer has less.
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"accept-encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    )


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    async with client.stream("GET", url) as answer:
        if answer.status_code != 200:
            text = f"status {answer.status_code}; give the pod's endpoint if its engine is older"
            raise NoSourceError("refused", text)
        body = bytearray()
        read = cast("AsyncGenerator[bytes, None]", answer.aiter_raw())
        async with contextlib.aclosing(read) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MOST_BYTES:
                    raise NoSourceError("too_long", f"more than {MOST_BYTES} bytes")
        return bytes(body)


@contextlib.contextmanager
def asking_pods(service: Service) -> Iterator[None]:
    """Ask pods where they publish, on a thread of its own, from the first such pod on."""
    is_over = threading.Event()

    def ask() -> None:
        while not any(config.asks for config in service.pods.values()):
            if is_over.wait(_LOOK_S):
                return
        asyncio.run(Asking(service).run(is_over))

    threading.Thread(target=ask, name="kvbraid-sources", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()  # Nobody waits for an answer that is under way.
