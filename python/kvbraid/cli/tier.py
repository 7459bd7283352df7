"""The command that looks into a directory in which engines keep blocks."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from kvbraid.cli.options import require_extra


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Read every record; exit with 1 if one is bad.")
@click.option(
    "--gc", "remove", is_flag=True,
    help="Remove orphans and short records, with --verify also corrupt ones.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the answer as one JSON line.")
def tier(directory: Path, *, verify: bool, remove: bool, as_json: bool) -> None:
    """Count, verify and clean the records of blocks in DIR.

    `short` records are not as long as their names say, `corrupt` ones have other bytes than were
    stored, and `foreign` ones belong to another model, rank or version than their folder; these
    stay. `orphans` were being written when their engine died. Without --verify only names and
    lengths are looked at. Engines may use DIR meanwhile.
    """
    require_extra("transfer", "kvbraid tier", "xxhash")
    from kvbraid.report.tier_contents import inspect_with_progress, show_contents

    found = inspect_with_progress(directory, verify=verify, remove=remove)
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        show_contents(found)
    if verify and found.has_bad_records:
        sys.exit(1)
