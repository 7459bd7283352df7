"""The checks of arguments that the cache makes before it calls the native core."""

from array import array
from collections.abc import Collection, Iterable
from dataclasses import asdict

from kvbraid.cache.step import Need
from kvbraid.errors import InvalidValueError


def check_counts(**counts: int | None) -> None:
    """Refuse a value that is no unsigned integer of 32 bits.

    Raises:
        InvalidValueError: The message names the count and its limits.
    """
    for name, count in counts.items():
        if count is not None and not 0 <= count < 1 << 32:
            raise InvalidValueError(f"{name} is {count}; expected 0 to {(1 << 32) - 1}")


def check_each(name: str, counts: Collection[int]) -> None:
    """Refuse values of which one is no unsigned integer of 32 bits.

    Raises:
        InvalidValueError: The message names the first such value and its limits.
    """
    try:
        array("I", counts)  # There may be thousands: much faster than to find the extremes.
    except (OverflowError, TypeError):
        for count in counts:
            check_counts(**{name: count})


def check_group(group: int, num_groups: int) -> None:
    """Refuse a group that the cache does not have.

    Raises:
        InvalidValueError: The message names the group, and how many groups there are.
    """
    if not 0 <= group < num_groups:
        raise InvalidValueError(f"group is {group}; the cache has {num_groups}")


def check_needs(needs: Iterable[Need], num_groups: int) -> None:
    """Refuse a need with a value that is no count, or with a group that the cache does not have.

    Raises:
        InvalidValueError: The message names the value and its limits.
    """
    for need in needs:
        counts = asdict(need)
        for group in counts.pop("loading_groups"):
            check_group(group, num_groups)
        check_counts(**counts)
