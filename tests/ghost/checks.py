"""What is checked after each simulated step, beyond what comes out of it.

- The published events, replayed, give exactly what the cache finds.
- What a hash finds is what the hash says, and so is what a tier offers, unless a fault that nobody
  has reported yet has left garbage there.
"""

from collections.abc import Callable, Container, Iterable, Sequence

from kvbraid.cache import CacheManager
from kvbraid.cache.events import Events
from kvbraid.events.model import AllBlocksCleared, BlockStored
from kvbraid.hashing import EngineHash, block_hashes
from kvbraid.ids import BlockId
from kvbraid.transfer.keys import BlockKey

from tests.ghost.device import Device, fault_of
from tests.ghost.faults import Fault
from tests.ghost.truth import Life


class BadOutcomeError(AssertionError):
    """Something that must never happen has happened."""


class Announced(dict[tuple[str | int | None, ...], int]):
    """How many copies of each block events say that there are: of one taken back, no entry."""

    def count(self, place: tuple[str | int | None, ...], step: int) -> None:
        self[place] = self.get(place, 0) + step
        if not self[place]:
            del self[place]


class Findable:
    """What the cache of one engine finds, and what the events say that it finds."""

    def __init__(self, cache: CacheManager, device: Device, faults: Sequence[Fault]) -> None:
        self.cache = cache
        self.device = device
        self.faults = faults
        topology = cache.config.topology
        unit = topology.hash_block_size or topology.groups[0].block_size
        self._hash = EngineHash(seed=cache.config.hash_seed, block_size=unit)
        self._ends: dict[bytes, tuple[int, list[list[int]]]] = {}
        self._announced = Announced()
        self._compared: dict[tuple[int, bytes], list[BlockId]] | None = None
        self._seen: dict[int, tuple[int, bytes]] = {}
        self.publish: Callable[[Events], object] = lambda _: None

    def know(self, life: Life, expected: list[list[int]]) -> None:
        """Learn the hashes of all that a request will ever have."""
        for index, digest in enumerate(block_hashes(life.tokens, self._hash, life.extra)):
            self._ends[digest] = ((index + 1) * self._hash.block_size, expected)

    def replay(self, events: Events) -> None:
        self.publish(events)
        self._compared = None
        for event in events.structs():
            if isinstance(event, AllBlocksCleared):
                self._announced.clear()
                continue
            assert event.group_idx is not None
            step = 1 if isinstance(event, BlockStored) else -1
            for block_hash in event.block_hashes:
                self._announced.count((event.group_idx, block_hash), step)

    def check(self, unwritten: Container[int]) -> None:
        """Check every block that a hash finds, except those that steps in flight write."""
        cached = self.cache.debug.cached()
        if cached != self._compared:
            self._compared = cached
            self._check_announced(cached)
        for (group, digest), blocks in cached.items():
            known = self._ends.get(digest)
            if known is None:
                continue  # The tokens themselves are garbage; nobody else has such a prefix.
            end, expected = known
            for block in blocks:
                stamp = (self.device.writes[block], digest)
                if block in unwritten or self._seen.get(block) == stamp:
                    continue
                values = self._values(group, end, expected)
                cell = self.device.cells[block][: len(values)]
                if cell == values:
                    self._seen[block] = stamp
                elif wrong := self.unexcused(cell, values):
                    raise BadOutcomeError(
                        f"block {block} is found as {end} tokens of group {group}, but holds "
                        f"{cell} instead of {values}: {wrong}"
                    )

    def _check_announced(self, cached: dict[tuple[int, bytes], list[BlockId]]) -> None:
        found = {(g, int.from_bytes(d[-8:], "big")): len(c) for (g, d), c in cached.items()}
        if found != self._announced:
            raise BadOutcomeError(f"events say {self._announced}, but the cache finds {found}")

    def is_right(self, key: BlockKey, cell: Sequence[int]) -> bool:
        """Whether a tier has what a key says. It must, unless an unknown fault left garbage."""
        known = self._ends.get(key.block_hash)
        values = self._values(key.group, *known) if known else []
        if wrong := self.unexcused(cell, values):
            raise BadOutcomeError(f"a tier has {cell} for {values} of {key}: {wrong}")
        return all(found == value for found, value in zip(cell, values, strict=False))

    def _values(self, group: int, end: int, expected: list[list[int]]) -> list[int]:
        if self.device.is_state[group]:
            return [expected[group][end - 1]]
        size = self.device.groups[group].block_size
        return expected[group][(end - 1) // size * size : end]

    def unexcused(self, cell: Iterable[int], values: Iterable[int]) -> str:
        """Why a wrong content must not be there; empty if an unknown fault left all of it."""
        for found, value in zip(cell, values, strict=False):
            if found == value:
                continue
            number = fault_of(found)
            if number is None:
                return f"{found} was left by no fault"
            if self.faults[number].is_reported:
                return f"fault {number} was reported"
        return ""
