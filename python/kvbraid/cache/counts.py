"""What the arguments of the cache may be: checked before the native core is called, or after."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from kvbraid.cache.step import Match, Need
from kvbraid.hashing import ExtraKeys
from kvbraid.reading import COUNT, Rule, ValueKind, check, check_each, check_fields, whole

NOT_TAKEN: Final = (TypeError, AttributeError, OverflowError)
"""The errors of the native core for a value that it cannot convert."""

_NOT_COUNTS: Final = (OverflowError, TypeError, ValueError)
"""The errors of an array for values that it cannot hold; the last is for bytes."""

_REQUEST: Final = whole(0, (1 << 64) - 1)._replace(expected="a number that add returned")
_NEED: Final[dict[str, ValueKind]] = {
    "request": _REQUEST,
    "match": Match | None,
    "delay_commit": bool,
    "loading_groups": tuple | list,
    "full_sequence_must_fit": bool,
    "is_waiting": bool,
    "num_new_tokens": COUNT,
    "num_hit_tokens": COUNT,
    "num_external_tokens": COUNT,
    "num_lookahead_tokens": COUNT,
    "num_in_flight_tokens": COUNT,
    "num_encoder_tokens": COUNT,
    "junction": COUNT.or_none(),
    "num_computed_tokens": COUNT.or_none(),
}
_NEW: Final[dict[str, ValueKind]] = {
    "extra": ExtraKeys,
    "lora_id": int | None,
    "session_id": str | None,
    "block_hashes": list | tuple | None,
    "will_return": Rule(
        lambda hint: hint is None or hasattr(hint, "__float__"),
        "True, False, a probability from 0 to 1, or None if nothing is known",
    ),
}


def check_counts(name: str, counts: Iterable[int]) -> None:
    """Refuse values of which one is no unsigned integer of 32 bits, by the name of one."""
    try:
        array("I", counts)  # There may be thousands: much faster than to find the extremes.
    except _NOT_COUNTS:
        check_each(name, counts, COUNT)


def check_requests(name: str, requests: Iterable[int]) -> None:
    """Refuse values of which one cannot be the number of a request."""
    try:
        array("Q", requests)
    except _NOT_COUNTS:
        check_each(f"{name}: request", requests, _REQUEST)


def group_of(num_groups: int) -> Rule:
    """Return the rule of groups that a cache with so many has."""
    return whole(0, num_groups - 1)._replace(expected=f"one of the {num_groups} of the cache")


def check_needs(needs: Sequence[Need], num_groups: int) -> None:
    """Refuse a need with a value that is no count, or a group that the cache does not have."""
    check("needs", needs, Sequence)
    for number, need in enumerate(needs):
        check(f"needs[{number}]", need, Need)
        check_fields(need, _NEED, prefix=f"needs[{number}].")
        check_each(f"needs[{number}]: group", need.loading_groups, group_of(num_groups))
        if need.match is not None:
            check_fields(need.match, dict.fromkeys(Match._fields, COUNT))


def check_new(**given: object) -> None:
    """Refuse what no request has; the arguments are those of `CacheManager.add`."""
    for name, value in given.items():
        check(name, value, _NEW[name])
        if name == "block_hashes" and isinstance(value, Sequence):
            for number, block_hash in enumerate(value):
                check(f"block_hashes[{number}]", block_hash, bytes)
