"""A connector that brings made-up tokens: in the step itself, or later, or never.

It moves nothing. What it brings depends on the request's name and on how often it was asked, so
the connectors of two schedulers that do the same bring the same. A test ends the loads.
"""

from collections import Counter
from random import Random
from typing import Any, Final

from tests.vllm.idle_connector import IdleConnector

UNIT: Final = 16


class LoadingConnector(IdleConnector):
    """`loading`: the loads under way, each with the blocks that it fills, group by group."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:  # noqa: ANN401
        super().__init__(vllm_config, role, kv_cache_config)
        self._has_states = kv_cache_config.has_mamba_layers
        self.loading: dict[str, tuple[list[int], ...]] = {}
        self.num_loads = 0
        self._num_asked: Counter[str] = Counter()
        self._waits: set[str] = set()

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ANN401 - vLLM's own type.
        num_computed_tokens: int,
    ) -> tuple[int, bool]:
        name = request.request_id
        self._num_asked[name] += 1
        random = Random(f"{name} {self._num_asked[name]}")
        waits = random.random() < 0.7
        # With states, vLLM computes the last token of a prompt that was loaded whole over a state
        # that has it already; ours looks the prompt up again.
        is_whole = waits and not self._has_states
        most = request.num_tokens - num_computed_tokens - (not is_whole)
        num_tokens = random.randint(0, most)
        if random.random() < 0.8:
            num_tokens -= num_tokens % UNIT
        self._waits.discard(name)
        if waits and num_tokens:
            self._waits.add(name)
        return num_tokens, name in self._waits

    def update_state_after_alloc(
        self,
        request: Any,  # noqa: ANN401 - vLLM's own types.
        blocks: Any,  # noqa: ANN401
        num_external_tokens: int,
    ) -> None:
        self.num_loads += num_external_tokens > 0
        if num_external_tokens and request.request_id in self._waits:
            filled = -(-num_external_tokens // UNIT)
            tables = blocks.get_block_ids()
            self.loading[request.request_id] = tuple(ids[-filled:] for ids in tables)


class DivergentConnector(LoadingConnector):
    """A connector that continues hits which lack their state."""

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return True
