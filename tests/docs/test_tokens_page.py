"""The page on token ids: every message that refuses text is explained, and its example scores."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kvbraid.errors import InvalidValueError
from kvbraid.gateway.prompts import REASONS
from kvbraid.service.decoding import describe
from kvbraid.service.http.client import read_request
from kvbraid.service.requests import ScoreBody

from tests.docs.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "tokens.md"
TEXT = PAGE.read_text()


def refusal_of_body(key: str) -> str:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(f'{{"model": "m", "{key}": "Hello"}}', type=ScoreBody)
    return describe(wrong.value, ScoreBody)


@pytest.mark.parametrize("key", ["prompt", "text", "messages"])
def test_text_in_a_body_is_answered_with_a_route_of_the_page(key: str) -> None:
    told = refusal_of_body(key)
    (route,) = re.findall(r"POST /\S+", told)
    assert f"`{route}`" in TEXT
    assert "docs/tokens.md" in told


def test_text_on_the_command_line_is_answered_with_a_route_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Hello")
    with pytest.raises(InvalidValueError) as refused:
        read_request(str(path), {"model": "m"})
    (route,) = re.findall(r"POST /\S+", str(refused.value))
    assert f"`{route}`" in TEXT
    assert "docs/tokens.md" in str(refused.value)


def test_the_example_also_takes_an_answer_without_pictures_and_several_with_them() -> None:
    (program,) = (block.text for block in blocks(PAGE) if "def request_of(" in block.text)
    names: dict[str, Any] = {}
    exec(program, names)
    request_of = names["request_of"]
    assert request_of({"token_ids": [1], "features": None}, "m").extra_keys is None
    features = {
        "mm_hashes": {"image": ["b", "c"], "audio": ["a"]},
        "mm_placeholders": {
            "image": [{"offset": 4, "length": 2}, {"offset": 8, "length": 1}],
            "audio": [{"offset": 1, "length": 2}],
        },
    }
    request = request_of({"token_ids": list(range(9)), "features": features}, "m", "salt")
    assert [tuple(item) for item in request.extra_keys] == [("a", 1, 2), ("b", 4, 2), ("c", 8, 1)]
    assert (request.cache_salt, list(request.token_ids)) == ("salt", list(range(9)))


def test_every_reason_for_unknown_ids_is_explained() -> None:
    section = TEXT.split("\n## In a gateway\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| ", section.split("| reason |")[1], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(REASONS)
