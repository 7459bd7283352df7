"""Every `kvbraid` command line that a page shows is one that the program accepts."""

import shlex
from pathlib import Path

import click
import pytest
from kvbraid.cli import cli

from tests.docs.markdown import ROOT, commands, pages


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_kvbraid_command_shown_is_accepted(page: Path) -> None:
    for line in commands(page):
        program, *arguments = shlex.split(line.partition("|")[0].partition(">")[0])
        if program == "kvbraid":
            assert_accepts(arguments)


def assert_accepts(arguments: list[str]) -> None:
    """The command is one of ours, and every long option shown is one of its options."""
    command: click.Command = cli
    rest = arguments
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, f"kvbraid {' '.join(arguments)}: no such command"
        command, rest = found, rest[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    shown = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert shown <= known, f"kvbraid {' '.join(arguments)}"
