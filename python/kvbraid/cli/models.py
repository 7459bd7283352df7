"""Commands that start from a model's config.json: its layers, and its groups."""

import json
from pathlib import Path
from typing import Any

import click

from kvbraid.cli.options import engine


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--groups", is_flag=True,
    help="Show the KV cache groups that vLLM forms: their layers, blocks and pages.",
)  # fmt: skip
@engine(note="  Needs --groups.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def model(config: Path, *, groups: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Show the layers of a Hugging Face config.json with their kinds and sizes."""
    from kvbraid.models import EngineOptions, group_config, kinds_of, read_config
    from kvbraid.report.models import group_table, layer_table

    given = {name: value for name, value in options.items() if value is not None}
    if groups:
        grouped = group_config(read_config(config), EngineOptions(**given))
        click.echo(json.dumps(grouped.to_json()) if as_json else group_table(grouped))
        return
    if given:
        parameters = click.get_current_context().command.params
        flags = ", ".join(each.opts[0] for each in parameters if each.name in given)
        msg = f"{flags} without --groups; add --groups, or leave it out"
        raise click.UsageError(msg)
    layers = kinds_of(read_config(config))
    click.echo(json.dumps(layers.to_json()) if as_json else layer_table(layers))
