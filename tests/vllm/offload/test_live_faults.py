"""Whatever happens to the disk, the engine serves on, and its answers are those without faults.

Host memory holds less than is asked for in turn, so each document comes from disk. Before it does,
records are cut, changed, swapped or removed, or the disk's calls fail, hang or find no room.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.vllm.offload.live_engines import OFFLOAD_MODELS, OURS, running
from tests.vllm.recovery.live_engines import TAIL, compare, tokens
from tests.vllm.soak import LIVE_TIMEOUT

NUM_DOCUMENTS: Final = 8
SLOT_BYTES: Final = 49_152
NUM_SLOTS: Final = 150
"""Host memory for four documents and a half."""
HEADER_BYTES: Final = 4_096


def is_whole(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > HEADER_BYTES


def cut(files: list[Path], random: Random) -> None:
    for each in files:
        with each.open("r+b") as file:
            file.truncate(random.randrange(each.stat().st_size))


def change(files: list[Path], random: Random, *, header: bool) -> None:
    for each in files:
        size = each.stat().st_size
        place = random.randrange(64) if header else random.randrange(HEADER_BYTES, size)
        with each.open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1]))


def swap(files: list[Path]) -> None:
    for one, other in zip(files[::2], files[1::2], strict=False):
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)


def remove(files: list[Path]) -> None:
    for each in files:
        each.unlink()


DAMAGE: Final[dict[str, Callable[[list[Path], Random], None]]] = {
    "short": cut,
    "header": lambda files, random: change(files, random, header=True),
    "payload": lambda files, random: change(files, random, header=False),
    "swapped": lambda files, _: swap(files),
    "vanished": lambda files, _: remove(files),
}
FAULTS: Final = ("eio", "enospc", "hang", "dead")


@pytest.mark.timeout(LIVE_TIMEOUT)
def test_a_disk_that_fails_costs_hits_and_no_answer(tmp_path: Path) -> None:
    which = OFFLOAD_MODELS[0]
    extra = {
        "host_bytes": NUM_SLOTS * SLOT_BYTES,
        "disk_directory": str(tmp_path),
        "disk_bytes": 1_000_000_000,
        "disk_load_seconds": 1.0,
        "rest_seconds": 0.5,
    }
    random, counts = Random(1), Counter[str]()
    documents = [tokens(random, 600) for _ in range(NUM_DOCUMENTS)]
    cached: dict[str, list[int]] = {}
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        starts = running(which, OURS, extra), running(which, None)
        ours, truth = pool.map(stack.enter_context, starts)

        def ask(name: str, document: list[int]) -> None:
            prompt = document + tokens(random, TAIL)
            right = truth.answer(prompt)
            said = ours.answer(prompt)
            compare(said, right, counts)
            cached.setdefault(name, []).append(said["cached"][0])

        for document in documents:
            ask("new", document)
        for document in documents:
            ask("sound", document)
        for name, damage in DAMAGE.items():
            for document in documents[:4]:
                files = [each for each in tmp_path.rglob("*-*-*") if is_whole(each)]
                damage(random.sample(files, len(files) // 4), random)
                ask(name, document)
            for document in documents[4:]:
                ask("after", document)
        for fault in FAULTS:
            ours.ask(fault=fault)
            for document in documents[:4]:
                ask(fault, document)
            ours.ask(fault=None)
            for document in documents[4:]:
                ask("after", document)
        last = ours.ask(counts=True)
    assert not any(cached["new"])
    assert all(cached["sound"])
    assert counts["mismatches"] == 0, counts
    assert last["seen"]["byte_mismatches"] == 0
    assert last["seen"]["unknown"] == 0
    assert last["drops"]["disk spoilt"] > 0
    assert last["seen"]["failed_items"] > 0
