"""From a config to layers by kind, and from layers to a completed topology.

Pure functions: they take dictionaries and return frozen data. A missing value is refused by name
or reported as assumed; an architecture that the table does not have is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from kvbraid.errors import InvalidValueError, TopologyError, shortened
from kvbraid.models.config import ConfigReader, text_model
from kvbraid.models.family import Family
from kvbraid.models.layers import KindLayers, LayerSpec, ModelLayers
from kvbraid.models.patterns import Layers, Reads, Role
from kvbraid.models.registry import FAMILIES
from kvbraid.spec import GroupSpec, SpecKind, Topology

MODEL_TYPES: Final = frozenset(FAMILIES)
_LONGEST_TYPE: Final = 64  # Longer text is not compared with the known types.


def kinds_of(
    config: Mapping[str, object],
    *,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
) -> ModelLayers:
    """Read a model's `config.json`, already parsed, into its layers by kind.

    `cache_dtype` replaces the model's own type for keys and values (a quantized cache, by a name
    of `CACHE_TYPES`), `state_dtype` the type of state matrices.

    Raises:
        InvalidValueError: An unknown architecture, a missing size, or a value that cannot be.
    """
    _, family = _found(config)
    return _read(family, reader_of(config, cache_dtype=cache_dtype, state_dtype=state_dtype))


def reader_of(
    config: Mapping[str, object],
    *,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
) -> ConfigReader:
    """Return a reader of the text model's fields, with the defaults of its architecture.

    Raises:
        InvalidValueError: An unknown architecture.
    """
    values, family = _found(config)
    return ConfigReader(
        values,
        model_type=str(values["model_type"]),
        defaults=family.defaults,
        cache_dtype=cache_dtype,
        state_dtype=state_dtype,
    )


def engine_layers(
    config: Mapping[str, object],
    *,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
) -> ModelLayers:
    """Read a config as an engine does: unnamed states keep its type, not the maker's float32.

    Raises:
        InvalidValueError: As `kinds_of`.
    """
    values, family = _found(config)
    default = family.engine_state_dtype or _model_dtype
    return _read(
        family,
        ConfigReader(
            values,
            model_type=str(values["model_type"]),
            defaults={**family.defaults, "mamba_ssm_dtype": default},
            cache_dtype=cache_dtype,
            state_dtype=state_dtype,
        ),
    )


def _model_dtype(config: ConfigReader) -> str:
    return str(config.find("dtype", "torch_dtype"))


def _found(config: Mapping[str, object]) -> tuple[Mapping[str, object], Family]:
    """Return the text model's part of a config, and the row of the table for it."""
    values = text_model(config)
    model_type = values.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        text = model_type if isinstance(model_type, str) else ""
        near = get_close_matches(text[:_LONGEST_TYPE], FAMILIES, n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise InvalidValueError(
            f"model_type = {shortened(model_type)} is not known; {meant}docs/models.md lists the "
            f"{len(FAMILIES)} types, and kvbraid/models/registry.py says how to add one"
        )
    return values, family


def _read(family: Family, reader: ConfigReader) -> ModelLayers:
    layers = _layers(family, reader)
    kinds = tuple(
        KindLayers(spec=spec, layers=numbers)
        for role, numbers in _by_role(layers, family.first).items()
        for spec, numbers in _by_spec(family, role, numbers, reader)
    )
    return ModelLayers(
        model_type=reader.model_type,
        num_layers=len(layers),
        kinds=kinds,
        aliases=_aliases(layers),
        assumed=reader.assumed,
    )


def _by_spec(
    family: Family, role: Role, numbers: tuple[int, ...], reader: ConfigReader
) -> Iterator[tuple[LayerSpec, tuple[int, ...]]]:
    """Group the layers of one role by what they keep; in most families all keep the same."""
    if not family.per_layer:
        yield _sized(family, role, reader), numbers
        return
    found: dict[LayerSpec, list[int]] = {}
    for number in numbers:
        spec = _sized(family, role, reader.at_layer(number, family.per_layer))
        found.setdefault(spec, []).append(number)
    yield from ((spec, tuple(each)) for spec, each in found.items())


def complete(topology: Topology, model: ModelLayers) -> Topology:
    """Add what events never carry (the chunk size), and check the rest against the model.

    This is for engines whose groups follow the model's layers and are all told of. What SGLang
    keeps and is silent about is added by `with_silent_groups`.

    Raises:
        TopologyError: A group of a kind, window or chunk that the model does not have.
    """
    return replace(topology, groups=tuple(_completed(each, model) for each in topology.groups))


def unsent_tokens(model: ModelLayers) -> tuple[tuple[SpecKind, int], ...]:
    """Return the window or chunk of each kind in which it is the same for all layers.

    Events do not always carry it: see `EngineProfile.unsent_tokens`.
    """
    sizes: dict[SpecKind, set[int]] = {}
    for spec in (each.spec for each in model.kinds):
        tokens = spec.window or spec.chunk
        if tokens is not None:
            sizes.setdefault(spec.kind, set()).add(tokens)
    return tuple((kind, min(found)) for kind, found in sizes.items() if len(found) == 1)


def model_groups(model: ModelLayers) -> tuple[tuple[SpecKind, int | None], ...]:
    """Return each kind and window of the model: see `EngineProfile.model_groups`."""
    return tuple(dict.fromkeys((each.spec.kind, each.spec.window) for each in model.kinds))


def _completed(group: GroupSpec, model: ModelLayers) -> GroupSpec:
    """Match one group against the model's layers; an engine may keep any attention in full."""
    specs = [each.spec for each in model.kinds]
    if group.kind.is_full:
        found = any(spec.state_bytes is None for spec in specs)
        return group if found else _refuse(group, model)
    for spec in specs:
        same_window = group.window in (None, spec.window)
        same_chunk = group.chunk in (None, spec.chunk)
        if spec.kind is group.kind and same_window and same_chunk:
            return replace(group, chunk=spec.chunk)
    return _refuse(group, model)


def _refuse(group: GroupSpec, model: ModelLayers) -> GroupSpec:
    has = "; ".join(
        f"{each.spec.kind.value} (window {each.spec.window}, chunk {each.spec.chunk})"
        for each in model.kinds
    )
    raise TopologyError(
        f"a {group.kind.value} group with window {group.window} and chunk {group.chunk} does not "
        f"fit {model.model_type}, which has {has}; correct the group or the model's config"
    )


def _layers(family: Family, reader: ConfigReader) -> Layers:
    layers = family.pattern(reader)
    if layers is None:
        raise reader.missing(*family.fields.split(", "))
    return layers


def _sized(family: Family, role: Role, reader: ConfigReader) -> LayerSpec:
    sizer = family.sizes.get(role)
    if sizer is None:
        known = " and ".join(each.value for each in family.sizes)
        raise reader.wrong(family.fields, role.value, f"{known} layers only")
    return sizer(reader)


def _by_role(layers: Layers, first: tuple[Role, ...]) -> dict[Role, tuple[int, ...]]:
    """Turn roles per layer into layers per role: `first`, then in order of first appearance."""
    numbers: dict[Role, list[int]] = {role: [] for role in first}
    for number, roles in enumerate(layers):
        for role in roles:
            if isinstance(role, Role):
                numbers.setdefault(role, []).append(number)
    return {role: tuple(each) for role, each in numbers.items() if each}


def _aliases(layers: Layers) -> dict[int, int]:
    """Return the layers that read another's cache, and that layer."""
    return {
        number: role.owner
        for number, roles in enumerate(layers)
        for role in roles
        if isinstance(role, Reads)
    }
