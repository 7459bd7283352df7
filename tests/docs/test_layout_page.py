"""The pictures of docs/layout.md are what its commands draw, and its JSON has the plan's keys."""

import json
from pathlib import Path

from kvbraid.layout import plan_config, to_json
from kvbraid.models import EngineOptions, read_config

from tests.docs.layout_page import PAGE, draw, pictures
from tests.docs.markdown import ROOT, blocks, local_links


def test_the_pictures_are_what_the_commands_draw(tmp_path: Path) -> None:
    found = pictures()
    assert {path.relative_to(PAGE.parent).as_posix() for path in found} == {
        link for link in local_links(PAGE) if link.endswith(".svg")
    }
    assert len(found) == 3
    for picture, arguments in found.items():
        drawn = tmp_path / picture.name
        draw(arguments, drawn)
        assert drawn.read_bytes() == picture.read_bytes(), "run: python -m tests.docs.layout_page"


def test_the_json_shown_has_the_keys_of_a_plan() -> None:
    (shown,) = (json.loads(block.text) for block in blocks(PAGE) if block.language == "json")
    config = read_config(ROOT / "tests" / "fixtures" / "models" / "gpt-oss-20b.json")
    found = to_json(plan_config(config, EngineOptions()).plan)
    assert list(shown) == list(found)
    for name in ("buffers", "groups"):
        assert list(shown[name][0]) == list(found[name][0])
    assert list(shown["views"]["0"]) == list(found["views"]["0"])
