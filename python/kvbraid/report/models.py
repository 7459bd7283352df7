"""`kvbraid model`: a model's layers, and the groups that an engine makes of them, as tables."""

from rich.table import Table

from kvbraid.models import GroupedModel, LayerGroup, ModelLayers
from kvbraid.models.layers import runs
from kvbraid.report.console import as_text


def layer_table(model: ModelLayers) -> str:
    """Return what `kvbraid model` prints."""
    table = Table(title=f"{model.model_type}: {model.num_layers} layers", title_justify="left")
    table.add_column("kind", no_wrap=True)
    for name in ("layers", "window", "chunk", "KV bytes/token", "state bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which")
    for kind in model.kinds:
        spec = kind.spec
        table.add_row(
            spec.kind.value,
            str(len(kind.layers)),
            *_sizes(spec.window, spec.chunk, spec.kv_bytes_per_token, spec.state_bytes),
            runs(kind.layers),
        )
    note = "Windows and chunks in tokens; bytes per layer, before tensor parallelism."
    return as_text(table, note, *_assumed(model))


def group_table(grouped: GroupedModel) -> str:
    """Return what `kvbraid model --groups` prints."""
    grouping, model = grouped.grouping, grouped.model
    table = Table(
        title=f"{model.model_type}: {model.num_layers} layers, {len(grouping.groups)} groups",
        title_justify="left",
    )
    table.add_column("group", justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for name in ("layers", "window", "chunk", "block", "page bytes", "unused"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which")
    for index, group in enumerate(grouping.groups):
        spec = group.spec()
        table.add_row(
            str(index),
            spec.kind.value,
            str(len(group.layers)),
            *_sizes(spec.window, spec.chunk, spec.block_size),
            _pages(group),
            f"{group.padding_bytes:,}",
            runs(tuple(sorted(group.numbers))),
        )
    return as_text(table, *_sums(grouped), *_assumed(model))


def _sizes(*sizes: int | None) -> tuple[str, ...]:
    return tuple("-" if size is None else f"{size:,}" for size in sizes)


def _pages(group: LayerGroup) -> str:
    """The size of a page, or of the smallest and the largest."""
    sizes = sorted({layer.page.page_bytes for layer in group.layers})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}-{sizes[-1]:,}"


def _sums(grouped: GroupedModel) -> tuple[str, ...]:
    grouping, options = grouped.grouping, grouped.options
    per = "" if options.num_ranks == 1 else f" on each of {options.num_ranks} ranks"
    return (
        f"A block takes {grouping.block_bytes:,} bytes{per}; {grouping.padding_slots} layer slots "
        "are padding.",
        f"Groups agree every {grouping.alignment:,} tokens; the engine hashes every "
        f"{grouping.hash_block_size:,}.",
        "Blocks, windows and chunks in tokens; a page is one layer's part of a block; unused: "
        "bytes of a group's block.",
    )


def _assumed(model: ModelLayers) -> list[str]:
    return [
        f"assumed: {name} = {value} (not in the config)" for name, value in model.assumed.items()
    ]
