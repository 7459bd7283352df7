"""The demo's processes: one server, and engines that talk over their pipes.

Each process is started in a session of its own, so Ctrl-C reaches only the driver. Its context
manager ends it in every case. The standard error of a process is shown if the process fails, and
dropped otherwise.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Final, TypeVar

import httpx
import msgspec

from kvbraid.errors import ServiceError
from kvbraid.service.closing import Closing
from kvbraid.sim.fleet.engine import EngineAnswer, EngineRequest, Ready
from kvbraid.sim.fleet.presets import Preset

_START_S: Final = 30.0
_STOP_S: Final = 6.0
_Line = TypeVar("_Line", bound=msgspec.Struct)


class _Process(Closing):
    """A child with its standard error in a file."""

    def __init__(self, name: str, arguments: Sequence[str], *, pipes: bool) -> None:
        self._name = name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        pipe = subprocess.PIPE if pipes else None
        self.child = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, *arguments],
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def failure(self, what: str) -> ServiceError:
        """Describe a failure, with the last part of the process's standard error."""
        self._log.seek(0)
        said = self._log.read()[-2000:].decode(errors="replace").strip()
        return ServiceError(f"{self._name} {what} (exit status {self.child.poll()}): {said}")

    def close(self) -> None:
        """End the process, by force if it does not end within some seconds."""
        try:
            if self.child.stdin:
                self.child.stdin.close()  # An engine ends with its input.
            else:
                self.child.terminate()
            self.child.wait(_STOP_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.child.kill()
            self.child.wait()
        finally:
            if self.child.stdout:
                self.child.stdout.close()
            self._log.close()


class EngineProcess(_Process):
    """One simulated engine. Starting does not wait for it; `ready` does."""

    def __init__(self, pod: str, preset: Preset) -> None:
        module = ["-m", "kvbraid.sim.fleet.engine", "--preset", preset.model, "--pod", pod]
        super().__init__(f"engine {pod}", module, pipes=True)
        self.pod = pod
        self.preset = preset
        self._ready: Ready | None = None

    @property
    def ready(self) -> Ready:
        """Where the engine publishes; raises ServiceError if it failed to start."""
        self._ready = self._ready or self._read(Ready)
        return self._ready

    def serve(self, request: EngineRequest) -> EngineAnswer:
        """Run one request; raises ServiceError if the engine has ended or refuses the request."""
        assert self.ready
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(msgspec.json.encode(request) + b"\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise self.failure("ended") from None
        answer = self._read(EngineAnswer)
        if answer.error is not None:
            raise ServiceError(f"engine {self.pod} refused a request: {answer.error}")
        return answer

    def _read(self, kind: type[_Line]) -> _Line:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            self.child.wait(_STOP_S)
            raise self.failure("ended")
        return msgspec.json.decode(line, type=kind)


class ServerProcess(_Process):
    """`kvbraid serve` on a free port of this machine; it has no pod yet, and keeps prompts."""

    def __init__(self) -> None:
        port = free_port()
        main = "from kvbraid.cli import main; main()"
        self._config = tempfile.NamedTemporaryFile("w", suffix=".toml")  # noqa: SIM115 - as the log
        self._config.write("[console]\nprompts = true\n")
        self._config.flush()
        options = ["--host", "127.0.0.1", "--port", str(port), "--config", self._config.name]
        arguments = ["-c", main, "serve", *options]
        super().__init__("server", arguments, pipes=False)
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        """End the process, and remove its configuration."""
        super().close()
        self._config.close()

    def wait_until_healthy(self) -> None:
        """Return when the server answers; raises ServiceError if it ends or takes too long."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.child.poll() is None:
            try:
                if httpx.get(f"{self.url}/healthz", timeout=1.0).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise self.failure("did not come up")


def free_port() -> int:
    """Return a local TCP port on which nothing listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
