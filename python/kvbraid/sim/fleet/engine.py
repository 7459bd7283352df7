"""A simulated engine: a request loop with a cache, which publishes as a real engine does.

As a process (`python -m kvbraid.sim.fleet.engine`) it prints where it publishes on its first line
of output. It then answers each request line with one JSON line. It ends when its input ends, so it
cannot outlive the process that started it. It computes nothing; generated tokens come with the
request.
"""

import signal
import sys
import time
from contextlib import suppress
from typing import Protocol

import click
import msgspec

from kvbraid.cache.events import Events
from kvbraid.cache.manager import CacheManager
from kvbraid.errors import KvbraidError
from kvbraid.events.model import BlockRemoved, BlockStored
from kvbraid.hashing import ExtraKeys
from kvbraid.service.feeds.publisher import Publisher
from kvbraid.sim.fleet.presets import PRESETS, Preset, cache_config
from kvbraid.sim.one_by_one import OneByOne


class Ready(msgspec.Struct, frozen=True):
    """An engine's first line: where to subscribe."""

    endpoint: str
    replay_endpoint: str | None


class EngineRequest(msgspec.Struct, frozen=True):
    """One request line."""

    prompt: list[int]
    outputs: list[int] = []
    salt: str | None = None


class EngineAnswer(msgspec.Struct, frozen=True):
    """One answer line: tokens reused, the last message's number (-1: none yet), and contents.

    If the engine refused the request, `error` says why. The events up to that point are published.
    """

    hit: int
    last_seq: int
    cached_blocks: int
    removed_blocks: int
    error: str | None = None


class EventSink(Protocol):
    """Where payloads go: a Publisher, or a list in tests."""

    def publish(self, payload: bytes) -> int:
        """Send one batch and return its number."""
        ...


class SimulatedEngine:
    """Serves requests one at a time and publishes each step's events as one message."""

    def __init__(self, preset: Preset, sink: EventSink) -> None:
        self.cache = CacheManager(cache_config(preset))
        self._scheduler = OneByOne(
            self.cache, max_step_tokens=preset.max_step_tokens, publish=self._publish
        )
        self._sink = sink
        self._last_seq = -1
        self._cached_blocks = 0
        self._removed_blocks = 0

    def serve(self, request: EngineRequest) -> EngineAnswer:
        """Run one request to its end; its events are published before this returns."""
        extra = ExtraKeys(cache_salt=request.salt)
        try:
            return self._answer(self._scheduler.run(request.prompt, request.outputs, extra))
        except KvbraidError as error:
            return self._answer(0, str(error))

    def _publish(self, events: Events) -> None:
        for event in events.structs():
            if isinstance(event, BlockStored):
                self._cached_blocks += len(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self._cached_blocks -= len(event.block_hashes)
                self._removed_blocks += len(event.block_hashes)
        self._last_seq = self._sink.publish(events.to_bytes(time.time(), 0))

    def _answer(self, hit: int, error: str | None = None) -> EngineAnswer:
        return EngineAnswer(
            hit=hit,
            last_seq=self._last_seq,
            cached_blocks=self._cached_blocks,
            removed_blocks=self._removed_blocks,
            error=error,
        )


@click.command()
@click.option("--preset", type=click.Choice(sorted(PRESETS)), required=True)
@click.option("--pod", required=True, help="The pod's name in the topic.")
def main(preset: str, pod: str) -> None:
    """Serve requests from standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends the input.
    model = PRESETS[preset].model
    publisher = Publisher(
        "tcp://127.0.0.1:0",
        replay_endpoint="tcp://127.0.0.1:0",
        topic=f"kv@{pod}@{model}",
        bind=True,
    )
    with publisher, suppress(BrokenPipeError):
        engine = SimulatedEngine(PRESETS[preset], publisher)
        _write(Ready(publisher.endpoint, publisher.replay_endpoint))
        for line in sys.stdin.buffer:
            _write(engine.serve(msgspec.json.decode(line, type=EngineRequest)))


def _write(line: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
