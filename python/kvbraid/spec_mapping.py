"""A pod as an operator or a capture describes it: one mapping -> a topology and an engine profile.

The field names are those of an engine's exported `config.json`. An unknown field is refused:
otherwise a misspelled field would silently leave its default in force.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, Literal

from kvbraid.engine import EVENT_FORMATS, REPORT_MODES, EngineProfile
from kvbraid.errors import InvalidValueError, TopologyError, shortened
from kvbraid.hashing import HashAlgo
from kvbraid.models import (
    complete,
    kinds_of,
    model_groups,
    silent_groups,
    unsent_tokens,
    with_silent_groups,
)
from kvbraid.reading import Count, Fields, Positive, fields_of, read_into
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology


class GroupMapping(Fields, frozen=True, kw_only=True):
    """A group. An exported `config.json` also has the fields of any type, so one can be pasted."""

    kind: SpecKind | None = None
    event_kind: SpecKind | None = None
    block_size: Positive | None = None
    window: Positive | None = None
    event_window: Positive | None = None
    chunk: Positive | None = None
    use_eagle: bool | None = None
    eagle: bool | None = None
    prefix_cacheable: bool | None = None
    variant: Count | None = None
    idx: Count | None = None

    layers: Any = None
    mamba_cache_mode: Any = None
    num_prefill_checkpoint_blocks: Any = None
    sliding_window: Any = None


class PodMapping(Fields, frozen=True, kw_only=True):
    """A pod: its topology, then its engine, then what is not read, as for groups."""

    groups: list[GroupMapping] | None = None
    alignment: Positive | None = None
    hash_block_size: Positive | None = None
    partial_hits: bool | None = None
    replay_tokens: Count | None = None
    hash_lookahead: Count | None = None
    dialect: EngineDialect | None = None
    engine: EngineDialect | None = None
    hash_algo: HashAlgo | None = None
    PYTHONHASHSEED: str | int | None = None
    hash_seed: str | int | None = None
    report_mode: Literal[tuple(REPORT_MODES)] | None = None  # type: ignore[valid-type]  # Known when it runs.
    retention: Count | None = None
    extra_keys: bool | None = None
    adapter_reloads: bool | None = None
    event_format: Literal[tuple(EVENT_FORMATS)] | None = None  # type: ignore[valid-type]  # As above.
    silent_pools_never_short: bool | None = None
    disable_hybrid_swa_memory: bool | None = None
    window_pool_tokens: Positive | None = None
    state_slots: Positive | None = None
    chunked_prefill_size: Positive | None = None

    async_scheduling: Any = None
    concurrency: Any = None
    coordinator: Any = None
    disable_hybrid: Any = None
    mamba_cache_mode: Any = None
    max_model_len: Any = None
    max_num_batched_tokens: Any = None
    model: Any = None
    num_blocks: Any = None
    scheduler_block_size: Any = None
    source: Any = None
    vllm: Any = None


FIELDS: Final = fields_of(PodMapping)
"""The fields of a mapping that are read."""

_REMEDY: Final = "docs/configuration.md lists the fields"


def topology_from_mapping(mapping: Mapping[str, object]) -> Topology:
    """Read what a pod's cache consists of. Without `groups` the groups are learned from events.

    A group's `kind` and `window` may be called `event_kind` and `event_window`.

    Raises:
        TopologyError: The message names the field, its value and what was expected.
    """
    found = _read(mapping)
    groups = tuple(_group(at, each) for at, each in enumerate(found.groups or ()))
    return Topology(**_given(found, Topology, groups=groups))


def profile_from_mapping(mapping: Mapping[str, object]) -> EngineProfile:
    """Read what a pod's engine does, from the same mapping as its topology.

    Raises:
        TopologyError: As in `topology_from_mapping`.
    """
    found = _read(mapping)
    seed = found.hash_seed if found.PYTHONHASHSEED is None else found.PYTHONHASHSEED
    text = None if seed is None else str(seed)
    dialect = found.dialect or found.engine
    return EngineProfile(**_given(found, EngineProfile, dialect=dialect, hash_seed=text))


def pod_from_mapping(
    mapping: Mapping[str, object] | None, model_config: Mapping[str, object] | None = None
) -> tuple[Topology | None, EngineProfile]:
    """Read a pod's topology and engine, both completed from its model's parsed `config.json`.

    For SGLang, the model says which groups the engine keeps and is silent about. For other
    engines, it says which groups have to tell of themselves before anything is promised, and the
    windows and chunks that events do not carry. Without a mapping and a model the topology is
    None.

    Raises:
        TopologyError: As in `topology_from_mapping`; or a group that the model cannot have.
        InvalidValueError: The model is not known, or its engine does not serve it as it is.
    """
    topology = None if mapping is None else topology_from_mapping(mapping)
    engine = profile_from_mapping(mapping or {})
    flag = bool(_read(mapping or {}).disable_hybrid_swa_memory)
    if model_config is None:
        return topology, engine
    topology = topology or Topology(groups=())
    try:
        model = kinds_of(model_config)
        if engine.dialect is EngineDialect.SGLANG:
            silent = silent_groups(model_config, disable_hybrid_swa_memory=flag)
            whole = with_silent_groups(topology, silent, model_type=model.model_type)
            return whole, replace(engine, silent_groups=None if whole.groups else silent)
        if not topology.groups:
            unsent, told = unsent_tokens(model), model_groups(model)
            engine = replace(engine, unsent_tokens=unsent, model_groups=told)
        return complete(topology, model), engine
    except InvalidValueError as error:
        raise type(error)(f"model_config: {error}") from None


def _read(mapping: Mapping[str, object]) -> PodMapping:
    found = read_into(PodMapping, mapping, TopologyError, prefix="topology.", remedy=_REMEDY)
    for at, group in enumerate(found.groups or ()):
        if group.idx not in (None, at):
            expected = f"{at}: groups are listed in the engine's own order"
            msg = f"topology.groups[{at}].idx = {shortened(group.idx)}; expected {expected}"
            raise TopologyError(msg)
    return found


def _group(at: int, found: GroupMapping) -> GroupSpec:
    kind, window = found.kind or found.event_kind, found.window or found.event_window
    given = _given(found, GroupSpec, kind=kind, window=window, eagle=found.use_eagle)
    path = f"topology.groups[{at}]"
    for name in ("kind", "block_size"):
        if name not in given:
            msg = f"{path}.{name} is missing; each group needs its kind and block_size"
            raise TopologyError(msg)
    try:
        return GroupSpec(**given)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def _given(found: PodMapping | GroupMapping, record: type, **first: object) -> dict[str, Any]:
    """The fields of a record that are given: in `first`, else under their own names in `found`."""
    own = {each.name: getattr(found, each.name, None) for each in fields(record)}
    return {
        name: value for row in (own, first) for name, value in row.items() if value is not None
    }
