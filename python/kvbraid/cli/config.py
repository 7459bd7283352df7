"""`kvbraid check-config`: what is wrong in a fleet.toml, before a server reads it."""

import json
import sys
from pathlib import Path

import click

from kvbraid.errors import counted


@click.command("check-config")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON Schema of such a file instead.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON line.")
def check_config(file: Path | None, *, schema: bool, as_json: bool) -> None:
    """Print everything that is wrong in a fleet.toml.

    FILE is read as `kvbraid serve` reads it. Each error is a line with its place, the value and a
    remedy, and the status is 1 if there are any.
    """
    from kvbraid.service import fleet_file

    if (file is None) is not schema:
        raise click.UsageError("Give a FILE, or --schema alone.")
    if file is None:
        click.echo(fleet_file.schema())
        return
    config, faults = fleet_file.examine(file)
    if as_json:
        click.echo(json.dumps({"file": str(file), "errors": faults}))
    elif config is not None:
        click.echo(f"{file}: nothing is wrong; {counted(len(config.pods), 'pod')}")
    else:
        for fault in faults:
            click.echo(f"{file}: {fault}")
    sys.exit(bool(faults))
