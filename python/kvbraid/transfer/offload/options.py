"""How blocks are offloaded. Frozen data."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from kvbraid.reading import POSITIVE, Rule, ValueKind, check_fields

_DURATION: Final = Rule(lambda value: isinstance(value, float | int) and value >= 0, "at least 0")


class RecordTier(NamedTuple):
    """A tier below host memory, as its operator names it, and how many records it keeps."""

    name: str
    num_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptions:
    """The limits of one engine's offload. Durations are in the units of the manager's clock.

    Attributes:
        host_name: What offers, records and counters call the host tier.
        max_pending_stores: The most device blocks that are held because they are to be stored. It
            is never more than half of the cache's pool.
        max_pending_writes: The most host slots that are pinned for writes to one tier. It is never
            more than a quarter of the slots. Further writes wait without a pin.
        max_promotions: The most records that are read at once.
        max_job_items: The most blocks of one job.
        promote_deadline: For how long a look-up asks the caller to ask again.
        load_deadline: For how long a load waits for records; what is missing then has failed.
        failures_before_rest: After how many failed writes in a row a tier gets none for a while.
        rest: For how long a tier is left alone: by writes after these failures, and by look-ups
            after `back_off`.
        max_known_requests: Of how many requests that were looked up the tokens are remembered, for
            events.
        max_loads: Of how many loads it is remembered what they have read.
        max_origins: Of how many copies it is remembered which device block they were copied from.

    Raises:
        InvalidValueError: A number is out of range.
    """

    host_name: str = "host"
    max_pending_stores: int = 1_024
    max_pending_writes: int = 256
    max_promotions: int = 256
    max_job_items: int = 256
    promote_deadline: float = 100
    load_deadline: float = 1_000
    failures_before_rest: int = 3
    rest: float = 100
    max_known_requests: int = 256
    max_loads: int = 1_024
    max_origins: int = 1 << 18

    def __post_init__(self) -> None:
        check_fields(self, _KINDS)


_KINDS: Final[dict[str, ValueKind]] = {
    "host_name": str,
    "promote_deadline": _DURATION,
    "load_deadline": _DURATION,
    "rest": _DURATION,
    **dict.fromkeys(
        (
            "max_pending_stores",
            "max_pending_writes",
            "max_promotions",
            "max_job_items",
            "failures_before_rest",
            "max_known_requests",
            "max_loads",
            "max_origins",
        ),
        POSITIVE,
    ),
}
