"""docs/cli.md is the help that the commands print."""

import click
import pytest
from kvbraid.cli import cli
from kvbraid.cli.cache import cache

from tests.docs.cli_page import PAGE, render


def test_the_page_equals_the_commands_own_help() -> None:
    assert PAGE.read_text() == render(), "run `make docs`"


@pytest.mark.parametrize("group", [cli, cache], ids=["kvbraid", "kvbraid cache"])
def test_at_80_columns_every_summary_is_whole(group: click.Group) -> None:
    context = click.Context(group, terminal_width=80, **cli.context_settings)
    listed = context.get_help().partition("Commands:\n")[2].splitlines()
    assert len(listed) == len(group.commands)
    assert [line for line in listed if line.endswith("...") or len(line) > 80] == []
