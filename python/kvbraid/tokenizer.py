"""A model's own tokenizer.json, which the package tokenizers loads from disk.

The package is imported only if there is text to read. Special tokens are added as the file says.
Nothing is downloaded.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kvbraid.errors import InvalidValueError, one_line
from kvbraid.extras import remedy

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""Turns a text into token ids."""


def load_tokenizer(path: Path) -> Encode:
    """Return the function that turns text into token ids; `path` may be the model's folder.

    Raises:
        InvalidValueError: The package is not installed, or the file is no tokenizer.
    """
    tokenizer = read_tokenizer(path, extra="prompts")

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    return encode


def read_tokenizer(path: Path, *, extra: str) -> Any:  # noqa: ANN401 - mypy reads no types of it
    """Return the package's own tokenizer; `extra` is what installs the package.

    Raises:
        InvalidValueError: The package is not installed, or the file is no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidValueError(
            "prompts of text need the package tokenizers, which is not installed: "
            f"{remedy(extra)}, or give token ids"
        ) from None
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the package raises nothing more special
        msg = f"{file}: {error}; give a model's tokenizer.json, or its folder"
        raise InvalidValueError(one_line(msg)) from None
