"""The groups that a real vLLM forms from a model's config, in its own process, without weights.

`python engine_layers.py` reads one config.json per line from standard input and answers each by
one line: what `recorded_groups` returns, or `{"error": "Type: message"}`.
The model is built by the engine's own classes on the meta device, so that nothing is allocated;
specs, block sizes and groups are those that its worker and its core would collect. They are those
of a CPU with AMX, on any x86 CPU (`prepare`, `STATE_DTYPE`). It never imports kvbraid: what it
says is the truth that tests compare with.
"""

import importlib.abc
import importlib.machinery
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

BLOCK_SIZE = 32
"""Tokens: the least that attention on a CPU takes."""

STATE_DTYPE = "float32"
"""Of the matrices of states: unasked, the engine takes it only where a CPU has AVX-512 BF16."""

_NUMBERED = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for the package of pictures that some text models' files import and do not use."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for that package alone."""
        if fullname.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a module that has every name."""
        module = MagicMock(name=spec.name)
        module.__path__ = []
        module.__spec__ = spec
        module.__name__ = spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing has to run."""


def prepare() -> None:
    """Have unknown configs read as they stand, classes inspected here, and every CPU alike."""
    import torch
    import transformers  # noqa: F401 - It must find the package of pictures missing.
    from vllm.model_executor.models import registry
    from vllm.triton_utils import triton

    sys.meta_path.append(_Absent())
    registry._run_in_subprocess = lambda inspect: inspect()
    # Without AMX, latent attention takes blocks of 16 tokens whatever is asked for, and the engine
    # refuses some hybrids. Nothing is computed here, so any CPU can be taken for one that has it.
    torch.cpu._is_amx_tile_supported = lambda: True
    if not hasattr(triton, "set_allocator"):
        triton.set_allocator = lambda *_: None


def read_as_it_stands(model_type: str) -> None:
    """Register a plain config class for a type whose own comes with its checkpoint."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig
    from vllm.transformers_utils import config

    if model_type not in CONFIG_MAPPING and model_type not in config._CONFIG_REGISTRY:
        own = {"block_configs": _BLOCKS} if model_type == "nemotron-nas" else {}
        fields = {"model_type": model_type, **own}
        config._CONFIG_REGISTRY[model_type] = type("PlainConfig", (PreTrainedConfig,), fields)


class _Block(dict[str, Any]):
    """An object of a config whose class reads its fields as attributes."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a config holds.
        """Return a field."""
        if name in self:
            return self[name]
        raise AttributeError(name)


def _set_blocks(config: Any, blocks: list[dict[str, Any]]) -> None:  # noqa: ANN401 - a config.
    config._blocks = [
        _Block({name: _Block(part) for name, part in block.items()}) for block in blocks
    ]


_BLOCKS = property(lambda config: config._blocks, _set_blocks)


def engine_config(values: Mapping[str, Any], folder: Path) -> Any:  # noqa: ANN401 - vLLM's own.
    """Return the engine's configuration for a model, whose config is put into a folder."""
    from vllm.engine.arg_utils import EngineArgs

    read_as_it_stands(values["model_type"])
    (folder / "config.json").write_text(json.dumps(values))
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        block_size=BLOCK_SIZE,
        max_model_len=512,
        enable_prefix_caching=True,
        mamba_ssm_cache_dtype=STATE_DTYPE,
    ).create_engine_config()
    config.cache_config.kv_cache_layout = "LBNHC"
    return config


def build(config: Any) -> None:  # noqa: ANN401 - vLLM's own type.
    """Build the model's layers, which register themselves with the configuration."""
    import torch
    from vllm.distributed import (
        destroy_model_parallel,
        init_distributed_environment,
        initialize_model_parallel,
    )
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    if not torch.distributed.is_initialized():
        meeting = Path(tempfile.mkdtemp()) / "meeting"
        init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
    destroy_model_parallel()
    initialize_model_parallel(1, 1)
    device = _device_of(config)
    with set_default_torch_dtype(config.model_config.dtype), torch.device(device):
        initialize_model(config)


def _device_of(config: Any) -> str:  # noqa: ANN401 - vLLM's own type.
    """The meta device, but for models that compute with their parameters while they are built."""
    needs_numbers = {"apertus", "bloom", "step1"}
    return "cpu" if config.model_config.hf_config.model_type in needs_numbers else "meta"


def specs_of(config: Any) -> dict[str, Any]:  # noqa: ANN401 - vLLM's own type.
    """Return what each layer keeps, as the engine's worker collects it."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.v1.kv_cache_interface import AttentionSpec
    from vllm.v1.worker.gpu_model_runner import customize_attention_spec

    current_platform.update_block_size_for_backend(config)
    specs = {}
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        if isinstance(layer, Attention) and layer.kv_sharing_target_layer_name:
            continue
        spec = layer.get_kv_cache_spec(config)
        if isinstance(spec, AttentionSpec):
            spec = customize_attention_spec(layer.get_attn_backend(), spec)
        if spec is not None:
            specs[name] = spec
    return specs


def recorded_groups(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's groups of a model, in its order, and the type of its states' matrices.

    `layers` are the layers' numbers, or how many there are where names do not tell; `aliases` is
    there only if layers read the caches of others.
    """
    from vllm.config import set_current_vllm_config
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import MambaSpec, get_kv_cache_spec_kind, iter_layer_specs

    with tempfile.TemporaryDirectory() as folder:
        config = engine_config(values, Path(folder))
        with set_current_vllm_config(config):
            build(config)
            specs = specs_of(config)
            register_all_kvcache_specs(config)
            groups = get_kv_cache_groups(config, specs)
            aliases = aliases_of(config)
    numbers = _numbers(list(specs), values.get("num_hidden_layers", 1 << 32))
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    dtype = str(states[0].dtypes[-1]).removeprefix("torch.") if states else None
    described = [
        {
            "kind": get_kv_cache_spec_kind(group.kv_cache_spec).value,
            "block_size": group.kv_cache_spec.block_size,
            "window": getattr(group.kv_cache_spec, "sliding_window", None),
            "chunk": getattr(group.kv_cache_spec, "attention_chunk_size", None),
            "layers": (
                [numbers[name] for name in group.layer_names]
                if numbers
                else len(group.layer_names)
            ),
            "page_bytes": sorted(
                {spec.page_size_bytes for spec in iter_layer_specs(group.kv_cache_spec)}
            ),
        }
        for group in groups
    ]
    answer = {"groups": described, "state_dtype": dtype}
    return {**answer, "aliases": aliases} if aliases else answer


def aliases_of(config: Any) -> dict[str, int]:  # noqa: ANN401 - vLLM's own type.
    """Return the layers that read another layer's cache, and that layer, by number."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention import Attention

    owners = {
        name: layer.kv_sharing_target_layer_name
        for name, layer in get_layers_from_vllm_config(config, Attention).items()
    }
    numbers = _numbers(list(owners), len(owners))
    return {str(numbers[name]): numbers[owner] for name, owner in owners.items() if owner}


def _numbers(names: list[str], count: int) -> dict[str, int]:
    """The layers' numbers by name, if each name holds one of the model's, and its own."""
    found = {name: match for name in names if (match := _NUMBERED.search(name))}
    numbers = {name: int(match[1]) for name, match in found.items()}
    told = {number for number in numbers.values() if number < count}
    return numbers if len(told) == len(names) else {}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    prepare()
    for line in sys.stdin:
        try:
            answer: Any = recorded_groups(json.loads(line))
        except Exception as error:  # noqa: BLE001 - Whatever an engine refuses with is the answer.
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
