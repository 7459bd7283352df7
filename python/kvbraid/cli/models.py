"""Commands that start from a model's config.json: its layers, its groups, its memory."""

import json
from pathlib import Path
from typing import Any

import click

from kvbraid.cli.options import TEXT, engine


@click.command()
@click.argument("config", type=click.Path())
@click.option(
    "--groups", is_flag=True,
    help="Show the KV cache groups that vLLM forms: their layers, blocks and pages.",
)  # fmt: skip
@engine(note="  Needs --groups.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--toml", "as_toml", is_flag=True,
    help="Print a pod's topology and block_bytes for fleet.toml.  Needs --groups.",
)  # fmt: skip
def model(
    config: str,
    *,
    groups: bool,
    as_json: bool,
    as_toml: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Show a model's layers with their kinds and sizes.

    CONFIG is a Hugging Face config.json, its folder, or the name of a known model.
    """
    from kvbraid.models import EngineOptions, find_config, group_config, kinds_of
    from kvbraid.report.console import stdout
    from kvbraid.report.models import fleet_toml, show_groups, show_layers

    given = {name: value for name, value in options.items() if value is not None}
    if as_toml and as_json:
        raise click.UsageError("--json and --toml; choose one")
    if groups:
        grouped = group_config(find_config(config), EngineOptions(**given))
        if as_json:
            click.echo(json.dumps(grouped.to_json()))
        elif as_toml:
            click.echo(fleet_toml(grouped), nl=False)
        else:
            show_groups(stdout(), grouped)
        return
    given |= {"as_toml": True} if as_toml else {}
    if given:
        parameters = click.get_current_context().command.params
        flags = ", ".join(each.opts[0] for each in parameters if each.name in given)
        raise click.UsageError(f"{flags} without --groups; add --groups, or leave it out")
    layers = kinds_of(find_config(config))
    if as_json:
        click.echo(json.dumps(layers.to_json()))
    else:
        show_layers(stdout(), layers)


@click.command()
@click.argument("config", type=click.Path())
@click.option("--memory", type=TEXT, help="Memory of the cache on one rank, such as 60GiB.")
@click.option(
    "--layout", type=click.Choice(["nhd", "hnd", "blnhc", "blhnc", "bhlnc", "lbhnc"]),
    default="nhd", show_default=True,
    help="Order of blocks, layers, heads, tokens (n) and content in memory. nhd and hnd: keys and "
    "values apart, heads inside a layer's page or before layers.",
)  # fmt: skip
@engine()
@click.option(
    "--split", type=click.Choice(["interleaved", "intact"]),
    help="Split blocks into blocks of the kernel's size, with those of all layers together, or "
    "with each layer's page in one piece.",
)  # fmt: skip
@click.option(
    "--pack",
    "packed",
    is_flag=True,
    help="Put pages of several sizes side by side into one block.",
)
@click.option("--svg", type=click.Path(path_type=Path), help="Draw a block into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
def plan(
    config: str, *, memory: str | None, layout: str, split: str | None, svg: Path | None,
    as_json: bool, **options: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Show where each byte of a model's cache lies in memory.

    CONFIG is a Hugging Face config.json, its folder, or the name of a known model.
    """
    from kvbraid.layout import Layout, Split, plan_config, to_json
    from kvbraid.models import EngineOptions, find_config
    from kvbraid.report.block_picture import write_picture
    from kvbraid.report.console import stdout
    from kvbraid.report.memory_plan import plan_title, show_plan
    from kvbraid.sim.traces.memory_size import parse_size

    planned = plan_config(
        find_config(config),
        EngineOptions(**{name: value for name, value in options.items() if value is not None}),
        layout=Layout(layout),
        split=None if split is None else Split(split),
        memory_bytes=None if memory is None else parse_size(memory),
    )
    if svg is not None:
        write_picture(svg, planned.plan, plan_title(planned))
    if as_json:
        click.echo(json.dumps(to_json(planned.plan)))
    else:
        show_plan(stdout(), planned)
