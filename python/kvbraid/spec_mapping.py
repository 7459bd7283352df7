"""A pod as an operator or a capture describes it: one mapping -> a topology and an engine profile.

The field names are those of an engine's exported `config.json`. An unknown field is refused:
otherwise a misspelled field would silently leave its default in force.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final, TypeVar

from kvbraid.engine import EVENT_FORMATS, REPORT_MODES, EngineProfile
from kvbraid.errors import InvalidValueError, TopologyError, one_line, shown
from kvbraid.hashing import HashAlgo
from kvbraid.models import (
    complete,
    kinds_of,
    model_groups,
    silent_groups,
    unsent_tokens,
    with_silent_groups,
)
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

FIELDS: Final[Sequence[str]] = (
    "groups",
    "alignment",
    "hash_block_size",
    "partial_hits",
    "replay_tokens",
    "hash_lookahead",
    "dialect",
    "engine",
    "hash_algo",
    "PYTHONHASHSEED",
    "hash_seed",
    "report_mode",
    "retention",
    "extra_keys",
    "adapter_reloads",
    "event_format",
    "silent_pools_never_short",
    "disable_hybrid_swa_memory",
    "window_pool_tokens",
    "state_slots",
    "chunked_prefill_size",
)
"""The fields of a mapping that are read."""

GROUP_FIELDS: Final[Sequence[str]] = (
    "kind",
    "event_kind",
    "block_size",
    "window",
    "event_window",
    "chunk",
    "use_eagle",
    "eagle",
    "prefix_cacheable",
    "variant",
    "idx",
)
"""The fields of a group that are read."""

_ALSO_EXPORTED: Final = frozenset(
    {
        "async_scheduling",
        "concurrency",
        "coordinator",
        "disable_hybrid",
        "mamba_cache_mode",
        "max_model_len",
        "max_num_batched_tokens",
        "model",
        "num_blocks",
        "scheduler_block_size",
        "source",
        "vllm",
    }
)
_ALSO_EXPORTED_OF_GROUPS: Final = frozenset(
    {
        "layers",
        "mamba_cache_mode",
        "num_prefill_checkpoint_blocks",
        "sliding_window",
    }
)
"""Fields that an exported `config.json` also has. They are accepted, so one can be pasted."""


def topology_from_mapping(mapping: Mapping[str, object]) -> Topology:
    """Read what a pod's cache consists of. Without `groups` the groups are learned from events.

    A group's `kind` and `window` may be called `event_kind` and `event_window`.

    Raises:
        TopologyError: The message names the field, its value and what was expected.
    """
    top = _checked(mapping)
    return Topology(
        groups=tuple(_group(fields) for fields in top.children("groups")),
        alignment=top.tokens("alignment"),
        hash_block_size=top.tokens("hash_block_size"),
        partial_hits=top.flag_if_given("partial_hits"),
        replay_tokens=top.tokens("replay_tokens", least=0) or 0,
        hash_lookahead=top.tokens("hash_lookahead", least=0) or 0,
    )


def profile_from_mapping(mapping: Mapping[str, object]) -> EngineProfile:
    """Read what a pod's engine does, from the same mapping as its topology.

    Raises:
        TopologyError: As in `topology_from_mapping`.
    """
    top = _checked(mapping)
    dialect = top.choice("dialect", "engine", among=[each.value for each in EngineDialect])
    algo = top.choice("hash_algo", among=[each.value for each in HashAlgo])
    return EngineProfile(
        dialect=EngineDialect(dialect or "vllm"),
        hash_algo=None if algo is None else HashAlgo(algo),
        hash_seed=top.seed("PYTHONHASHSEED", "hash_seed"),
        report_mode=top.choice("report_mode", among=REPORT_MODES) or "incremental",
        retention=top.tokens("retention", least=0),
        extra_keys=top.flag("extra_keys"),
        adapter_reloads=top.flag("adapter_reloads"),
        event_format=top.choice("event_format", among=EVENT_FORMATS) or "default",
        silent_pools_never_short=top.flag("silent_pools_never_short"),
        window_pool_tokens=top.tokens("window_pool_tokens"),
        state_slots=top.tokens("state_slots"),
        chunked_prefill_size=top.tokens("chunked_prefill_size"),
    )


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
    flag = _checked(mapping or {}).flag("disable_hybrid_swa_memory")
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


def _checked(mapping: Mapping[str, object]) -> "_MappingReader":
    top = _MappingReader(dict(mapping), "topology")
    top.refuse_unknown(FIELDS, _ALSO_EXPORTED)
    for group in top.children("groups"):
        group.refuse_unknown(GROUP_FIELDS, _ALSO_EXPORTED_OF_GROUPS)
    return top


def _group(fields: "_MappingReader") -> GroupSpec:
    kind = fields.choice("kind", "event_kind", among=[kind.value for kind in SpecKind])
    block_size = fields.tokens("block_size")
    if kind is None or block_size is None:
        missing = "kind" if kind is None else "block_size"
        msg = f"{fields.path}.{missing} is missing; each group needs its kind and block_size"
        raise TopologyError(msg)
    try:
        return GroupSpec(
            kind=SpecKind(kind),
            block_size=block_size,
            window=fields.tokens("window", "event_window"),
            chunk=fields.tokens("chunk"),
            eagle=fields.flag("use_eagle", "eagle"),
            prefix_cacheable=fields.flag("prefix_cacheable", default=True),
            variant=fields.tokens("variant", least=0) or 0,
        )
    except TopologyError as error:
        msg = f"{fields.path}: {error}"
        raise TopologyError(msg) from None


_T = TypeVar("_T")


class _MappingReader:
    """Typed reads from one mapping. Every error message names the path. Null counts as absent."""

    def __init__(self, mapping: object, path: str) -> None:
        self.path = path
        self._mapping: dict[str, object] = self._typed(mapping, dict, path, "a table of fields")

    def refuse_unknown(self, known: Sequence[str], also: Collection[str]) -> None:
        """Refuse a field in neither list; the message suggests the name that was likely meant."""
        for name in self._mapping:
            if name not in known and name not in also:
                near = get_close_matches(str(name), known, n=1)
                meant = f"did you mean {near[0]}? " if near else ""
                path = one_line(f"{self.path}.{name}")
                value = shown(self._mapping[name])
                msg = f"{path} = {value}: no such field; {meant}known: {', '.join(known)}"
                raise TopologyError(msg)

    def tokens(self, *names: str, least: int = 1) -> int | None:
        name, value = self._first(names)
        if value is None:
            return None
        path, expected = f"{self.path}.{name}", f"a whole number of tokens, at least {least}"
        number = self._typed(value, int, path, expected)
        if isinstance(value, bool) or not least <= number < 1 << 32:
            raise self._wrong(path, value, expected)
        return number

    def flag(self, *names: str, default: bool = False) -> bool:
        name, value = self._first(names)
        if value is None:
            return default
        return self._typed(value, bool, f"{self.path}.{name}", "true or false")

    def flag_if_given(self, name: str) -> bool | None:
        """As a flag; None where it is left out."""
        return None if self._mapping.get(name) is None else self.flag(name)

    def choice(self, *names: str, among: Sequence[str]) -> str | None:
        name, value = self._first(names)
        if value is None:
            return None
        if value not in among:
            raise self._wrong(f"{self.path}.{name}", value, "one of " + ", ".join(among))
        return str(value)

    def seed(self, *names: str) -> str | None:
        """An environment variable's text; a bare number is accepted as its digits."""
        name, value = self._first(names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._wrong(f"{self.path}.{name}", value, 'the text that was set, as "0"')
        return str(value)

    def children(self, name: str) -> "list[_MappingReader]":
        value = self._mapping.get(name)
        path = f"{self.path}.{name}"
        rows = self._typed([] if value is None else value, list, path, "a list of groups")
        children = [_MappingReader(row, f"{path}[{index}]") for index, row in enumerate(rows)]
        for index, child in enumerate(children):
            listed = child.tokens("idx", least=0)
            if listed not in (None, index):
                expected = f"{index}: groups are listed in the engine's own order"
                raise self._wrong(f"{child.path}.idx", listed, expected)
        return children

    def _first(self, names: Sequence[str]) -> tuple[str, object]:
        for name in names:
            if self._mapping.get(name) is not None:
                return name, self._mapping[name]
        return names[0], None

    def _typed(self, value: object, kind: type[_T], path: str, expected: str) -> _T:
        if not isinstance(value, kind):
            raise self._wrong(path, value, expected)
        return value

    @staticmethod
    def _wrong(path: str, value: object, expected: str) -> TopologyError:
        return TopologyError(f"{path} = {shown(value)}; expected {expected}")
