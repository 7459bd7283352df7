"""The fields of a recovery's state as JSON, and what is wrong with a text in one line.

The structs say what may stand where. A refusal names the place, the value there, and a remedy.
Hostile text can do no more than appear in it, shortened. Nothing here reads a file.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from kvbraid.errors import InvalidValueError, TooLargeError, one_line
from kvbraid.reading import Count, Fields, Positive, described

MAX_BYTES: Final = 256 << 20
"""The longest text that is read: many times what 256 requests of 32 k tokens in 6 groups take."""

RequestNumber = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Pair = tuple[Count, Count]
"""A group and a block; of a state, the tokens that it covers and its position."""


class FindableFields(Fields, frozen=True, kw_only=True):
    """What a look-up finds by the request's own hash."""

    group: Count
    position: Count
    blocks: tuple[Positive, ...]


class GivenBackFields(Fields, frozen=True, kw_only=True):
    """A loaded block that was read and given back; `copied`, as in `GivenBack`."""

    group: Count
    position: Count
    block: Positive
    copied: bool = False


class RunFields(Fields, frozen=True, kw_only=True):
    """A `Run` and its tables; `states` only if it goes on."""

    request: RequestNumber
    num_tokens: Positive
    num_prompt_tokens: Positive
    num_known_tokens: Positive
    num_local_tokens: Count
    num_loaded_tokens: Count
    num_processed_tokens: Count
    num_computed_tokens: Count
    tables: tuple[tuple[Count, ...], ...]
    delays_commit: bool = False
    states: tuple[tuple[Pair, ...], ...] = ()
    findable: tuple[FindableFields, ...] = ()
    given_back: tuple[GivenBackFields, ...] = ()
    ended: bool = False


class PlacesFields(Fields, frozen=True, kw_only=True):
    """Positions in one table that failed."""

    request: RequestNumber
    group: Count
    positions: tuple[Count, ...]


class CauseFields(Fields, frozen=True, kw_only=True):
    """Why one record could not be loaded; its key in hexadecimal digits."""

    tier: Annotated[str, Meta(min_length=1, max_length=256)]
    key: Annotated[str, Meta(max_length=1024, pattern="^([0-9a-f]{2})*$")]
    cause: Literal["miss", "short", "corrupt", "timeout", "io_error"]
    foreign: bool = False


class FailureFields(Fields, frozen=True, kw_only=True):
    """A `Failures`: everything that was reported, in the forms in which it was."""

    places: tuple[PlacesFields, ...] = ()
    group_blocks: tuple[Pair, ...] = ()
    blocks: tuple[Count, ...] = ()
    requests: tuple[RequestNumber, ...] = ()
    contents: tuple[Pair, ...] = ()
    causes: tuple[CauseFields, ...] = ()


class BusyFields(Fields, frozen=True, kw_only=True):
    """Blocks that a transfer may still write."""

    group_blocks: tuple[Pair, ...] = ()
    blocks: tuple[Count, ...] = ()


class StateFields(Fields, frozen=True, kw_only=True):
    """The whole state. `pools` has one number per group, and is empty if all share one pool."""

    version: Literal[1]
    topology: dict[str, Any]
    num_blocks: Positive
    runs: tuple[RunFields, ...]
    failures: FailureFields
    pools: tuple[Annotated[int, Meta(ge=0, lt=64)], ...] = ()
    busy: BusyFields = BusyFields()
    former: tuple[Positive, ...] = ()
    policy: Literal["recompute", "retry", "fail"] = "recompute"


_DECODER: Final = msgspec.json.Decoder(StateFields)


def decode(data: bytes) -> StateFields:
    """Decode a state.

    Raises:
        TooLargeError: The text is longer than `MAX_BYTES`.
        InvalidValueError: It is not JSON, or a value does not fit; the message is one line.
    """
    if len(data) > MAX_BYTES:
        msg = f"a state of {len(data)} bytes; at most {MAX_BYTES} are read: leave runs out"
        raise TooLargeError(msg)
    try:
        try:
            return _DECODER.decode(data)
        except msgspec.ValidationError as error:
            found, remedy = msgspec.json.decode(data), "docs/recovery.md has the schema"
            said = described(error, StateFields, found, name="the state", remedy=remedy)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = one_line(f"not JSON: {error}; give a file that a scheduler wrote")
    raise InvalidValueError(said)
