"""Published models as a cache sees them: groups, block sizes, and the bytes of one block.

The groups are those that vLLM forms from a model's config, at its defaults on one rank unless told
otherwise; bytes are those of one rank. The fields
here are the ones that decide the groups. They come from the configs in tests/fixtures/models,
whose sources.json says where each is from; a test checks that the two agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvbraid.errors import InvalidValueError, UnknownError
from kvbraid.models import EngineOptions, PrefillCost, group_config, prefill_cost, read_config
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


CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "gpt-oss-120b": {
            "model_type": "gpt_oss",
            "hidden_size": 2_880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
        },
        "gemma-3-27b": {
            "model_type": "gemma3_text",
            "hidden_size": 5_376,
            "num_hidden_layers": 62,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "sliding_window": 1_024,
        },
        "qwen3-next-80b-a3b": {
            "model_type": "qwen3_next",
            "hidden_size": 2_048,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
        },
        "jamba-mini": {
            "model_type": "jamba",
            "hidden_size": 4_096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "attn_layer_offset": 4,
            "attn_layer_period": 8,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_expand": 2,
        },
        "llama-3.1-8b": {
            "model_type": "llama",
            "hidden_size": 4_096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    }
)
"""The name of each model, and fields of its config. All of them use bfloat16, the default."""

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
    path, options = Path(name), options or EngineOptions()
    if name not in CONFIGS and path.is_dir():
        path /= "config.json"
    if name not in CONFIGS and not path.is_file():
        msg = (
            f"model {name!r} is not known; expected one of {', '.join(CONFIGS)}, or the path of a "
            "config.json"
        )
        raise UnknownError(msg)
    config = CONFIGS[name] if name in CONFIGS else read_config(path)
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
