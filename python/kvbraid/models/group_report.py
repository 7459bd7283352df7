"""`kvbraid model CONFIG.json --groups`: the groups an engine forms, for people or as JSON."""

import json
from io import StringIO
from pathlib import Path

from kvbraid.models.engine_groups import EngineOptions, GroupedModel, group_config
from kvbraid.models.files import read_config
from kvbraid.models.grouping import LayerGroup
from kvbraid.models.layers import runs


def group_report(path: Path, options: EngineOptions, *, as_json: bool) -> str:
    """Return what `kvbraid model --groups` prints for one config file.

    Raises:
        InvalidValueError: A file that cannot be read, a config or a grouping that is refused.
    """
    grouped = group_config(read_config(path), options)
    return json.dumps(to_json(grouped)) if as_json else to_table(grouped)


def to_json(grouped: GroupedModel) -> dict[str, object]:
    """Return the object that `kvbraid model --groups --json` prints."""
    grouping = grouped.grouping
    return {
        "model_type": grouped.model.model_type,
        "num_layers": grouped.model.num_layers,
        "num_ranks": grouped.options.num_ranks,
        "groups": [_group(group) for group in grouping.groups],
        "block_bytes": grouping.block_bytes,
        "padding_slots": grouping.padding_slots,
        "alignment": grouping.alignment,
        "hash_block_size": grouping.hash_block_size,
        "assumed": dict(grouped.model.assumed),
    }


def _group(group: LayerGroup) -> dict[str, object]:
    spec = group.spec()
    return {
        "kind": spec.kind.value,
        "layers": list(group.numbers),
        "block_size": spec.block_size,
        "window": spec.window,
        "chunk": spec.chunk,
        "page_bytes": [layer.page.page_bytes for layer in group.layers],
        "padding_bytes": group.padding_bytes,
        "block_bytes": group.block_bytes,
    }


def to_table(grouped: GroupedModel) -> str:
    """Return what `kvbraid model --groups` prints for people."""
    from rich.console import Console
    from rich.table import Table

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
        sizes = (spec.window, spec.chunk, spec.block_size)
        table.add_row(
            str(index),
            spec.kind.value,
            str(len(group.layers)),
            *("-" if size is None else f"{size:,}" for size in sizes),
            _pages(group),
            f"{group.padding_bytes:,}",
            runs(tuple(sorted(group.numbers))),
        )
    out = StringIO()
    console = Console(file=out, width=118, force_terminal=False, color_system=None)
    console.print(table)
    for line in _sums(grouped):
        console.print(line)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _pages(group: LayerGroup) -> str:
    """The size of a page, or of the smallest and the largest."""
    sizes = sorted({layer.page.page_bytes for layer in group.layers})
    return f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,}-{sizes[-1]:,}"


def _sums(grouped: GroupedModel) -> list[str]:
    grouping, options = grouped.grouping, grouped.options
    per = "" if options.num_ranks == 1 else f" on each of {options.num_ranks} ranks"
    return [
        f"A block takes {grouping.block_bytes:,} bytes{per}; {grouping.padding_slots} layer slots "
        "are padding.",
        f"Groups agree every {grouping.alignment:,} tokens; the engine hashes every "
        f"{grouping.hash_block_size:,}.",
        "Blocks, windows and chunks in tokens; a page is one layer's part of a block; unused: "
        "bytes of a group's block.",
        *(
            f"assumed: {name} = {value} (not in the config)"
            for name, value in grouped.model.assumed.items()
        ),
    ]
