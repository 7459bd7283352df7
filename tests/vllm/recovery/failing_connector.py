"""A connector that keeps the bytes of blocks in host memory, loads them, and fails on demand.

A failed load leaves the values of another block, made larger. Scheduler, worker and test program
share one process, and through `HOST` what is kept and what is to fail. Imported by that process
alone.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorTransferResults,
)
from vllm.v1.kv_cache_interface import MambaSpec

from tests.vllm.idle_connector import IdleConnector

STEPS_OF_A_LOAD = 2
LOUDER = 8


@dataclass
class Record:
    """What resuming after a prompt's first tokens needs: bytes by group and position."""

    tokens: list[int]
    blocks: list[dict[int, list[torch.Tensor]]]


@dataclass
class Fault:
    """Which blocks of each load fail, in which form this is reported (None: in none), and how many
    steps late."""

    groups: list[int]
    where: str
    form: str | None
    num_late_steps: int = 0


@dataclass
class Host:
    """What all halves of the connector share; `pages` are the bytes of a block of a group.

    `is_whole`: prompts with which a record begins are offered whole, instead of those that begin
    with a record.
    """

    records: list[Record] = field(default_factory=list)
    loads: bool = False
    is_async: bool = False
    is_whole: bool = False
    fault: Fault | None = None
    num_failed: int = 0
    pages: Callable[[int, int], list[torch.Tensor]] | None = None
    dtype: torch.dtype = torch.float32
    random: Random = field(default_factory=lambda: Random(0))


HOST = Host()


@dataclass
class Load:
    request: str
    tables: tuple[list[int], ...]
    first: int
    record: Record
    num_steps: int = STEPS_OF_A_LOAD


class Loads(KVConnectorMetadata):  # type: ignore[misc] # Untyped here.
    """The loads that begin with a step."""

    def __init__(self, loads: list[Load]) -> None:
        self.loads = loads


class FailingConnector(IdleConnector):
    """Both halves."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:  # noqa: ANN401
        super().__init__(vllm_config, role, kv_cache_config)
        self._sizes = [g.kv_cache_spec.block_size for g in kv_cache_config.kv_cache_groups]
        self._states = {
            group
            for group, each in enumerate(kv_cache_config.kv_cache_groups)
            if isinstance(each.kv_cache_spec, MambaSpec)
        }
        self._begun: list[Load] = []
        self._asked: dict[str, tuple[int, Record]] = {}
        self._running: list[Load] = []
        self._results = KVConnectorTransferResults()
        self._flat: set[int] = set()
        self._failures: Any = None
        self._late: list[tuple[Any, ...]] = []  # Steps left, and what is said then.

    # The scheduler's half.

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ANN401 - vLLM's own type.
        num_computed_tokens: int,
    ) -> tuple[int, bool]:
        tokens = list(request.prompt_token_ids)
        shared = [(min(len(r.tokens), len(tokens)), r) for r in HOST.records]
        fitting = [
            (count, r)
            for count, r in shared
            if tokens[:count] == r.tokens[:count]
            and count == (len(tokens) if HOST.is_whole else len(r.tokens))
        ]
        end, record = max(fitting, key=lambda each: each[0], default=(0, None))
        if not HOST.loads or record is None or end <= num_computed_tokens:
            return 0, False
        self._asked[request.request_id] = (num_computed_tokens, record)
        return end - num_computed_tokens, HOST.is_async

    def update_state_after_alloc(
        self,
        request: Any,  # noqa: ANN401 - vLLM's own types.
        blocks: Any,  # noqa: ANN401
        num_external_tokens: int,
    ) -> None:
        if num_external_tokens:
            first, record = self._asked[request.request_id]
            tables = blocks.get_block_ids()
            self._begun.append(Load(request.request_id, tables, first, record))

    def build_connector_meta(self, scheduler_output: object) -> Loads:
        del scheduler_output
        begun, self._begun = self._begun, []
        return Loads(begun)

    # The worker's half.

    def start_load_kv(self, forward_context: object, **kwargs: object) -> None:
        del forward_context, kwargs
        begun = self._get_connector_metadata().loads
        self._say_what_is_due()
        if not HOST.is_async:
            for load in begun:
                self._load(load)
            return
        self._running += begun
        for load in self._running.copy():
            load.num_steps -= 1
            if load.num_steps <= 0:
                self._running.remove(load)
                self._results.finished_recving.add(load.request)
                self._load(load)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:  # noqa: ANN401 - as above.
        # vLLM copies the states that a step starts from before it lets us load anything.
        for load in () if HOST.is_async else kv_connector_metadata.loads:
            self._copy(load, self._states)

    def _load(self, load: Load) -> None:
        failed = self._copy(load, range(len(self._sizes)))
        HOST.num_failed += bool(failed)
        if failed and HOST.fault is not None and HOST.fault.form is not None:
            self._late.append((HOST.fault.num_late_steps, load, failed, HOST.fault.form))
            self._say_what_is_due(num_steps=0)

    def _say_what_is_due(self, num_steps: int = 1) -> None:
        late = [(left - num_steps, *what) for left, *what in self._late]
        self._late = [each for each in late if each[0] > 0]
        for _, load, failed, form in [each for each in late if each[0] <= 0]:
            self._say(load, failed, form)

    def _copy(self, load: Load, groups: Collection[int]) -> list[tuple[int, int, int]]:
        parts = [
            (group, position, table[position])
            for group, (size, table) in enumerate(zip(self._sizes, load.tables, strict=True))
            for position in load.record.blocks[group]
            if load.first // size <= position < len(table) and table[position]
        ]
        failed = self._failed(parts)
        assert HOST.pages is not None
        for part in parts:
            group, position, block = part
            if group in groups:
                source = load.record.blocks[group][position]
                if part in failed:
                    source = self._garbage(load.record, group, position)
                for page, content in zip(HOST.pages(group, block), source, strict=True):
                    page.copy_(content)
        return failed

    def _failed(self, parts: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        fault = HOST.fault
        failed: list[tuple[int, int, int]] = []
        for group in fault.groups if fault is not None else ():
            own = [part for part in parts if part[0] == group]
            picked = {"first": own[:1], "middle": own[len(own) // 2 :][:1], "last": own[-1:]}
            failed += picked.get(fault.where, own)  # type: ignore[union-attr]
        return failed

    def _garbage(self, record: Record, group: int, position: int) -> list[torch.Tensor]:
        others = [r for r in HOST.records if r is not record and r.blocks[group]]
        other = HOST.random.choice(others).blocks[group]
        pages = other.get(position) or HOST.random.choice(list(other.values()))
        # Larger, so that attention cannot pass it over; never infinite, or it would spread.
        return [(page.view(HOST.dtype) * LOUDER).view(torch.uint8) for page in pages]

    def _say(self, load: Load, failed: list[tuple[int, int, int]], form: str) -> None:
        if form == "flat":
            self._flat |= {block for _, _, block in failed}
            return
        if form == "failed_recving" and HOST.is_async:
            self._results.failed_recving.add(load.request)
            return
        from kvbraid.integrations.vllm import LoadFailures  # Not with the stock scheduler.

        places: dict[int, set[int]] = {}
        for group, position, _ in failed:
            places.setdefault(group, set()).add(position)
        said = {
            "places": LoadFailures(places={load.request: places}),
            "pairs": LoadFailures(group_blocks={(group, block) for group, _, block in failed}),
        }.get(form, LoadFailures(requests={load.request}))
        self._failures = said if self._failures is None else self._failures.aggregate(said)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        del finished_req_ids
        results, self._results = self._results, KVConnectorTransferResults()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        flat, self._flat = self._flat, set()
        return flat

    def build_connector_worker_meta(self) -> Any:  # noqa: ANN401 - vLLM's own type.
        said, self._failures = self._failures, None
        return said
