"""docs/cli.md is the help that the commands print."""

from tests.docs.cli_page import PAGE, render


def test_the_page_equals_the_commands_own_help() -> None:
    assert PAGE.read_text() == render(), "run `make docs`"
