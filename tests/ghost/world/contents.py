"""What the blocks of a small world hold if all goes well."""

from functools import cache
from typing import Final

from kvbraid.hashing import EngineHash, block_hashes

from tests.ghost.device import Device
from tests.ghost.truth import Life
from tests.ghost.world.settings import BLOCK, Setting

_known: Final[dict[int, list[list[int]]]] = {}


def expected_of(device: Device, life: Life) -> list[list[int]]:
    known = _known.get(id(life))  # The lives of a setting are never dropped.
    if known is None:
        known = _known[id(life)] = device.expected(life)
    return known


def values_of(device: Device, life: Life, group: int, position: int, end: int) -> list[int]:
    """What a block holds of the first `end` tokens of a request."""
    values = expected_of(device, life)[group]
    if device.is_state[group]:
        return [values[end - 1]]
    return values[position * BLOCK : min(end, (position + 1) * BLOCK)]


@cache
def digests_of(setting: Setting, life: Life) -> list[bytes]:
    engine = EngineHash(seed=setting.config().hash_seed, block_size=BLOCK)
    return list(block_hashes(life.tokens, engine))


@cache
def contents_of(setting: Setting) -> dict[tuple[int, bytes], list[int]]:
    """What a block holds that is found by a group and a hash."""
    config = setting.config()
    device = Device(config.topology.groups, 0)
    contents = {}
    for life in setting.lives():
        for position, digest in enumerate(digests_of(setting, life)):
            for group in range(len(config.topology.groups)):
                end = (position + 1) * BLOCK
                contents[group, digest] = values_of(device, life, group, position, end)
    return contents
