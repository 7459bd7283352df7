"""Sizes of memory as people write them: "40GiB", "512 MiB", "80GB", "64424509440".

A number without a unit counts bytes. A small one is refused: who writes 40 means GiB.
"""

import re
from types import MappingProxyType
from typing import Final

from kvbraid.errors import InvalidValueError, shortened

UNITS: Final = MappingProxyType(
    {
        "": 1,
        "B": 1,
        **{f"{letter}iB": 1 << 10 * (i + 1) for i, letter in enumerate("KMGTP")},
        **{f"{letter}B": 1000 ** (i + 1) for i, letter in enumerate("KMGTP")},
    }
)

_LEAST_WITHOUT_UNIT: Final = 1 << 20

_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Return the bytes that `text` names.

    Raises:
        InvalidValueError: The text is not a number with one of the units.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is not None and not found[2] and float(found[1]) < _LEAST_WITHOUT_UNIT:
        number = found[1]
        msg = (
            f"{shortened(text)} has no unit; write {number}GiB or {number}GB ({number}B for bytes)"
        )
        raise InvalidValueError(msg)
    if found is None or found[2] not in UNITS:
        expected = "expected a number and a unit, such as 40GiB or 80GB"
        raise InvalidValueError(f"{shortened(text)} is not a size of memory; {expected}")
    return int(float(found[1]) * UNITS[found[2]])


def show_size(num_bytes: int) -> str:
    """Write bytes in the largest binary unit that fits, with up to one decimal."""
    for letter in "PTGMK":
        unit = f"{letter}iB"
        if num_bytes >= UNITS[unit]:
            return f"{num_bytes / UNITS[unit]:.1f}".removesuffix(".0") + " " + unit
    return f"{num_bytes} B"
