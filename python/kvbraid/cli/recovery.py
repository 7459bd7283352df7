"""The command that explains a recovery from the state that a scheduler dumped."""

import json
from pathlib import Path
from typing import Final

import click

from kvbraid.errors import InvalidValueError, TooLargeError

_MOST_REFUSALS: Final = 64


@click.command()
@click.option(
    "--explain", "path", type=click.Path(path_type=Path), required=True, metavar="STATE.json",
    help="The state: a file that a scheduler dumped.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the decision as one JSON line.")
def recover(path: Path, *, as_json: bool) -> None:
    """Show how each request recovers from failed loads, and why.

    It also says why no request resumes later than that.
    """
    from kvbraid.recovery import read
    from kvbraid.recovery.document.reading import MAX_BYTES
    from kvbraid.report.recovery import recovery_json, recovery_text
    from kvbraid.state_files import read_state_file

    data = read_state_file(path, max_bytes=MAX_BYTES)
    try:
        state = read(data)
        plan = state.decide(max_refusals=_MOST_REFUSALS)
    except (InvalidValueError, TooLargeError) as error:
        raise type(error)(f"{path}: {error}") from error
    click.echo(json.dumps(recovery_json(state, plan)) if as_json else recovery_text(state, plan))
