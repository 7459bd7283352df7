"""ARCHITECTURE.md is a map: short, complete in its rooms, and its addresses exist."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.markdown import ROOT

MAP: Final = (ROOT / "ARCHITECTURE.md").read_text()
CORE: Final = ROOT / "crates" / "core" / "src"
PACKAGE: Final = ROOT / "python" / "kvbraid"


def folders(parent: Path, pattern: str) -> list[str]:
    return [
        path.name
        for path in parent.glob(pattern)
        if any(path.glob("*.rs")) or any(path.glob("*.py"))
    ]


def test_the_map_is_short() -> None:
    assert len(MAP.splitlines()) <= 150


@pytest.mark.parametrize("what", ["model", "event form", "route", "engine", "retention"])
def test_the_map_says_where_to_begin(what: str) -> None:
    section = MAP.split("\n## Where to begin\n")[1]
    assert re.search(rf"^\| an? {what}\b", section, re.MULTILINE)


def test_every_address_of_the_map_exists() -> None:
    addresses = re.findall(r"`((?:python|crates|tests|examples|docs)/[\w/.-]+)`", MAP)
    assert len(addresses) >= 10
    assert [address for address in addresses if not (ROOT / address).exists()] == []


def test_every_room_is_on_the_map() -> None:
    rooms = [*folders(CORE, "*"), *folders(CORE, "*/*"), *folders(PACKAGE, "*")]
    assert len(rooms) >= 20
    assert [room for room in rooms if not re.search(rf"\b{room}\b", MAP)] == []


def test_every_page_on_a_life_is_on_the_map() -> None:
    lives = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/design/*.md")]
    assert len(lives) >= 8
    assert [life for life in lives if f"({life})" not in MAP] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/decisions/*.md")), ids=lambda p: p.stem)
def test_a_decision_is_short_and_names_its_alternative(path: Path) -> None:
    text = path.read_text()
    assert re.fullmatch(r"\d{4}-[a-z-]+", path.stem)
    assert len(text.splitlines()) <= 40
    assert "**Decision.**" in text
    assert "**Alternative" in text
