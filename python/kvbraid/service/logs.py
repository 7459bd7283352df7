"""How `kvbraid serve` writes its log: on stderr, a line per record, as text or as JSON.

The package itself logs through `logging` under the name `kvbraid`; only `kvbraid serve` decides
where that goes.
"""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO, TypeAlias

import msgspec

from kvbraid.errors import printable
from kvbraid.service.journal import FIELDS

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    """`2026-01-01T00:00:00.000Z info kvbraid.pods: pod a rank 0: state: exact`, for example."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and then the traceback of an exception if there is one."""
        level, told = record.levelname.lower(), printable(record.getMessage())
        line = f"{_time(record)} {level} {record.name}: {told}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """An object per line: time, level, logger, message, the parts by name, and an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


_FORMATTERS: Final[Mapping[Format, type[logging.Formatter]]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}


def configure(level: Level, form: Format, *, stream: TextIO | None = None) -> None:
    """Write everything that is logged to stderr (or a stream) from now on, and nothing elsewhere.

    `level` is that of kvbraid; other packages are heard from warnings on.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_FORMATTERS[form]())
    least = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)
    logging.getLogger("kvbraid").setLevel(least)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, tz=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
