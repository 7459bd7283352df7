"""What a bug of the tables is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """`text` occurs once in `file`, which is named from the root of the tree."""

    file: str
    text: str
    instead: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug; each of `killed_by` alone must fail on it, with an assertion."""

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    killed_by: tuple[str, ...]
