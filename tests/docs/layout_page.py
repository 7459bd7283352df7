"""Draws the pictures of docs/layout.md, by the commands that the page shows.

`python -m tests.docs.layout_page` draws them; test_layout_page.py checks that they are current.
"""

import shlex
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from kvbraid.cli import cli

from tests.docs.markdown import ROOT, commands

PAGE: Final = ROOT / "docs" / "layout.md"


def pictures() -> dict[Path, list[str]]:
    """Return each picture with the arguments that draw it, but for the file at their end."""
    shown = [shlex.split(line) for line in commands(PAGE)]
    return {ROOT / words[-1]: words[1:-1] for words in shown if words[-2] == "--svg"}


def draw(arguments: list[str], picture: Path) -> None:
    """Run the command, with paths from the root of the repository."""
    words = [str(ROOT / word) if word.endswith(".json") else word for word in arguments]
    CliRunner().invoke(cli, [*words, str(picture)], catch_exceptions=False)


if __name__ == "__main__":
    for picture, arguments in pictures().items():
        draw(arguments, picture)
