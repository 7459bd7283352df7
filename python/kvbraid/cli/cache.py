"""Commands that try out one engine's cache without an engine."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from kvbraid.cli.options import TEXT, engine, taken


@click.group()
def cache() -> None:
    """Try out one engine's cache without an engine."""


@cache.command()
@click.argument("traffic", type=click.Path(path_type=Path))
@click.option("--model", required=True, help="The name of a known model, or a config.json.")
@click.option(
    "--memory",
    "memories",
    type=TEXT,
    multiple=True,
    required=True,
    help="Memory of the cache on one rank, such as 40GiB; may be repeated.",
)
@engine()
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="The model's tokenizer.json, for prompts of text.",
)
@click.option(
    "--policy", "policies", multiple=True, help="Try only this retention policy; may be repeated."
)
@click.option(
    "--requests",
    "num_requests",
    type=click.IntRange(1),
    help="Play only this many requests from the start.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw hit rates against memory into this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per result.")
def simulate(
    traffic: Path,
    *,
    tokenizer: Path | None,
    as_json: bool,
    plot: Path | None,
    **options: Any,  # noqa: ANN401 - the fields of GridOptions and EngineOptions
) -> None:
    """Play TRAFFIC against one cache and print token hit rates.

    TRAFFIC is a file with a request a line (token ids, text, or a public trace), or a folder that
    `kvbraid replay` takes.
    """
    from kvbraid.report.simulation import run_simulations
    from kvbraid.sim.traces.grid import Grid, GridOptions
    from kvbraid.sim.traffic import read_traffic

    asked = GridOptions(engine=taken(options), **options)
    read = partial(read_traffic, traffic, tokenizer=tokenizer)
    run_simulations(Grid.of(read, asked), as_json=as_json, plot=plot)
