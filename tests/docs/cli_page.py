"""Write docs/cli.md: the help of every `kvbraid` command, as the commands themselves print it.

`python -m tests.docs.cli_page` rewrites it; test_cli_page.py checks that it is current.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from kvbraid.cli import cli

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"
WIDTH: Final = 99
HEADER: Final = """\
# The command line

Written by `make docs` from the commands' own help; do not edit by hand. The command comes with the
extra `serve` ([installing](install.md)). The [glossary](glossary.md) explains the words.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """Yield a context for `command` and for everything below it, parents first."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None  # list_commands named it.
            yield from commands(child, click.Context(child, info_name=name, parent=context))


def render() -> str:
    """Return the whole page."""
    root = click.Context(cli, info_name="kvbraid", **cli.context_settings)
    sections = []
    for context in commands(cli, root):
        context.terminal_width = context.max_content_width = WIDTH
        text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
        path = context.command_path
        sections.append(f"## {path}\n\n```console\n$ {path} --help\n{text}\n```\n")
    return "\n".join([HEADER, *sections])


if __name__ == "__main__":
    PAGE.write_text(render())
