"""The simulated models: small namesakes of published hybrids, with their real group shapes.

Frozen data. Groups stand in the order of the engine that serves such a model. The pools are small,
so a few hundred requests fill them and cause evictions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kvbraid.cache.config import CacheConfig
from kvbraid.cache.retention import Dense, Interval
from kvbraid.engine import EngineProfile
from kvbraid.hashing import HashAlgo
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

ENGINE: Final = EngineProfile(
    dialect=EngineDialect.PURE, hash_algo=HashAlgo.SHA256, hash_seed="kvbraid-sim"
)
"""The behaviour that all simulated engines share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One simulated engine's configuration; `retention` and `max_step_tokens` in tokens."""

    model: str
    topology: Topology
    num_blocks: int
    retention: int | None = 0
    max_step_tokens: int = 1024


def _topology(*groups: GroupSpec) -> Topology:
    return Topology(groups=groups)


_FULL: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16)
_FULL_64: Final = GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=64)
_STATE_64: Final = GroupSpec(kind=SpecKind.MAMBA, block_size=64)


def _window(tokens: int) -> GroupSpec:
    return GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=tokens)


_CHUNKED: Final = GroupSpec(kind=SpecKind.CHUNKED_LOCAL_ATTENTION, block_size=16, chunk=256)

PRESETS: Final[Mapping[str, Preset]] = MappingProxyType(
    {
        preset.model: preset
        for preset in (
            Preset(model="gpt-oss-sim", topology=_topology(_window(128), _FULL), num_blocks=500),
            Preset(
                model="gemma-3-sim",
                topology=_topology(*[_window(256)] * 5, _FULL),
                num_blocks=1600,
            ),
            Preset(
                model="llama-4-sim", topology=_topology(*[_CHUNKED] * 3, _FULL), num_blocks=2000
            ),
            Preset(
                model="qwen3-next-sim",
                topology=_topology(*[_STATE_64] * 3, _FULL_64),
                num_blocks=160,
            ),
        )
    }
)


def cache_config(preset: Preset) -> CacheConfig:
    """Return the configuration of such an engine's cache, with events."""
    return CacheConfig(
        topology=preset.topology,
        dialect=ENGINE.dialect,
        hash_seed=ENGINE.hash_seed,
        num_blocks=preset.num_blocks,
        events=True,
        retention=Dense() if preset.retention is None else Interval(preset.retention),
    )


def topology_body(topology: Topology) -> dict[str, Any]:
    """Return the topology in the form that PUT /v1/pods/{id} takes."""
    groups = [
        {
            "kind": group.kind.value,
            "block_size": group.block_size,
            "window": group.window,
            "chunk": group.chunk,
        }
        for group in topology.groups
    ]
    return {
        "groups": groups,
        "dialect": ENGINE.dialect.value,
        "hash_algo": HashAlgo.SHA256.value,
        "hash_seed": ENGINE.hash_seed,
    }
