"""What became of one block of a job."""

from enum import StrEnum


class Status(StrEnum):
    """The end of one block's move. Only `OK` says that the bytes are where they should be."""

    OK = "ok"
    MISS = "miss"  # The record is not there.
    SHORT = "short"  # It is there in part.
    CORRUPT = "corrupt"  # Its bytes are not those that were stored.
    FOREIGN = "foreign"  # It is another model's, rank's or version's.
    TIMEOUT = "timeout"  # The deadline passed; the call may still run.
    IO_ERROR = "io_error"  # The tier could not be read or written.
    FULL = "full"  # There is no room.
