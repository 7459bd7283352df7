"""Prompts as one engine caches and publishes them, and answers as short rows.

As in the engines, a hash names a prefix by its last boundary and never a group; the caller chooses
which blocks a group keeps. The prompt of a request is one token longer than the cached part,
because the last token is always computed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from kvbraid.engine import EngineProfile
from kvbraid.events import BlockRemoved, BlockStored, Event, WireForm, encode_batch
from kvbraid.fleet.index import FleetIndex, IndexOptions
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.spec import Topology

MODEL = "m"
POD = PodId("a")
OTHER = PodId("b")

Bound: TypeAlias = tuple[int, int]
"""Lower and upper, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group as its events describe it; `idx` and `kind` None as older engines leave them."""

    idx: int | None = 0
    kind: str | None = "full_attention"
    block: int = 16
    window: int | None = None


FULL = Group()
WINDOW = Group(idx=1, kind="sliding_window", window=128)


@dataclass(frozen=True, kw_only=True)
class Text:
    """A prompt of `num_tokens` cached tokens; `engine` names a hash seed."""

    num_tokens: int = 1024
    seed: int = 0
    engine: str = ""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The cached tokens."""
        return tuple(range(self.seed * 100_000, self.seed * 100_000 + self.num_tokens))

    @property
    def prompt(self) -> tuple[int, ...]:
        """What a request asks for: one token more."""
        return (*self.tokens, 7)

    def hash(self, end: int) -> int:
        """The engine's hash of the prefix that ends at token `end`, in its integer form."""
        return int.from_bytes(self.digest(end)[-8:], "big")

    def digest(self, end: int) -> bytes:
        """The same hash as 32 bytes."""
        return blake2b(f"{self.engine}/{self.seed}/{end}".encode(), digest_size=32).digest()

    def stored(
        self,
        group: Group = FULL,
        blocks: range | None = None,
        *,
        keep: Iterable[int] | None = None,
        **fields: Any,  # noqa: ANN401 - fields of the event, as they are
    ) -> BlockStored:
        """A store of a run of the group's blocks, of which only those in `keep` are listed."""
        size = group.block
        span = range(self.num_tokens // size) if blocks is None else blocks
        start, end = span.start * size, span.stop * size
        return BlockStored(
            **{
                "block_hashes": tuple(self.hash((j + 1) * size) for j in keep or span)
                if keep is None or tuple(keep)
                else (),
                "parent_block_hash": self.hash(start) if start else None,
                "token_ids": self.tokens[start:end],
                "block_size": size,
                "group_idx": group.idx,
                "kv_cache_spec_kind": group.kind,
                "kv_cache_spec_sliding_window": group.window,
                **fields,
            }
        )

    def removed(
        self,
        group: Group,
        blocks: Iterable[int],
        **fields: Any,  # noqa: ANN401 - fields of the event, as they are
    ) -> list[Event]:
        """Removals as engines send them: one event per block."""
        return [
            BlockRemoved(
                block_hashes=(self.hash((j + 1) * group.block),), group_idx=group.idx, **fields
            )
            for j in blocks
        ]


TEXT = Text()
VLLM = EngineProfile()


def an_index(
    topology: Topology | None = None,
    *,
    engine: EngineProfile = VLLM,
    pods: Sequence[PodId] = (POD,),
    dp_size: int = 1,
    options: IndexOptions | None = None,
) -> FleetIndex:
    """An index that knows these pods."""
    index = FleetIndex(options)
    for pod in pods:
        index.register(pod, model=MODEL, topology=topology, engine=engine, dp_size=dp_size)
    return index


def tell(
    index: FleetIndex, *events: Event, pod: PodId = POD, form: WireForm = "map", dp_rank: int = 0
) -> None:
    """One published batch."""
    index.apply(pod, encode_batch(events, form=form), dp_rank=dp_rank)
    index.check_integrity()


def answer(
    index: FleetIndex,
    tokens: Sequence[int] = TEXT.prompt,
    *,
    pod: PodId = POD,
    dp_rank: int = 0,
    **request: Any,  # noqa: ANN401 - fields of the request, as they are
) -> Bound:
    """Lower and upper for one rank."""
    rows = index.score(Request(model=MODEL, token_ids=list(tokens), **request)).rows
    index.check_integrity()
    (row,) = [row for row in rows if (row.pod, row.dp_rank) == (pod, dp_rank)]
    return row.lower, row.upper


def exactly(tokens: int) -> Bound:
    """Both bounds alike."""
    return tokens, tokens
