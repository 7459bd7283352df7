"""How fast are records stored and loaded, with a checksum, by four threads?

Both sides move 32 records of 4 MiB between one arena and files of one file system, around the page
cache. The rival is vLLM's file tier: its C code on as many threads, without a checksum.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.harness.measure import Row, Sample, Side, Target
from bench.transfer.records import (
    NUM_RECORDS,
    NUM_THREADS,
    RECORD_BYTES,
    arena,
    directory,
    loads,
    stores,
)

PRELOAD = "vllm.v1.kv_offload.tiering.fs.io"
MB = NUM_RECORDS * RECORD_BYTES / 1e6


def rate(call: Callable[[], object]) -> float:
    """Return the megabytes a second of a call that moves all records."""
    begin = time.perf_counter()
    call()
    return MB / (time.perf_counter() - begin)


def theirs(*, are_loads: bool) -> Side:
    """Do the same by the rival's calls, a share of the records for each thread."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        from vllm.v1.kv_offload.tiering.fs.io import batch_load_block, batch_store_block

        with directory() as path, ThreadPoolExecutor(NUM_THREADS) as threads:
            memory = arena(filled=True)[0].obj
            names = [str(path / f"{number}.bin") for number in range(NUM_RECORDS)]

            def call(batch: object, thread: int) -> None:
                mine = range(thread, NUM_RECORDS, NUM_THREADS)
                offsets = [number * RECORD_BYTES for number in mine]
                batch([names[n] for n in mine], memoryview(memory), offsets, RECORD_BYTES)  # type: ignore[operator]

            def run(batch: object) -> float:
                shares = range(NUM_THREADS)
                return rate(lambda: list(threads.map(call, [batch] * NUM_THREADS, shares)))

            def sample() -> float:
                for file in path.iterdir():
                    file.unlink()
                return run(batch_store_block)

            sample()
            yield (lambda: run(batch_load_block)) if are_loads else sample

    return side


ROWS = (
    Row(
        name="disk_store",
        question="store 32 records of 4 MiB by 4 threads, ours with a checksum",
        unit="MB/s",
        ours=stores(rate),
        rival=theirs(are_loads=False),
        target=Target(ratio=0.85),
        larger_is_better=True,
    ),
    Row(
        name="disk_load",
        question="load and verify 32 records of 4 MiB by 4 threads; the rival's are not verified",
        unit="MB/s",
        ours=loads(rate),
        rival=theirs(are_loads=True),
        target=Target(ratio=0.85),
        larger_is_better=True,
    ),
)
