"""A connector for a worker that does not exist: a test says what it brings, and what fails.

The scheduler's half alone. It moves nothing; `ghost_worker` carries its loads out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.vllm.idle_connector import IdleConnector


@dataclass(slots=True)
class Load:
    """A load as the connector learned of it: blocks by group, and the tokens that it brings."""

    request: str
    tables: tuple[list[int], ...]
    tokens: list[int]
    first: int
    end: int
    is_async: bool


class GhostConnector(IdleConnector):
    """`offer` says how many tokens to bring, and whether in the step; `loads` began since."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:  # noqa: ANN401
        super().__init__(vllm_config, role, kv_cache_config)
        self.offer: Callable[[Any, int], tuple[int, bool]] = lambda _request, _hit: (0, False)
        self.loads: list[Load] = []
        self.num_asked = 0
        self._asked: dict[str, tuple[int, bool]] = {}

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ANN401 - vLLM's own type.
        num_computed_tokens: int,
    ) -> tuple[int, bool]:
        self.num_asked += 1
        num_tokens, is_async = self.offer(request, num_computed_tokens)
        self._asked[request.request_id] = (num_computed_tokens, is_async)
        return num_tokens, is_async and num_tokens > 0

    def update_state_after_alloc(
        self,
        request: Any,  # noqa: ANN401 - vLLM's own types.
        blocks: Any,  # noqa: ANN401
        num_external_tokens: int,
    ) -> None:
        if num_external_tokens:
            first, is_async = self._asked[request.request_id]
            self.loads.append(
                Load(
                    request.request_id,
                    blocks.get_block_ids(),
                    list(request.all_token_ids),
                    first,
                    first + num_external_tokens,
                    is_async,
                )
            )
