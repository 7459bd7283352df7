"""A service that is measured over HTTP. Ours and the rival's are started and stopped alike."""

import contextlib
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import httpx
from kvbraid.sim.fleet.processes import free_port


def wait_until(
    is_ready: Callable[[], bool], *, what: str, seconds: float = 60, every_s: float = 0.05
) -> None:
    """Poll until `is_ready`; after the time limit, raise with a message that contains `what`."""
    deadline = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(every_s)


def answers(client: httpx.Client, path: str) -> bool:
    """Whether the server answers 2xx on `path`."""
    try:
        return client.get(path).is_success
    except httpx.TransportError:
        return False


class MeasuredService(ABC):
    """A running indexer; a subclass says how it is started and queried."""

    command: ClassVar[tuple[str, ...]]
    health_path: ClassVar[str]

    def __init__(self, process: subprocess.Popen[bytes], client: httpx.Client) -> None:
        self.pid = process.pid
        self.client = client

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Self]:
        """Start the service on a free port; stop it at the end."""
        port = free_port()
        command = [*cls.command, "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                wait_until(lambda: answers(client, cls.health_path), what=" ".join(command))
                yield cls(process, client)
        finally:
            process.terminate()
            process.wait(timeout=10)

    @abstractmethod
    def register(self, pod: int, endpoint: str) -> None:
        """Connect the service to one publisher."""

    @abstractmethod
    def num_applied(self) -> int:
        """Return how much the service has taken so far."""
