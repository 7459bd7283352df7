"""A model's published config.json, read from disk: one JSON object, or a refusal.

This is the only module of this package that opens a file; read.py interprets the object.
"""

import json
from pathlib import Path

from kvbraid.errors import InvalidValueError


def read_config(path: Path) -> dict[str, object]:
    """Read a config.json.

    Raises:
        InvalidValueError: One line with the file and a remedy.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; give the path of a model's config.json"
        raise InvalidValueError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not JSON: {error}; give the path of a model's config.json"
        raise InvalidValueError(msg) from error
    if not isinstance(config, dict):
        msg = f"{path} holds a {type(config).__name__}; expected a model's config object"
        raise InvalidValueError(msg)
    return config
