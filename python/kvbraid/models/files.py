"""A model's published config.json: one JSON object from disk or by the model's name, or a refusal.

This is the only module of this package that opens a file; read.py interprets the object.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from kvbraid.errors import InvalidValueError
from kvbraid.models.known import CONFIGS


def find_config(model: str | Path, *, folder: Path | None = None) -> Mapping[str, object]:
    """Return the config of a known model, or read that of a path, which may be its folder.

    A relative path begins at `folder`; None: where the process runs. `./NAME` is never a name.

    Raises:
        InvalidValueError: One line with the file and a remedy.
    """
    if model in CONFIGS:
        return CONFIGS[str(model)]
    path = Path(model) if folder is None else folder / model
    if not path.exists():
        raise InvalidValueError(
            f"{path} cannot be read: No such file or directory; give the path of a model's "
            f"config.json, or one of {', '.join(CONFIGS)}"
        )
    return read_config(path / "config.json" if path.is_dir() else path)


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
