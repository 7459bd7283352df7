"""The two forms of a log line."""

import json
import logging
import sys

import pytest
from kvbraid.service.journal import FIELDS
from kvbraid.service.logs import JsonFormatter, TextFormatter

NEW_YEAR = 1767225600.0


def record(text: str, *, fields: dict[str, object] | None = None) -> logging.LogRecord:
    made = logging.LogRecord("kvbraid.pods", logging.INFO, "file", 1, "%s", (text,), None)
    made.created = NEW_YEAR
    if fields is not None:
        setattr(made, FIELDS, fields)
    return made


def failed() -> logging.LogRecord:
    made = record("it failed")
    try:
        raise ValueError("because")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_text_is_one_line() -> None:
    line = TextFormatter().format(record("pod a:\n\x1b[31mred"))
    assert line == "2026-01-01T00:00:00.000Z info kvbraid.pods: pod a:\\n\\x1b[31mred"


def test_json_is_one_line_with_the_parts_by_name() -> None:
    line = JsonFormatter().format(record("pod a:\nx", fields={"event": "state", "pod": "a"}))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.000Z",
        "level": "info",
        "logger": "kvbraid.pods",
        "message": "pod a:\nx",
        "event": "state",
        "pod": "a",
    }


@pytest.mark.parametrize("form", [TextFormatter, JsonFormatter])
def test_an_exception_is_told_with_its_traceback(form: type[logging.Formatter]) -> None:
    line = form().format(failed())
    told = json.loads(line)["exception"] if form is JsonFormatter else line
    assert "Traceback" in told
    assert told.endswith("ValueError: because")
