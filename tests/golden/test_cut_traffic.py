"""Recorded vLLM traffic, cut short: a pod that learns its groups never says `exact` and is wrong.

A pod is asked while it knows little: after each message of the first requests, and as if no prompt
had been longer than a few blocks, so that groups with larger blocks have told nothing. What is
right is what the same pod answers whose groups are configured (`test_real_traffic` holds that to
what the engine did).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest
from kvbraid.events.model import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbraid.events.wire import decode, encode_batch
from kvbraid.fleet.index import FleetIndex
from kvbraid.fleet.request import Request
from kvbraid.hashing import EngineHash, ExtraKeys, Lora, block_keys
from kvbraid.ids import PodId
from kvbraid.sim.captures.read import Capture, Lookup, read_capture
from kvbraid.spec import Topology

from tests.captures import FIXTURES, captures_in

POD: Final = PodId("pod")
FIRST_REQUESTS: Final = (1, 2, 3, 5, 10)
LONGEST_PROMPTS: Final = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384)

DRAFT_HEAD: Final = "sched_h_eagle_dense"
"""No event tells that a draft head reads a group, so such a pod's groups have to be configured."""

FOLDERS: Final = [folder for folder in captures_in(FIXTURES) if folder.name != DRAFT_HEAD]


@lru_cache(maxsize=1)
def capture_at(folder: Path) -> Capture:
    return read_capture(folder)


def lookups(capture: Capture) -> list[Lookup]:
    return [each for each in capture.operations if isinstance(each, Lookup)]


TOLD: Final[dict[str, Callable[[Topology], Topology]]] = {
    "all but the groups": lambda topology: replace(topology, groups=()),
    "nothing": lambda _: Topology(groups=()),
}
"""What the operator says of the topology of the pod that learns its groups."""


class Twins:
    """Two pods with the same events: one whose groups are configured, one that learns them."""

    def __init__(self, capture: Capture, told: str) -> None:
        self._indices = [FleetIndex() for _ in range(2)]
        topologies = (capture.topology, TOLD[told](capture.topology))
        for index, topology in zip(self._indices, topologies, strict=True):
            index.register(
                POD, model="m", topology=topology, engine=capture.engine, loras=capture.loras
            )

    def apply(self, payload: bytes) -> None:
        for index in self._indices:
            index.apply(POD, payload)

    def wrong(self, lookup: Lookup, lengths: Iterable[int]) -> Iterator[str]:
        """The lengths of the prompt for which the learned bounds leave the truth out."""
        for length in sorted({*lengths, len(lookup.token_ids)}):
            request = Request(
                model="m",
                token_ids=lookup.token_ids[:length],
                cache_salt=lookup.cache_salt,
                lora=lookup.lora,
            )
            right, found = (index.score(request).rows[0] for index in self._indices)
            if found.lower > right.upper or found.upper < right.lower:
                yield f"{length} tokens: {found.lower} to {found.upper}, not {right.lower}"


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("requests", FIRST_REQUESTS)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_after_the_first_requests_nothing_is_said_that_is_wrong(
    folder: Path, requests: int, told: str
) -> None:
    capture = capture_at(folder)
    asked = lookups(capture)[: requests + 1]
    twins = Twins(capture, told)
    for message in capture.messages[: asked[-1].messages_seen]:
        twins.apply(message.payload)
    for lookup in asked:
        whole = len(lookup.token_ids)
        lengths = {*range(17, whole, 48), *range(33, min(whole, 400), 16)}
        assert not [*twins.wrong(lookup, lengths)]


# --- prompts cut short ------------------------------------------------------------------------


def ends_of(capture: Capture) -> dict[int, int]:
    """How many tokens each hash stands for, by the engine's hash function."""
    algo, unit = capture.engine.hash_algo, capture.topology.hash_block_size
    assert algo is not None
    assert unit is not None
    function = EngineHash(algo, capture.engine.hash_seed, unit)
    ends: dict[int, int] = {}
    for lookup in lookups(capture):
        lora = Lora(lookup.lora, lookup.lora_path or "") if lookup.lora else None
        extra = ExtraKeys(lora=lora, cache_salt=lookup.cache_salt)
        chain = block_keys([*lookup.token_ids, *lookup.outputs], function, extra)
        ends |= {key: unit * place for place, key in enumerate(chain, start=1)}
    return ends


def key_of(block_hash: int | bytes) -> int:
    whole = block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[-8:], "big")
    return whole % 2**64


def cut(event: Event, ends: dict[int, int], longest: int) -> Event | None:
    """What the event would have been about if no prompt had been longer; None: about nothing."""
    if isinstance(event, AllBlocksCleared):
        return event
    hashes = event.block_hashes
    if isinstance(event, BlockRemoved):
        left = tuple(each for each in hashes if ends[key_of(each)] <= longest)
        return replace(event, block_hashes=left) if left else None
    assert isinstance(event, BlockStored)
    parent = event.parent_block_hash
    start = 0 if parent is None else ends[key_of(parent)]
    assert event.token_ids is not None
    blocks = min(len(event.token_ids), longest - start) // event.block_size
    end = start + blocks * event.block_size
    kept = [at for at, each in enumerate(hashes) if ends[key_of(each)] <= end]
    keys = event.extra_keys
    return (
        None
        if blocks <= 0
        else replace(
            event,
            token_ids=tuple(event.token_ids[: end - start]),
            block_hashes=tuple(hashes[at] for at in kept),
            extra_keys=tuple(keys[at] for at in kept) if keys else keys,
        )
    )


def cut_batches(capture: Capture, asked: Sequence[Lookup], longest: int) -> Iterator[bytes]:
    ends = ends_of(capture)
    for message in capture.messages[: asked[-1].messages_seen]:
        events = [cut(event, ends, longest) for event in decode(message.payload).events]
        yield encode_batch([event for event in events if event is not None])


SEQUENTIAL: Final = [folder for folder in FOLDERS if capture_at(folder).concurrency == 1]
"""Those that record every token: all hashes are of prompts, or of what was generated."""


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("longest", LONGEST_PROMPTS)
@pytest.mark.parametrize("folder", SEQUENTIAL, ids=lambda folder: folder.name)
def test_while_prompts_are_short_nothing_is_said_that_is_wrong(
    folder: Path, longest: int, told: str
) -> None:
    capture = capture_at(folder)
    asked = lookups(capture)[:11]
    twins = Twins(capture, told)
    for payload in cut_batches(capture, asked, longest):
        twins.apply(payload)
        for lookup in asked:
            whole = min(len(lookup.token_ids), longest + 40)
            assert not [*twins.wrong(lookup, range(17, whole, 16))]
