"""Run a recorded engine's life again over any cache: same requests in, same messages out.

What the cache is told comes from the capture's `config.json` and `requests.jsonl` alone; its
events are compared with the recorded payloads, byte for byte after the time.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
from kvbraid.cache.config import CacheConfig
from kvbraid.cache.retention import Dense, Interval
from kvbraid.hashing import ExtraKeys, HashAlgo, Lora
from kvbraid.sim.captures.read import Lookup, described_topology, read_capture
from kvbraid.sim.one_by_one import OneByOne
from kvbraid.spec_mapping import profile_from_mapping, topology_from_mapping

TIME: Final = slice(1, 10)  # A MessagePack float64 after the marker of the batch.
RANK: Final = 0


def cache_config(recorded: dict[str, Any]) -> CacheConfig:
    """What the engine of a capture configures its cache with."""
    retention = recorded["retention"]
    described = described_topology(recorded)
    engine = profile_from_mapping(described)
    return CacheConfig(
        topology=replace(
            topology_from_mapping(described), alignment=recorded["scheduler_block_size"]
        ),
        dialect=engine.dialect,
        hash_algo=engine.hash_algo or HashAlgo.SHA256,
        hash_seed=engine.hash_seed,
        num_blocks=recorded["num_blocks"],
        events=True,
        retention=Dense() if retention is None else Interval(retention),
        max_model_len=recorded["max_model_len"],
        max_in_flight_tokens=recorded["max_num_batched_tokens"],
    )


def extra_keys(lookup: Lookup) -> ExtraKeys:
    lora = Lora(lookup.lora, lookup.lora_path or "") if lookup.lora else None
    return ExtraKeys(lora=lora, cache_salt=lookup.cache_salt)


def without_time(payload: bytes) -> bytes:
    assert payload[TIME][:1] == b"\xcb"
    return payload[: TIME.start] + payload[TIME.stop :]


def events_of(payload: bytes) -> Any:  # noqa: ANN401 - whatever was written
    return msgspec.msgpack.decode(payload)[1]


def assert_equal(payloads: list[bytes], recorded: list[bytes], what: str) -> None:
    """Batches first, then events, so that a difference is readable, then the bytes."""
    if list(map(without_time, payloads)) == list(map(without_time, recorded)):
        return
    assert list(map(events_of, payloads)) == list(map(events_of, recorded)), what
    raise AssertionError(f"{what}: the same events in other bytes")


def assert_is_lived_again(
    folder: Path, make: Callable[[CacheConfig], Any], *, most: int | None = None
) -> int:
    """Run every operation, or the first; return the number of messages, all of them equal."""
    recorded = json.loads((folder / "config.json").read_text())
    capture, config, payloads = read_capture(folder), cache_config(recorded), list[bytes]()
    cache, max_step_tokens = make(config), recorded["max_num_batched_tokens"]
    scheduler = OneByOne(
        cache,
        max_step_tokens=max_step_tokens,
        publish=lambda events: payloads.append(events.to_bytes(0.0, RANK)),
    )
    adapters, position = sorted(capture.loras), 0
    for operation in capture.operations[:most]:
        if not isinstance(operation, Lookup):
            assert cache.reset()
            continue
        what = f"{folder.name}, request {operation.index}"
        hit = scheduler.run(
            operation.token_ids,
            operation.outputs,
            extra_keys(operation),
            lora_id=adapters.index(operation.lora) + 1 if operation.lora else None,
        )
        assert hit == operation.reused_tokens, what
        published = [message.payload for message in capture.messages[position:][: len(payloads)]]
        assert_equal(payloads, published, what)
        position += len(payloads)
        payloads.clear()
    assert position == len(capture.messages) or most is not None
    return position
