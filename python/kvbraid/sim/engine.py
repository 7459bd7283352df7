"""A simulated engine: a reference cache behind a request loop, publishing as an engine does.

As a process (`python -m kvbraid.sim.engine`) it says where it publishes on its first line of
output, then answers one JSON line per request line, and ends with its input: it cannot outlive
whoever started it. It computes nothing; generated tokens come with the request.
"""

import math
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import click
import msgspec

from kvbraid.errors import KvbraidError
from kvbraid.events.model import BlockRemoved, Event
from kvbraid.events.wire import encode_batch
from kvbraid.hashing import EngineHash, ExtraKeys, HashAlgo, block_hashes
from kvbraid.service.publisher import Publisher
from kvbraid.sim.cache import HashChain, ReferenceCache
from kvbraid.sim.presets import PRESETS, Preset


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

    A request that the engine refused has `error`, and published whatever it had done.
    """

    hit: int
    last_seq: int
    cached_blocks: int
    removed_blocks: int
    error: str | None = None


class EventSink(Protocol):
    """Where payloads go; a Publisher, or a list in tests."""

    def publish(self, payload: bytes) -> int:
        """Send one batch and return its number."""
        ...


def engine_chain(preset: Preset) -> HashChain:
    """The hash function of the engine that serves such a model."""
    topology = preset.topology
    size = topology.hash_block_size or math.gcd(*(g.block_size for g in topology.groups))
    engine = EngineHash(HashAlgo(topology.hash_algo), topology.hash_seed, block_size=size)

    def hashes(tokens: Sequence[int], salt: str | None) -> Sequence[bytes]:
        return block_hashes(tokens, engine, ExtraKeys(cache_salt=salt))

    return hashes


class SimulatedEngine:
    """Serves requests one at a time and publishes each step's events as one message."""

    def __init__(self, preset: Preset, sink: EventSink) -> None:
        self.cache = ReferenceCache(
            preset.topology,
            preset.num_blocks,
            chain=engine_chain(preset),
            retention=preset.retention,
            max_step_tokens=preset.max_step_tokens,
        )
        self._sink = sink
        self._last_seq = -1
        self._removed_blocks = 0

    def serve(self, request: EngineRequest) -> EngineAnswer:
        """Run one request to its end; what it did is published when this returns."""
        try:
            run = self.cache.run(request.prompt, request.outputs, salt=request.salt)
        except KvbraidError as error:
            self._publish(self.cache.take_events())
            return self._answer(0, str(error))
        for batch in run.batches:
            self._publish(batch)
        return self._answer(run.hit)

    def _publish(self, events: Sequence[Event]) -> None:
        if events:
            self._removed_blocks += sum(isinstance(event, BlockRemoved) for event in events)
            self._last_seq = self._sink.publish(encode_batch(events, ts=time.time(), dp_rank=0))

    def _answer(self, hit: int, error: str | None = None) -> EngineAnswer:
        return EngineAnswer(
            hit=hit,
            last_seq=self._last_seq,
            cached_blocks=sum(key is not None for key in self.cache.pool.keys),
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
