"""`kvbraid model CONFIG.json`: one model's layers, for people or as JSON."""

import json
from io import StringIO
from pathlib import Path

from kvbraid.models.files import read_config
from kvbraid.models.layers import ModelLayers, runs
from kvbraid.models.read import kinds_of


def report(path: Path, *, as_json: bool) -> str:
    """Return what `kvbraid model` prints for one config file: one JSON object or a table.

    Raises:
        InvalidValueError: A file that cannot be read, or a config that is refused.
    """
    model = kinds_of(read_config(path))
    return json.dumps(model.to_json()) if as_json else _table(model)


def _table(model: ModelLayers) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{model.model_type}: {model.num_layers} layers", title_justify="left")
    table.add_column("kind", no_wrap=True)
    for name in ("layers", "window", "chunk", "KV bytes/token", "state bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("which")
    for kind in model.kinds:
        spec = kind.spec
        sizes = (spec.window, spec.chunk, spec.kv_bytes_per_token, spec.state_bytes)
        cells = ("-" if size is None else f"{size:,}" for size in sizes)
        table.add_row(spec.kind.value, str(len(kind.layers)), *cells, runs(kind.layers))
    out = StringIO()
    console = Console(file=out, width=118, force_terminal=False, color_system=None)
    console.print(table)
    console.print("Windows and chunks in tokens; bytes per layer, before tensor parallelism.")
    for name, value in model.assumed.items():
        console.print(f"assumed: {name} = {value} (not in the config)")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
