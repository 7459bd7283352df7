"""Random lives of two engines on one small directory whose files are damaged."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.vllm import drop_in_pair  # noqa: F401 - imports vLLM with its warnings off.

if True:  # Only afterwards.
    from tests.vllm.offload.stock_tiers import RECORD_BYTES, StockTiers, content, files

NUM_BLOCKS = 24
NUM_STEPS = 60


def damage(random: Random, path: Path) -> None:
    """Do to a file what a bad disk does, or somebody who evicts."""
    data = bytearray(path.read_bytes())
    what = random.randrange(3)
    if what == 0:
        path.unlink()
    elif what == 1:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
    else:
        path.write_bytes(data[: random.randrange(len(data))])


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_loaded_is_what_was_stored(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    engines = [
        StockTiers(
            tmp_path, tells=True, disk_bytes=16 * RECORD_BYTES, disk_scan_seconds=0.001,
            rest_seconds=0.001,
        )
        for _ in range(2)
    ]  # fmt: skip
    num_loaded = 0
    for _ in range(NUM_STEPS):
        engine = random.choice(engines)
        numbers = random.sample(range(NUM_BLOCKS), random.randint(1, 4))
        match random.randrange(4):
            case 0 | 1:
                engine.store(*numbers)
            case 2:
                engine.forget()
                loaded = engine.load(*numbers)
                assert loaded == {number: content(number) for number in loaded}
                num_loaded += len(loaded)
            case _:
                own = sorted(files(tmp_path).values())
                for path in random.sample(own, min(len(own), 2)):
                    with suppress(FileNotFoundError):  # An engine may evict it meanwhile.
                        damage(random, path)
    assert num_loaded > 0
    for engine in engines:
        engine.close()
