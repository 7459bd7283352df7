"""One group of an engine's manager, with its block tables and how far each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from kvbraid.cache import CacheManager, Cursor
from kvbraid.integrations.vllm.cache.coordinator import GroupView
from kvbraid.integrations.vllm.cache.requests import Requests
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId

from .blocks import PoolBlock
from .pool import BlockPool


class Group(GroupView):
    """A group as the scheduler reads it, and what tests read beside."""

    def __init__(
        self, view: GroupView, cache: CacheManager, requests: Requests, pool: BlockPool
    ) -> None:
        index = view.kv_cache_group_id
        cap = view.max_admission_blocks_per_request
        super().__init__(index, view.kv_cache_spec, view.block_size, cap)
        self._cache = cache
        self._requests = requests
        self._pool = pool
        self.req_to_blocks = Tables(cache, requests, pool, index)

    @property
    def num_cached_block(self) -> dict[str, int]:
        """By request, the leading blocks that need no registering, once there are any."""
        counts = {name: cursor.num_registered for name, cursor in self._cursors().items()}
        return {name: count for name, count in counts.items() if count is not None}

    @property
    def last_state_block_idx(self) -> dict[str, int]:
        """By request, the position of the state that the step before wrote."""
        places = {name: cursor.last_state for name, cursor in self._cursors().items()}
        return {name: place for name, place in places.items() if place is not None}

    @property
    def cached_blocks_this_step(self) -> set[BlockHashWithGroupId]:
        """What states are found by that are only written in this step."""
        fresh = self._cache.debug.fresh_states()
        return {self._pool.spelled(*key) for key in fresh if key[0] == self.kv_cache_group_id}

    def _cursors(self) -> dict[str, Cursor]:
        return {
            name: self._cache.debug.cursors(known.number)[self.kv_cache_group_id]
            for name, known in self._requests._known.items()
        }


class Tables:
    """The block tables of one group by request."""

    def __init__(
        self, cache: CacheManager, requests: Requests, pool: BlockPool, index: int
    ) -> None:
        self._cache = cache
        self._requests = requests
        self._pool = pool
        self._index = index

    def __contains__(self, request_id: str) -> bool:
        return self._requests.find(request_id) is not None

    def __getitem__(self, request_id: str) -> Table:
        return Table(self, request_id)

    def read(self, request_id: str) -> list[PoolBlock] | None:
        """Return a request's blocks; None for one that is gone."""
        number = self._requests.find(request_id)
        if number is None:
            return None
        return [self._pool.block(block_id) for block_id in self._cache.blocks(number)[self._index]]


class Table(Sequence[PoolBlock]):
    """A block table: what it is now, and what it last was once the request is gone."""

    def __init__(self, tables: Tables, request_id: str) -> None:
        self._tables = tables
        self._request_id = request_id
        self._last: list[PoolBlock] = []
        self._blocks()

    def _blocks(self) -> list[PoolBlock]:
        blocks = self._tables.read(self._request_id)
        if blocks is not None:
            self._last = blocks
        return self._last

    def __len__(self) -> int:
        return len(self._blocks())

    @overload
    def __getitem__(self, index: int) -> PoolBlock: ...
    @overload
    def __getitem__(self, index: slice) -> list[PoolBlock]: ...
    def __getitem__(self, index: int | slice) -> PoolBlock | list[PoolBlock]:
        return self._blocks()[index]

    def __eq__(self, other: object) -> bool:
        return self._blocks() == (other._blocks() if isinstance(other, Table) else other)

    __hash__ = None  # type: ignore[assignment] # Equal by what it holds.
