"""What a plan costs beyond the bytes that layers use: per group, per request, per number of slots.

    group     a block has the same bytes for every group; empty slots and padding are unused
    request   at its fullest, it holds blocks of each group, and takes every one of them whole
    slots     fewer make blocks smaller and groups more; more leave slots empty

Invariant: nothing here changes a plan. Bytes are of one rank. The last block of a request counts
as full, and the null block belongs to no request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from kvbraid.layout.plan import MemoryPlan
from kvbraid.layout.planning.layers import LayoutGroup
from kvbraid.models.pages import Page
from kvbraid.reading import OFFSET, check
from kvbraid.spec import SpecKind

STATE_BLOCKS: Final = 2
"""Blocks of states that a request holds: the running one, and the one that it goes on from."""

_MAX_CHOICES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWaste:
    """The bytes of one group's block: used by layers, padding inside their pages, or empty.

    Empty are slots without a layer, buffers that the group does not touch, and what alignment
    adds.
    """

    used_bytes: int
    padding_bytes: int
    empty_bytes: int

    @property
    def unused_bytes(self) -> int:
        """Bytes that no layer of the group uses."""
        return self.padding_bytes + self.empty_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """What a request of `num_tokens` takes from the pool at its fullest, and what layers use."""

    num_tokens: int
    num_blocks: int
    pool_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChoice:
    """Groups of at most `num_slots` layers: how many there are, and the bytes of their blocks.

    `buckets` has, for each set of equal layers, one of its groups and the number of its groups.
    """

    num_slots: int
    block_bytes: int
    buckets: tuple[tuple[LayoutGroup, int], ...]

    @property
    def num_groups(self) -> int:
        """Groups, each with a block table of its own."""
        return sum(count for _, count in self.buckets)

    def pool_bytes(self, num_tokens: int) -> int:
        """Return what a request takes from the pool at its fullest."""
        blocks = (count * blocks_of_request(group, num_tokens) for group, count in self.buckets)
        return self.block_bytes * sum(blocks)


def group_waste(plan: MemoryPlan, groups: Sequence[LayoutGroup]) -> tuple[GroupWaste, ...]:
    """Return where the bytes of each group's block go; `groups` are those planned."""
    found = []
    for planned, group in zip(plan.groups, groups, strict=True):
        pages = [layer.page for layer in group.layers]
        padding = sum(page.page_bytes - page.content_bytes for page in pages)
        used = planned.used_bytes
        empty = plan.block_bytes - used - padding
        found.append(GroupWaste(used_bytes=used, padding_bytes=padding, empty_bytes=empty))
    return tuple(found)


def blocks_of_request(group: LayoutGroup, num_tokens: int) -> int:
    """Return the most blocks of a group that a request holds until it has `num_tokens` tokens.

    A window of w tokens reaches w - 1 back from each token, and need not start with a block.
    """
    page, size = group.layers[0].page, group.block_size
    grown = -(-num_tokens // size)
    if group.kind is SpecKind.MAMBA:
        return min(grown, STATE_BLOCKS)
    if group.kind.is_full or not isinstance(page, Page):
        return grown
    if page.window is not None:
        return min(grown, -(-(page.window - 1) // size) + 1)
    if page.chunk is not None:
        return min(grown, -(-page.chunk // size) + (page.chunk % size > 0))
    return grown


def request_cost(plan: MemoryPlan, groups: Sequence[LayoutGroup], num_tokens: int) -> RequestCost:
    """Return what a request of so many tokens takes; `groups` are those planned.

    Raises:
        InvalidValueError: A number of tokens that is no whole number, or below 0.
    """
    check("num_tokens", num_tokens, OFFSET)
    counts = [blocks_of_request(group, num_tokens) for group in groups]
    used = (count * group.used_bytes for count, group in zip(counts, plan.groups, strict=True))
    return RequestCost(
        num_tokens=num_tokens,
        num_blocks=sum(counts),
        pool_bytes=sum(counts) * plan.block_bytes,
        used_bytes=sum(used),
    )


def longest_request(groups: Sequence[LayoutGroup], num_blocks: int) -> int | None:
    """Return the tokens of the longest request that `num_blocks` blocks hold; None: of any."""

    def needed(num_tokens: int) -> int:
        return sum(blocks_of_request(group, num_tokens) for group in groups)

    fits, beyond = 0, num_blocks * max(group.block_size for group in groups) + 1
    if needed(beyond) <= num_blocks:
        return None
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        fits, beyond = (middle, beyond) if needed(middle) <= num_blocks else (fits, middle)
    return fits


def slot_choices(groups: Sequence[LayoutGroup]) -> tuple[SlotChoice, ...]:
    """Return what other numbers of slots would give, fewest first, at most six.

    The numbers divide one of the sets of equal layers and are at least half of the smallest set.
    There is no choice if all layers are one group, or if pages differ in size.
    """
    sets: dict[object, list[LayoutGroup]] = {}
    for group in groups:
        sets.setdefault((group.kind, group.layers[0].page), []).append(group)
    pages = {layer.page.page_bytes for group in groups for layer in group.layers}
    if len(groups) == 1 or len(pages) > 1:
        return ()
    sizes = [sum(len(group.layers) for group in same) for same in sets.values()]
    now = max(len(group.layers) for group in groups)
    nearest = sorted({now, *_divisors(sizes)}, key=lambda slots: abs(log(slots / now)))
    return tuple(
        SlotChoice(
            num_slots=slots,
            block_bytes=slots * max(pages),
            buckets=tuple(
                (same[0], -(-size // slots))
                for same, size in zip(sets.values(), sizes, strict=True)
            ),
        )
        for slots in sorted(nearest[:_MAX_CHOICES])
    )


def _divisors(sizes: Sequence[int]) -> Iterator[int]:
    for size in sizes:
        yield from (n for n in range(1, size + 1) if size % n == 0 and 2 * n >= min(sizes))
