"""Our cache with the interface of the cache benchmarks."""

import os
from collections.abc import Sequence
from typing import TypeAlias

from kvbraid.cache import (
    ByValue,
    CacheConfig,
    CacheManager,
    Dense,
    Interval,
    Match,
    Need,
    Retention,
)
from kvbraid.ids import BlockId
from kvbraid.spec import EngineDialect, Topology

from bench.cache.side import Groups

Request: TypeAlias = int


class Ours:
    """A `kvbraid.cache.CacheManager` in the rival's dialect: it answers as the rival does."""

    def __init__(
        self,
        groups: Groups,
        num_blocks: int,
        *,
        events: bool = False,
        retention: int | None = None,
    ) -> None:
        self.manager = CacheManager(
            CacheConfig(
                topology=Topology(groups=groups),
                dialect=EngineDialect.VLLM,
                hash_seed=os.environ.get("PYTHONHASHSEED"),
                num_blocks=num_blocks,
                events=events,
                retention=self._retention(retention),
            )
        )

    @staticmethod
    def _retention(interval: int | None) -> Retention:
        return Dense() if interval is None else Interval(interval)

    def add(self, tokens: list[int]) -> Request:
        return self.manager.add(tokens)

    def match(self, request: Request) -> Match:
        return Match(*self.manager.match(request))  # The rival's side also makes a Match.

    def allocate(self, request: Request, num_new_tokens: int, hit: Match | None = None) -> None:
        if hit is None:
            need = Need(request=request, num_new_tokens=num_new_tokens)
        else:
            need = Need(
                request=request,
                num_new_tokens=num_new_tokens,
                num_hit_tokens=hit.num_tokens,
                junction=hit.junction,
            )
        assert self.manager.allocate([need]).num_fit == 1

    def decode(self, requests: Sequence[Request], tokens: Sequence[int]) -> None:
        assert self.manager.decode(requests, tokens).num_fit == len(requests)

    def release(self, request: Request) -> None:
        self.manager.take_work()  # The step has run: what it registered stays findable.
        self.manager.release([request])

    def start_step(self) -> None:
        self.manager.start_step()

    def take_events(self) -> object:
        return self.manager.take_events().to_bytes(0.0, 0)

    def encoded(self, events: object) -> bytes:
        assert isinstance(events, bytes)
        return events

    def blocks(self, request: Request) -> Sequence[Sequence[int]]:
        return self.manager.blocks(request)

    def forget(self, block_ids: Sequence[int]) -> None:
        self.manager.pool.forget([BlockId(block_id) for block_id in block_ids])

    def reset(self) -> None:
        assert self.manager.reset()

    def num_free_blocks(self) -> int:
        return self.manager.pool.num_free


class OursByValue(Ours):
    """Our cache under retention by value; `retention` is the interval between checkpoints."""

    @staticmethod
    def _retention(interval: int | None) -> Retention:
        return ByValue(interval=interval or 0)


class OursWithStructs(Ours):
    """Our cache, with events as Python structures."""

    def take_events(self) -> object:
        return self.manager.take_events().structs()
