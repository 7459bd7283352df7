"""The checks of arguments that the cache makes before it calls the native core, or afterwards."""

from array import array
from collections.abc import Iterable, Sequence
from operator import index
from typing import Final

from kvbraid.cache.step import Match, Need
from kvbraid.errors import InvalidValueError, shown
from kvbraid.hashing import NO_EXTRA_KEYS, ExtraKeys
from kvbraid.kinds import check_fields, check_kind

NOT_TAKEN: Final = (TypeError, AttributeError, OverflowError)
"""The errors of the native core for a value that it cannot convert."""

_NOT_COUNTS: Final = (OverflowError, TypeError, ValueError)
"""The errors of an array for values that it cannot hold; the last is for bytes."""

_COUNTS_OF_NEED: Final = (
    "num_new_tokens",
    "num_hit_tokens",
    "num_external_tokens",
    "num_lookahead_tokens",
    "num_in_flight_tokens",
    "num_encoder_tokens",
)
_OPTIONAL_COUNTS_OF_NEED: Final = ("junction", "num_computed_tokens")
_KINDS_OF_NEED: Final = {
    "request": int,
    "match": Match | None,
    "delay_commit": bool,
    "loading_groups": tuple | list,
    "full_sequence_must_fit": bool,
    "is_waiting": bool,
}


def check_counts(**counts: int | None) -> None:
    """Refuse a value that is no unsigned integer of 32 bits.

    Raises:
        InvalidValueError: The message names the count and its limits.
    """
    for name, count in counts.items():
        if not _is_unsigned(count, bits=32):
            raise InvalidValueError(f"{name} is {shown(count)}; expected 0 to {(1 << 32) - 1}")


def check_optional_counts(**counts: int | None) -> None:
    """Refuse a value that is neither None nor an unsigned integer of 32 bits.

    Raises:
        InvalidValueError: The message names the count and its limits.
    """
    check_counts(**{name: count for name, count in counts.items() if count is not None})


def _is_unsigned(value: int | None, *, bits: int) -> bool:
    try:
        return value is not None and 0 <= index(value) < 1 << bits
    except TypeError:
        return False


def check_each(name: str, counts: Iterable[int]) -> None:
    """Refuse values of which one is no unsigned integer of 32 bits.

    Raises:
        InvalidValueError: The message names the first such value and its limits.
    """
    try:
        array("I", counts)  # There may be thousands: much faster than to find the extremes.
    except _NOT_COUNTS:
        if not isinstance(counts, Iterable):
            raise InvalidValueError(f"{name}s are {shown(counts)}; expected a list") from None
        for count in counts:
            check_counts(**{name: count})


def check_requests(name: str, requests: Iterable[int]) -> None:
    """Refuse values of which one cannot be the number of a request.

    Raises:
        InvalidValueError: The message names the first such value.
    """
    try:
        array("Q", requests)
    except _NOT_COUNTS:
        if not isinstance(requests, Iterable):
            raise InvalidValueError(f"{name} is {shown(requests)}; expected numbers") from None
        for request in requests:
            if not _is_unsigned(request, bits=64):
                said = f"{name} has request {shown(request)}; expected a number that add returned"
                raise InvalidValueError(said) from None


def check_group(group: int, num_groups: int) -> None:
    """Refuse a group that the cache does not have.

    Raises:
        InvalidValueError: The message names the group, and how many groups there are.
    """
    if not _is_unsigned(group, bits=32) or group >= num_groups:
        raise InvalidValueError(f"group is {shown(group)}; the cache has {num_groups}")


def check_hash(block_hash: bytes) -> None:
    """Refuse a hash that is not bytes.

    Raises:
        InvalidValueError: The message shows the value.
    """
    check_kind("block_hash", block_hash, bytes)


def check_needs(needs: Sequence[Need], num_groups: int) -> None:
    """Refuse a need with a value that is no count, or with a group that the cache does not have.

    Raises:
        InvalidValueError: The message names the value and its limits.
    """
    check_kind("needs", needs, Sequence)
    for number, need in enumerate(needs):
        check_kind(f"needs[{number}]", need, Need)
        check_fields(need, _KINDS_OF_NEED)
        check_requests(f"needs[{number}]", (need.request,))
        check_counts(**{name: getattr(need, name) for name in _COUNTS_OF_NEED})
        check_optional_counts(**{name: getattr(need, name) for name in _OPTIONAL_COUNTS_OF_NEED})
        for group in need.loading_groups:
            check_group(group, num_groups)
        if need.match is not None:
            check_counts(**need.match._asdict())


def check_new(
    *,
    extra: ExtraKeys = NO_EXTRA_KEYS,
    lora_id: int | None = None,
    session_id: str | None = None,
    block_hashes: Sequence[bytes] | None = None,
    will_return: float | None = None,
) -> None:
    """Refuse what no request has.

    Raises:
        InvalidValueError: The message names the value and what was expected.
    """
    check_kind("extra", extra, ExtraKeys)
    check_kind("lora_id", lora_id, int | None)
    check_kind("session_id", session_id, str | None)
    check_kind("block_hashes", block_hashes, list | tuple | None)
    for number, block_hash in enumerate(block_hashes or ()):
        check_kind(f"block_hashes[{number}]", block_hash, bytes)
    if will_return is not None and not hasattr(will_return, "__float__"):
        msg = (
            f"will_return is {shown(will_return)}; expected True, False, a probability from 0 to "
            "1, or None if nothing is known"
        )
        raise InvalidValueError(msg)
