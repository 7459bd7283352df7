"""Published models as a cache sees them: groups, block sizes, and the bytes of one block.

The groups are those that vLLM forms from a model's config, at its defaults on one rank unless told
otherwise; bytes are those of one rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.models import (
    CONFIGS,
    EngineOptions,
    PrefillCost,
    find_config,
    group_config,
    prefill_cost,
)
from kvbraid.sim.traces.prefix_hashes import check_parts
from kvbraid.spec import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel:
    """One model's cache: its groups, the bytes of a block on a rank, and the cost of prefill."""

    name: str
    topology: Topology
    block_bytes: int
    cost: PrefillCost = PrefillCost()  # noqa: RUF009 - frozen
    num_ranks: int = 1

    @property
    def alignment(self) -> int:
        """All groups have a block boundary at every multiple of this many tokens."""
        return lcm(*self._block_sizes)

    @property
    def hash_block_size(self) -> int:
        """Tokens that one hash covers; every group's block size is a multiple of this."""
        return self.topology.hash_block_size or gcd(*self._block_sizes)

    @property
    def _block_sizes(self) -> list[int]:
        return [group.block_size for group in self.topology.groups]

    def num_blocks(self, memory_bytes: int) -> int:
        """Return the number of blocks that fit into this much memory."""
        return memory_bytes // self.block_bytes


ACTIVE_PARAMS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "gpt-oss-120b": 5.1e9,
        "gemma-3-27b": 27.4e9,
        "qwen3-next-80b-a3b": 3e9,
        "jamba-mini": 12e9,
        "llama-3.1-8b": 8e9,
    }
)
"""The published number of parameters that each token passes through."""


def simulated_model(name: str, options: EngineOptions | None = None) -> SimulatedModel:
    """Return a model by its name, or by the path of a `config.json` or its folder.

    Raises:
        UnknownError: There is no such name and no such file; the message lists the names.
        InvalidValueError: The config or an option is refused; the message says why.
    """
    options = options or EngineOptions()
    if name not in CONFIGS and not Path(name).exists():
        raise UnknownError(
            f"model {name!r} is not known; expected one of {', '.join(CONFIGS)}, or the path of a "
            "config.json"
        )
    config = find_config(name)
    try:
        grouping = group_config(config, options).grouping
        check_parts("model", grouping.hash_block_size)
        cost = prefill_cost(config, grouping, active_params=ACTIVE_PARAMS.get(name))
    except InvalidValueError as error:
        raise type(error)(f"{name}: {error}") from error
    return SimulatedModel(
        name=name,
        topology=grouping.topology(),
        block_bytes=grouping.block_bytes,
        cost=cost,
        num_ranks=options.num_ranks,
    )
