"""The limits of a tier's threads and queue, and how long they are given."""

from dataclasses import dataclass
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.reading import POSITIVE, SIZE, Rule, ValueKind, check_fields

_SECONDS: Final = Rule(lambda value: isinstance(value, int | float) and value > 0, "more than 0 s")
_KINDS: Final[dict[str, ValueKind]] = {
    "num_threads": POSITIVE,
    "max_hung_threads": POSITIVE,
    "max_queued_items": POSITIVE,
    "max_queued_bytes": SIZE,
    "load_deadline_s": _SECONDS,
    "store_deadline_s": _SECONDS,
    "errors_in_a_row": POSITIVE,
    "pause_s": _SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How much of a tier runs at a time, how much waits, and for how long.

    Attributes:
        num_threads: Calls of the tier at a time.
        max_hung_threads: With that many calls past their deadlines the tier is off.
        max_queued_items: Blocks that may wait, of each kind of job.
        max_queued_bytes: Bytes that may wait, of each kind of job.
        load_deadline_s: Seconds from the submission of a load to its answer at the latest.
        store_deadline_s: The same of stores and drops.
        errors_in_a_row: After that many failed stores in a row, none is tried for `pause_s`.
        pause_s: How long no store is tried then, or once the tier is full.

    Raises:
        InvalidValueError: A value is out of its range.
    """

    num_threads: int = 4
    max_hung_threads: int = 2
    max_queued_items: int = 16_384
    max_queued_bytes: int = 1 << 30
    load_deadline_s: float = 5.0
    store_deadline_s: float = 30.0
    errors_in_a_row: int = 3
    pause_s: float = 10.0

    def __post_init__(self) -> None:
        check_fields(self, _KINDS)
        if self.max_hung_threads > self.num_threads:
            msg = (
                f"StoreOptions.max_hung_threads = {self.max_hung_threads} of {self.num_threads} "
                "threads; expected at most all of them"
            )
            raise InvalidValueError(msg)
