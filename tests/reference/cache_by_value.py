"""`CacheModel` under retention by value: which boundaries of a request become checkpoints, and
how a pool works if checkpoints keep some of its blocks.

The model is told no hint and learns no length at which requests branch off: both are heuristics,
which are tested by what comes of them. Whoever compares it plays lives without either.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvbraid.cache import ByValue, CacheConfig, Need

from tests.reference.cache_groups import Ring
from tests.reference.cache_memory import Request
from tests.reference.cache_model import CacheModel
from tests.reference.cache_pool import OutOfBlocksError, Pool
from tests.reference.cache_retention import reused_boundaries
from tests.reference.checkpoint_model import Checkpoints, Ending, Geometry, Origin


@dataclass
class Progress:
    """What will have ended with a request, and up to where it was looked for checkpoints."""

    how: Ending = Ending.START
    num_checked: int = 0


@dataclass
class KeepingPool(Pool):
    """A block that a checkpoint needs may be free, but does not wait in the queue."""

    checkpoints: Checkpoints | None = None
    progress: dict[int, Progress] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, object]) -> "KeepingPool":
        twin = super().__deepcopy__(memo)
        assert isinstance(twin, KeepingPool)
        memo[id(self)] = twin
        twin.checkpoints = copy.deepcopy(self.checkpoints, memo)
        twin.progress = copy.deepcopy(self.progress, memo)
        return twin

    @property
    def num_free(self) -> int:
        return self.num_blocks - 1 - len(self.references)

    def is_free(self, block: int) -> bool:
        return bool(block) and block not in self.references

    def is_kept(self, block: int) -> bool:
        assert self.checkpoints is not None
        return self.checkpoints.is_kept(block)

    def take(self, count: int) -> list[int]:
        """Checkpoints are let go when nothing else is free."""
        assert self.checkpoints is not None
        if count > self.num_free:
            raise OutOfBlocksError
        taken: list[int] = []
        while len(taken) < count:
            while self.checkpoints.is_due():
                self.checkpoints.let_go()
            taken += super().take(1)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        assert self.checkpoints is not None
        waiting = set(self.free)
        super().release(blocks)
        for block in set(self.free) - waiting:
            self.checkpoints.since[block] = self.checkpoints.clock * (block in self.keys)
        self.free = [block for block in self.free if not self.is_kept(block)]

    def forget(self, block: int) -> None:
        assert self.checkpoints is not None
        if block in self.keys:
            self.checkpoints.forget(block)
        super().forget(block)

    def move_keys(self, source: int, destination: int) -> None:
        assert self.checkpoints is not None
        super().move_keys(source, destination)
        self.checkpoints.move(source, destination)

    def check(self) -> None:
        kept = [b for b in range(1, self.num_blocks) if self.is_kept(b)]
        free = [*self.free, *(block for block in kept if self.is_free(block))]
        assert sorted([*free, *self.references]) == list(range(1, self.num_blocks))
        assert all(block in self.keys for block in kept)


class ByValueModel(CacheModel):
    """See `CacheModel`; `checkpoints` is what this retention adds."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        assert isinstance(config.retention, ByValue)
        cached = {
            group.index: (group.spec, self.eagle[group.index])
            for group in self.memory.groups
            if config.caching and self._is_shared(group)
        }
        pool = KeepingPool(config.num_blocks, config.caching)
        geometry = Geometry(cached, self.hash_block, self.hit_alignment)
        pool.checkpoints = Checkpoints(geometry, config.retention, pool)
        self.memory.pool = pool

    @property
    def _pool(self) -> KeepingPool:
        assert isinstance(self.memory.pool, KeepingPool)
        return self.memory.pool

    @property
    def checkpoints(self) -> Checkpoints:
        assert self._pool.checkpoints is not None
        return self._pool.checkpoints

    def _progress(self, request: int) -> Progress:
        return self._pool.progress.setdefault(request, Progress())

    def _settled(self, num_tokens: int) -> int:
        """The last boundary at which a hit can be when so many tokens are registered."""
        late = max(self.config.topology.hash_lookahead, self.config.num_reprefillable_tokens)
        boundary = max(0, num_tokens - late) // self.hit_alignment * self.hit_alignment
        return max(0, boundary - self.hit_alignment * self.uses_eagle)

    def _expected(self, request: Request) -> Iterator[tuple[int, Origin]]:
        """Where requests are expected to resume."""
        if interval := self.checkpoints.interval:
            ends = range(interval, len(request.tokens) + 1, interval)
            yield from ((end, Origin.INTERVAL) for end in ends)
        reused = reused_boundaries(
            request.num_prompt_tokens, self.alignment, eagle=self.uses_eagle
        )
        for at in [*reused, *[request.junction] * (request.junction > 0)]:
            origin = Origin.JUNCTION if at == request.junction else Origin.END
            yield at // self.hit_alignment * self.hit_alignment, origin

    # ---- what happens --------------------------------------------------------------------

    def _resumed(self, request: Request, need: Need) -> None:
        progress = self._progress(need.request)
        if need.num_hit_tokens:
            at = need.num_hit_tokens + self.config.topology.replay_tokens
            progress.how = self.checkpoints.resume(tuple(request.hashes), progress.how, at)
            progress.num_checked = at

    def commit(self, request: int, num_tokens: int, *, start: int | None = None) -> None:
        super().commit(request, num_tokens, start=start)
        known, progress = self.memory.requests[request], self._progress(request)
        checked, settled = progress.num_checked, self._settled(num_tokens)
        if self.checkpoints.geometry.needs_no_tail or settled <= checked:
            return
        progress.num_checked = settled
        origins: dict[int, Origin] = {}
        for end, origin in self._expected(known):
            if checked < end <= settled:
                origins.setdefault(end, origin)
        for end, origin in sorted(origins.items(), key=lambda pair: pair[0]):
            self.checkpoints.keep(tuple(known.hashes), progress.how, end, origin)

    def rewind(self, request: int, num_tokens: int) -> None:
        super().rewind(request, num_tokens)
        progress = self._progress(request)
        progress.num_checked = min(progress.num_checked, num_tokens)

    def _end_of(self, request: int) -> int:
        known = self.memory.requests[request]
        return self._settled(min(known.num_computed_tokens, len(known.tokens)))

    def _ended(self, request: int) -> None:
        known, progress = self.memory.requests[request], self._progress(request)
        end = self._end_of(request)
        self.checkpoints.end(tuple(known.hashes), progress.how, end)
        progress.num_checked = 0

    def _give_back(self, requests: Sequence[int]) -> None:
        for request in requests:
            self._ended(request)
            tables = self.memory.requests[request].tables
            for group, table in zip(self.memory.groups, tables, strict=True):
                if group.spec.kind.is_full and not isinstance(group, Ring):
                    self._free_worthless(table.blocks)
            super()._give_back([request])

    def _free_worthless(self, blocks: list[int]) -> None:
        """The last blocks lead to no checkpoint: they are the next victims."""
        count = len(blocks)
        while count and not self._pool.is_kept(blocks[count - 1]):
            count -= 1
        worthless = blocks[count:]
        del blocks[count:]
        self._pool.release(worthless)
        freed = [block for block in worthless if block in self._pool.free]
        others = [block for block in self._pool.free if block not in freed]
        self._pool.free = freed[::-1] + others
        self.checkpoints.since.update(dict.fromkeys(freed, 0))

    def pop_blocks(self, request: int) -> list[int]:
        self._leave_step([request], step_failed=False)
        self._ended(request)
        return super().pop_blocks(request)

    def reset(self) -> bool:
        while not self.memory.pool.references and self.checkpoints.queue():
            self.checkpoints.let_go()
        return super().reset()
