"""The reference cache against real engines' recorded lives: same requests in, same events out.

Every message must be equal, event by event, evictions and their order included; hence every hit.
"""

import json
import lzma
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from kvbraid.events.model import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbraid.hashing import EngineHash, ExtraKeys, HashAlgo, block_hashes
from kvbraid.spec import GroupSpec, SpecKind, Topology

from tests.captures import LIVES, whole
from tests.reference.cache import HashChain, ReferenceCache

MAX_OPERATIONS: Final = int(os.environ.get("KVBRAID_MAX_OPERATIONS", "200"))

NAMES: Final = sorted({*LIVES} - {"qwen3_lora", "sched_c_mamba_align_fine"})
"""The reference cache has neither adapters nor partial hits."""


def messages(folder: Path) -> Iterator[list[dict[str, Any]]]:
    with lzma.open(folder / "events.bin.xz") as stream:
        while head := stream.read(4):
            frames = [stream.read(size_of(stream.read(4))) for _ in range(size_of(head))]
            yield msgspec.msgpack.decode(frames[-1])[1]


def size_of(head: bytes) -> int:
    return int.from_bytes(head, "big")


def engine_chain(config: dict[str, Any]) -> HashChain:
    engine = EngineHash(
        HashAlgo(config["hash_algo"]),
        config["PYTHONHASHSEED"],
        block_size=config["hash_block_size"],
    )
    return lambda tokens, salt: block_hashes(tokens, engine, ExtraKeys(cache_salt=salt))


def engine_cache(config: dict[str, Any]) -> ReferenceCache:
    groups = tuple(
        GroupSpec(
            kind=SpecKind(group["event_kind"]),
            block_size=group["block_size"],
            window=group["event_window"],
            chunk=group["chunk"],
            eagle=group.get("use_eagle", False),
        )
        for group in config["groups"]
    )
    return ReferenceCache(
        Topology(
            groups=groups,
            alignment=config["alignment"],
            hash_block_size=config["hash_block_size"],
        ),
        config["num_blocks"],
        chain=engine_chain(config),
        retention=config["retention"],
        max_step_tokens=config["max_num_batched_tokens"],
    )


def as_recorded(event: Event) -> dict[str, Any]:
    """The fields that the recorded engine writes, as decoded from its payload."""
    match event:
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}
        case BlockRemoved():
            hashes = list(event.block_hashes)
            return {"type": "BlockRemoved", "block_hashes": hashes, "group_idx": event.group_idx}
        case BlockStored():
            keys = event.extra_keys
            return {
                "type": "BlockStored",
                "block_hashes": list(event.block_hashes),
                "parent_block_hash": event.parent_block_hash,
                "token_ids": list(event.token_ids),
                "block_size": event.block_size,
                "extra_keys": keys and [key and list(key) for key in keys],
                "group_idx": event.group_idx,
                "kv_cache_spec_kind": event.kv_cache_spec_kind,
                "kv_cache_spec_sliding_window": event.kv_cache_spec_sliding_window,
            }


def without_absent(event: dict[str, Any]) -> dict[str, Any]:
    dropped = ("medium", "lora_id", "lora_name")
    kept = {name: value for name, value in event.items() if name not in dropped}
    return {name: value for name, value in kept.items() if value not in (None, [])}


@pytest.mark.parametrize("name", NAMES)
def test_a_real_engines_life_is_reproduced_event_by_event(name: str) -> None:
    folder = whole(name)
    config = json.loads((folder / "config.json").read_text())
    cache, recorded = engine_cache(config), messages(folder)
    with lzma.open(folder / "requests.jsonl.xz", "rt") as lines:
        for _, line in zip(range(MAX_OPERATIONS), lines, strict=False):
            operation = json.loads(line)
            if operation["op"] == "reset":
                assert cache.reset() == operation["ok"]
                continue
            run = cache.run(operation["prompt"], operation["output"], salt=operation["salt"])
            assert run.hit == operation["num_cached_tokens"], operation["i"]
            said = [[without_absent(as_recorded(e)) for e in batch] for batch in run.batches]
            span = islice(recorded, operation["ev_after"] - operation["ev_before"])
            assert said == [[without_absent(e) for e in batch] for batch in span], operation["i"]
    cache.check_integrity()
