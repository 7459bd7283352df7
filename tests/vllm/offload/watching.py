"""What blocks hold before and after they move, read without the code that moves them.

Invariant: nothing here trusts an address of ours. A block's bytes are those that vLLM's own
strides say, without padding. Imported by the engine's process alone, where copies end as they
begin.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from math import prod
from random import Random
from typing import Any

import torch
from kvbraid.transfer.jobs import Item, Job, JobResult, Kind
from kvbraid.transfer.status import Status
from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.kv_cache_interface import MambaSpec

from tests.vllm.engine_tamper import Tamper

LOUDER = 8


class Watch:
    """Stands before a worker; `counts` is what it saw.

    `records` has what each record must hold, by its key. `corrupt` is a group of which one block
    of the next load is overwritten once it is loaded, and which one.
    """

    def __init__(self, engine: Any, worker: Any, dtype: torch.dtype) -> None:  # noqa: ANN401
        self._tamper = Tamper(engine)
        self._config = engine.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
        self._dtype = dtype
        self._slots: dict[int, str | None] = {}
        self._promotions: dict[int, tuple[Item, ...]] = {}
        self._random = Random(0)
        self.records: dict[bytes, str | None] = {}
        self.corrupt: tuple[int, str] | None = None
        self.counts: Counter[str] = Counter()
        self._submit, self._poll = worker.submit, worker.poll
        worker.submit, worker.poll = self.submit, self.poll

    def _bytes(self, group: int, block: int) -> list[torch.Tensor]:
        spec = self._config.kv_cache_groups[group].kv_cache_spec
        used = spec.page_size_bytes
        if isinstance(spec, MambaSpec):
            shapes = zip(spec.shapes, spec.dtypes, strict=True)
            used = sum(prod(shape) * get_dtype_size(dtype) for shape, dtype in shapes)
        elif spec.page_size_padded is not None:
            used = spec.real_page_size_bytes
        return [page[:used] for page in self._tamper._pages(group, block)]

    def _digest(self, group: int, block: int) -> str:
        digest = blake2b(digest_size=16)
        for page in self._bytes(group, block):
            digest.update(page.numpy().tobytes())
        return digest.hexdigest()

    def submit(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            before = [self._before(job.kind, item) for item in job.items]
            self._submit([job])
            self.counts[f"{job.kind}_items"] += len(job.items)
            for item, expected in zip(job.items, before, strict=True):
                self._after(job.kind, item, expected)
            if job.kind is Kind.PROMOTE:
                self._promotions[job.number] = job.items
            if job.kind is Kind.LOAD and self.corrupt is not None:
                self._spoil(job.items)

    def _before(self, kind: Kind, item: Item) -> str | None:
        if kind in {Kind.STORE, Kind.COPY}:
            return self._digest(item.group, item.source)
        return self._slots.get(item.source) if kind in {Kind.LOAD, Kind.WRITE} else None

    def _after(self, kind: Kind, item: Item, expected: str | None) -> None:
        if kind is Kind.STORE:
            self._slots[item.target] = expected
        elif kind is Kind.WRITE and item.key is not None:
            self.records[item.key.to_bytes()] = expected
        elif kind in {Kind.LOAD, Kind.COPY}:
            self.counts["loaded"] += 1
            self.counts["unknown"] += expected is None
            self.counts["byte_mismatches"] += expected != self._digest(item.group, item.target)

    def poll(self) -> list[JobResult]:
        results: list[JobResult] = self._poll()
        for result in results:
            self.counts["failed_items"] += sum(each is not Status.OK for each in result.statuses)
            items = self._promotions.pop(result.number, ())
            for item, status in zip(items, result.statuses, strict=True) if items else ():
                if status is Status.OK and item.key is not None:
                    self._slots[item.target] = self.records.get(item.key.to_bytes())
        return results

    def _spoil(self, items: Iterable[Item]) -> None:
        """Overwrite one block with what another one holds, made louder."""
        assert self.corrupt is not None
        group, where = self.corrupt
        own = [item.target for item in items if item.group == group]
        if not own:
            return
        place = {"first": 0, "middle": len(own) // 2, "last": len(own) - 1}[where]
        victim, other = own[place], self._random.choice(own)
        for page, source in zip(
            self._bytes(group, victim), [p.clone() for p in self._bytes(group, other)], strict=True
        ):
            # Larger, so that attention cannot pass it over; never infinite, or it would spread.
            page.copy_((source.view(self._dtype).flip(0) * LOUDER).view(torch.uint8))
        self.counts["spoilt"] += 1
        self.corrupt = None
