"""`kvbraid model`: a model's layers, and the groups that an engine makes of them, as tables."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console

from kvbraid.errors import counted
from kvbraid.models import EngineOptions, GroupedModel, LayerGroup, ModelLayers
from kvbraid.models.layers import runs
from kvbraid.report.tables import Column, Listing, print_lines, print_listing
from kvbraid.spec import GroupSpec

_WHICH: Final = Column("which", is_left=True, wraps=True)
_LAYER_COLUMNS: Final = (
    Column("kind", is_left=True),
    *map(Column, ("layers", "window", "chunk", "KV bytes/token", "state bytes")),
    _WHICH,
)
_GROUP_COLUMNS: Final = (
    Column("group"),
    Column("kind", is_left=True),
    *map(Column, ("layers", "window", "chunk", "block", "page bytes", "unused")),
    _WHICH,
)
_NONE: Final = "-"


def show_layers(console: Console, model: ModelLayers) -> None:
    """Print what `kvbraid model` shows."""
    rows = [
        (
            kind.spec.kind.value,
            str(len(kind.layers)),
            *_sizes(
                kind.spec.window,
                kind.spec.chunk,
                kind.spec.kv_bytes_per_token,
                kind.spec.state_bytes,
            ),
            runs(kind.layers),
        )
        for kind in model.kinds
    ]
    title = f"{model.model_type}: {counted(model.num_layers, 'layer')}"
    _print(console, title, _LAYER_COLUMNS, rows)
    note = "Windows and chunks in tokens; bytes per layer, before tensor parallelism."
    print_lines(console, [note, *_assumed(model)])


def show_groups(console: Console, grouped: GroupedModel) -> None:
    """Print what `kvbraid model --groups` shows."""
    grouping, model = grouped.grouping, grouped.model
    rows = [
        (
            str(index),
            group.kind.value,
            str(len(group.layers)),
            *_sizes(group.spec().window, group.spec().chunk, group.spec().block_size),
            _pages(group),
            f"{group.padding_bytes:,}",
            runs(tuple(sorted(group.numbers))),
        )
        for index, group in enumerate(grouping.groups)
    ]
    title = (
        f"{model.model_type}: {counted(model.num_layers, 'layer')}, "
        f"{counted(len(grouping.groups), 'group')}"
    )
    _print(console, title, _GROUP_COLUMNS, rows)
    print_lines(console, [*_sums(grouped), *_assumed(model)])


def options_line(options: EngineOptions) -> str:
    """Return how the engine is thought to be started, with the options that say otherwise."""
    manager = "on" if options.hybrid else "off"
    return (
        f"Engine: --block-size {options.attention_block_size}, --kernel-block "
        f"{options.kernel_block_size}, --tp {options.num_ranks}, --dtype "
        f"{options.cache_dtype or 'of the model'}, hybrid cache manager {manager} (--no-hybrid)."
    )


def fleet_toml(grouped: GroupedModel) -> str:
    """Return `topology` and `block_bytes` of a `[[pods]]` table, at any place among its keys."""
    topology, model_type = grouped.grouping.topology(), grouped.model.model_type
    fields = [
        f"alignment = {topology.alignment}",
        f"hash_block_size = {topology.hash_block_size}",
        f"partial_hits = {str(bool(topology.partial_hits)).lower()}",
        "groups = [",
    ]
    return "\n".join(
        (
            f"# The groups that vLLM forms of {model_type}. SGLang: give model_config instead.",
            f"topology = {{ {', '.join(fields)}",
            *(f"  {_group_toml(group)}," for group in topology.groups),
            "] }",
            f"block_bytes = {grouped.grouping.block_bytes}",
            "",
        )
    )


def _group_toml(group: GroupSpec) -> str:
    known = {
        "kind": f'"{group.kind.value}"',
        "block_size": group.block_size,
        "window": group.window,
        "chunk": group.chunk,
        "variant": group.variant or None,
    }
    fields = (f"{name} = {value}" for name, value in known.items() if value is not None)
    return f"{{ {', '.join(fields)} }}"


def _print(
    console: Console, title: str, columns: Sequence[Column], rows: Sequence[tuple[str, ...]]
) -> None:
    """Print a table without the columns that say nothing of any row."""
    said = [i for i in range(len(columns)) if any(row[i] != _NONE for row in rows)]
    print_listing(
        console,
        Listing(
            title=title,
            columns=[columns[i] for i in said],
            rows=[[row[i] for i in said] for row in rows],
        ),
    )


def _sizes(*sizes: int | None) -> tuple[str, ...]:
    return tuple(_NONE if size is None else f"{size:,}" for size in sizes)


def _pages(group: LayerGroup) -> str:
    """The size of a page, or of the smallest and the largest."""
    sizes = sorted({layer.page.page_bytes for layer in group.layers})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}-{sizes[-1]:,}"


def _sums(grouped: GroupedModel) -> tuple[str, ...]:
    grouping, options = grouped.grouping, grouped.options
    per = "" if options.num_ranks == 1 else f" on each of {options.num_ranks} ranks"
    slots = counted(grouping.padding_slots, "layer slot")
    return (
        f"A block takes {grouping.block_bytes:,} bytes{per}; {slots} "
        f"{'is' if grouping.padding_slots == 1 else 'are'} padding.",
        f"Groups agree every {grouping.alignment:,} tokens; the engine hashes every "
        f"{grouping.hash_block_size:,}.",
        "Blocks, windows and chunks in tokens; a page is one layer's part of a block; unused: "
        "bytes of a group's block.",
        options_line(options),
    )


def _assumed(model: ModelLayers) -> list[str]:
    return [
        f"assumed: {name} = {value} (not in the config)" for name, value in model.assumed.items()
    ]
