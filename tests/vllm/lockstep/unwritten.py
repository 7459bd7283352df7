"""Copies that vLLM 0.32 makes too early, so that lock-step can do without them.

Copies are made before a step runs, all at once. A request whose hit ends inside a block of
attention goes on in a copy, and the same step may write the copy's source or copy to it: then the
copy has what was there before. For states, vLLM lets such a request wait until the next step. Here
it waits for attention too, as it does in our cache.
"""

from typing import Any, Final, TypeAlias

from tests.vllm.lockstep.side import Ask

Manager: TypeAlias = Any
"""The engine's manager of one group; the engine is not installed where types are checked."""


class UnwrittenBlocks:
    """The blocks that a step writes, and how many tokens of the prefix each had before."""

    def __init__(self) -> None:
        self._had: Final[dict[int, int]] = {}
        self.num_early_copies = 0

    def start_step(self) -> None:
        self._had.clear()

    def has_to_wait(self, groups: list[Manager], ask: Ask, hits: list[list[Any]]) -> bool:
        """Whether the request would go on in a copy of a block that is not written so far."""
        local = ask.num_computed_tokens + ask.num_hit_tokens
        tails = [
            blocks[-1].block_id
            for group, blocks in zip(groups, hits, strict=True)
            if not hasattr(group, "mamba_cache_mode")
            and group._has_partial_local_hit(blocks, local)
        ]
        is_early = any(self._had.get(block_id, local) < local for block_id in tails)
        self.num_early_copies += is_early
        return is_early

    def note(self, groups: list[Manager], ask: Ask) -> None:
        """Note what the step writes for a request; a copy that it makes had nothing."""
        local = ask.num_computed_tokens + ask.num_hit_tokens
        for group in groups:
            place, inside = divmod(local, group.block_size)
            had = local - inside if ask.num_hit_tokens else local
            for block in group.req_to_blocks[str(ask.key)][place:]:
                if not block.is_null:
                    self._had[block.block_id] = had
