"""`kvbraid check-config` and `kvbraid new-key`: a fleet.toml before a server reads it."""

import json
import sys
from pathlib import Path

import click

from kvbraid.cli.options import TEXT
from kvbraid.errors import InvalidValueError, counted


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


@click.command("new-key")
@click.argument("name", type=TEXT)
@click.option(
    "--right", "rights", multiple=True, required=True,
    type=click.Choice(["read", "explain", "route", "change", "snapshot"]),
    help="What the key allows; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON line.")
def new_key(name: str, *, rights: tuple[str, ...], as_json: bool) -> None:
    """Make a key, and print the table of fleet.toml that allows it.

    The table has only the key's hash. The key itself goes to stderr, and is shown this once.
    """
    import msgspec

    from kvbraid.service import keys
    from kvbraid.service.decoding import describe

    key = keys.new_key()
    given = {"name": name, "sha256": keys.digest(key.encode()).hex(), "rights": [*rights]}
    try:
        entry = msgspec.convert(given, keys.KeyEntry)
    except msgspec.ValidationError as error:
        raise InvalidValueError(f"a key of {describe(error, keys.KeyEntry)}") from None
    if as_json:
        click.echo(json.dumps(given | {"key": key}))
        return
    click.echo(f"the key, which is shown only now: {key}", err=True)
    listed = ", ".join(f'"{right}"' for right in entry.rights)
    click.echo(f'[[keys]]\nname = "{name}"\nsha256 = "{entry.sha256}"\nrights = [{listed}]')
