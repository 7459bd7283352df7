"""What stands between clients and engines: `kvbraid route`, or Envoy that asks `pick-serve`."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import httpx
import msgspec

from tests.gateway.envoy import envoy
from tests.service.serving import serving
from tests.vllm.router.telling_picker import Ended

TELLING: Final = "from tests.vllm.router.telling_picker import main; main()"
PATIENCE_S: Final = 30.0


class Plane(NamedTuple):
    """Where clients send requests, where kvbraid answers, and what an answer's request came to.

    `ended` may wait for it.
    """

    url: str
    kvbraid: str
    ended: Callable[[httpx.Response], Ended]


Planes: TypeAlias = Mapping[str, Callable[[Path], AbstractContextManager[Plane]]]


@contextmanager
def embedded(folder: Path) -> Iterator[Plane]:
    """Run the embedded proxy, which tells its clients."""
    with serving("--config", _config(folder, "first_tokens = true"), name="route") as (_, url):
        yield Plane(url, url, _of_headers)


@contextmanager
def behind_envoy(folder: Path) -> Iterator[Plane]:
    """Run Envoy and its picker, which learns from Envoy's access log what was delivered."""
    options = ("--config", _config(folder, "first_tokens = false"), "--grpc-port", "0")
    with (
        serving(*options, name="pick-serve", main=TELLING) as (process, kvbraid),
        asyncio.Runner() as loop,
    ):
        assert process.stdout is not None
        picker = int(process.stdout.readline().rpartition(":")[2])
        ends = _Ends()
        threading.Thread(target=ends.hear, args=(process.stdout,), daemon=True).start()
        stack = AsyncExitStack()
        try:
            port = loop.run(stack.enter_async_context(envoy(folder, picker=picker)))
            yield Plane(f"http://127.0.0.1:{port}", kvbraid, ends.of)
        finally:
            loop.run(stack.aclose())


PLANES: Final[Planes] = MappingProxyType({"embedded": embedded, "envoy": behind_envoy})


class _Ends:
    """The ends that a picker tells of, by the names of their requests."""

    def __init__(self) -> None:
        self._ended: dict[str, Future[Ended]] = {}

    def hear(self, lines: Iterable[str]) -> None:
        for line in lines:
            ended = msgspec.json.decode(line, type=Ended)
            self._ended.setdefault(ended.name, Future()).set_result(ended)

    def of(self, answer: httpx.Response) -> Ended:
        """Wait for the end of a request; engines call its answer by its name."""
        name = str(answer.json()["id"]).removeprefix("cmpl-")
        return self._ended.setdefault(name, Future()).result(PATIENCE_S)


def _config(folder: Path, router: str) -> str:
    config = folder / "fleet.toml"
    config.write_text(f"[router]\n{router}\n")
    return str(config)


def _of_headers(answer: httpx.Response) -> Ended:
    headers = answer.headers
    lower, upper = map(int, headers["x-kvbraid-predicted"].split("-"))
    return Ended(
        name=headers["x-request-id"],
        pod=headers["x-kvbraid-pod"],
        lower=lower,
        upper=upper,
        resumable=int(headers["x-kvbraid-ladder"].rpartition("resumable=")[2]),
        delivered=answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"],
    )
