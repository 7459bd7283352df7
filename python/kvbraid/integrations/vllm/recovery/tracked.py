"""Our cache for engines with a connector: it also notes which runs start, and what loads fill."""

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.request import Request

from kvbraid.ids import BlockId
from kvbraid.integrations.vllm.cache.manager import KvbraidCacheManager
from kvbraid.integrations.vllm.recovery.request_runs import RequestRun, RequestRuns


class TrackedCacheManager(KvbraidCacheManager):
    """Our cache manager; `runs` are the requests that hold blocks.

    `on_start` is called with each run that starts; the caller may set it.
    """

    def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - passed on as they are.
        super().__init__(*args, **more)
        self.runs = RequestRuns(self.cache, late_steps=0)  # Until the scheduler says how many.
        self.on_start: Callable[[RequestRun], None] = lambda _: None

    def allocate_slots(  # type: ignore[override] # noqa: PLR0913 - vLLM's own signature.
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        **more: Any,  # noqa: ANN401 - passed on as they are.
    ) -> KVCacheBlocks | None:
        """Adopt a hit and add blocks for a step; None if the request does not fit."""
        blocks = super().allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_blocks,
            num_lookahead_tokens,
            num_external_computed_tokens,
            delay_cache_blocks,
            **more,
        )
        if blocks is None:
            return None
        if self.runs.find(request.request_id) is None:
            number = self._requests.known(request.request_id)
            self.runs.released.hand_out(self._own_blocks(number, num_new_computed_tokens))
            run = self.runs.start(
                request,
                number,
                num_local=num_new_computed_tokens,
                num_loaded=num_external_computed_tokens,
                delays_commit=delay_cache_blocks,
            )
            self.on_start(run)
        elif self.runs.released.is_watching:
            self.runs.released.hand_out([block for ids in blocks.get_block_ids() for block in ids])
        return blocks

    def _copied(self, copies: Sequence[tuple[BlockId, BlockId]]) -> None:
        self.runs.note_copies(copies)

    def _own_blocks(self, number: int, num_hit_tokens: int) -> list[BlockId]:
        """Return the blocks that a request did not adopt; vLLM returns none that a load fills."""
        groups = self.cache.config.topology.groups
        return [
            block
            for spec, ids in zip(groups, self.cache.blocks(number), strict=True)
            for block in ids[num_hit_tokens // spec.block_size :]
        ]
