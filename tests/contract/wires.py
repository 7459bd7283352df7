"""Events as SGLang and vLLM write them, and how a test publishes them."""

from typing import Any

import msgspec.msgpack
from kvbraid.engine import EngineProfile
from kvbraid.fleet.index import FleetIndex
from kvbraid.spec import EngineDialect, GroupSpec, SpecKind, Topology

from tests.contract.prompts import POD, Text


def publish(index: FleetIndex, events: list[Any], *rank: int) -> None:
    index.apply(POD, msgspec.msgpack.encode([0.0, events, *rank]))
    index.check_integrity()


SGLANG = EngineProfile(dialect=EngineDialect.SGLANG)
SGLANG_FULL = Topology(
    groups=(GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),),
)
SGLANG_HYBRID = Topology(
    groups=(
        GroupSpec(kind=SpecKind.SLIDING_WINDOW, block_size=16, window=128),
        GroupSpec(kind=SpecKind.FULL_ATTENTION, block_size=16),
    ),
)


def signed(value: int | None) -> int | None:
    return value - 2**64 if value is not None and value >= 2**63 else value


def page(text: Text, first: int, last: int, *rest: Any) -> list[Any]:  # noqa: ANN401
    """The oldest form, and whatever follows its six fields."""
    hashes = [signed(text.hash((j + 1) * 16)) for j in range(first, last)]
    parent = signed(text.hash(first * 16)) if first else None
    tokens = list(text.tokens[first * 16 : last * 16])
    return ["BlockStored", hashes, parent, tokens, 16, None, *rest]


def bigrams(text: Text, first: int, last: int) -> list[Any]:
    """Pages of 16 pairs: each covers the first token of the next page as well."""
    event = page(text, first, last)
    tokens = text.prompt
    event[3] = [[tokens[i], tokens[i + 1]] for i in range(first * 16, last * 16)]
    return event


CLEARED = ["AllBlocksCleared"]
