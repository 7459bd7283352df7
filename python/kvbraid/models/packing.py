"""Packing: the groups of a layout in which pages of several sizes stand side by side in a block.

    50 windowed layers of 256 KiB and 10 full ones of 128 KiB, all in blocks of 1 280 KiB:

    each of ten groups   | W0  | W1  | W2  | W3  | W4  |
    the eleventh group   |F0|F1|F2|F3|F4|F5|F6|F7|F8|F9|

Invariant: no page is made larger than it is. Layers that need blocks at the same time form a
bucket; one with equally many layers of each page size is a pattern of one layer per size, which
repeats, and is cut between repeats only. If a pattern has several sizes, all patterns are cut into
groups of about as many repeats, and otherwise windows are cut so that they fit the block that
other layers need; states always are. The rules are those of vLLM 0.32
(`_get_packed_kv_cache_groups`), which applies them where blocks are the outermost dimension and
pages have several sizes; where one size or one group is enough, the groups are those of
grouping.py. This module places no layer in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from kvbraid.errors import TopologyError
from kvbraid.models.grouping import LayerGroup, by_type, form_groups
from kvbraid.models.pages import CacheLayer
from kvbraid.spec import SpecKind


def packed_groups(layers: Sequence[CacheLayer]) -> tuple[LayerGroup, ...]:
    """Split layers into groups whose pages may differ in size, in the engine's order.

    Raises:
        TopologyError: Windows of several page sizes that have to be cut, but repeat no pattern.
    """
    buckets = [_Bucket.of(bucket) for bucket in by_type(layers)]
    if len(buckets) < 2 or len({layer.page.page_bytes for layer in layers}) < 2:
        return form_groups(layers)
    repeats = _repeats_of_a_group(buckets)
    limits = [bucket.num_groups(repeats) for bucket in buckets]
    block_bytes = max(
        bucket.group_bytes(most) for bucket, (_, most) in zip(buckets, limits, strict=True)
    )
    return tuple(
        group
        for bucket, (fewest, most) in zip(buckets, limits, strict=True)
        for group in bucket.cut(min(most, max(fewest, bucket.num_fitting(block_bytes))))
    )


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers of one type and block size; each column has those with pages of one size."""

    layers: tuple[CacheLayer, ...]
    columns: tuple[tuple[CacheLayer, ...], ...]

    @classmethod
    def of(cls, layers: Sequence[CacheLayer]) -> "_Bucket":
        columns: dict[int, list[CacheLayer]] = {}
        for layer in layers:
            columns.setdefault(layer.page.page_bytes, []).append(layer)
        return cls(tuple(layers), tuple(map(tuple, columns.values())))

    @property
    def num_repeats(self) -> int:
        """Layers in the longest column, which is every column of a pattern."""
        return max(map(len, self.columns))

    @property
    def is_pattern(self) -> bool:
        """Whether the bucket has equally many layers of each page size."""
        return all(len(column) == self.num_repeats for column in self.columns)

    def num_groups(self, repeats: int | None) -> tuple[int, int]:
        """Return the fewest and the most groups: more than the fewest only to fit a block.

        A pattern has at most `repeats` repeats in each group; None: no pattern is cut.
        """
        fewest = -(-self.num_repeats // repeats) if self.is_pattern and repeats else 1
        kind = self.layers[0].page.kind
        elastic = kind is SpecKind.MAMBA or (repeats is None and kind.is_window)
        return fewest, len(self.layers) if elastic else fewest

    def num_fitting(self, block_bytes: int) -> int:
        """Groups of as many layers as fit a block; the first layer's page stands for all."""
        fitting = max(block_bytes // self.layers[0].page.page_bytes, 1)
        return -(-len(self.layers) // fitting)

    def group_bytes(self, num_groups: int) -> int:
        """Bytes of the largest of so many groups."""
        return sum(
            -(-len(column) // num_groups) * column[0].page.page_bytes for column in self.columns
        )

    def cut(self, num_groups: int) -> Iterator[LayerGroup]:
        """Yield so many groups; each takes every n-th repeat of the pattern.

        Raises:
            TopologyError: There is no pattern.
        """
        if num_groups == 1:
            yield LayerGroup(layers=self.layers)
            return
        if not self.is_pattern:
            raise self._refusal(num_groups)
        repeats = list(zip(*self.columns, strict=True))
        for first in range(num_groups):
            yield LayerGroup(layers=tuple(chain.from_iterable(repeats[first::num_groups])))

    def _refusal(self, num_groups: int) -> TopologyError:
        sizes = ", ".join(
            f"{len(column)} of {column[0].page.page_bytes:,} bytes" for column in self.columns
        )
        return TopologyError(
            f"{self.layers[0]} and {len(self.layers) - 1} more of its type have pages of several "
            f"sizes ({sizes}) and need {num_groups} groups, so that each fits the block of other "
            "layers; only equally many layers of each size can be cut into groups, so give these "
            "layers equal heads, or group them without packing"
        )


def _repeats_of_a_group(buckets: Sequence[_Bucket]) -> int | None:
    """Return how many repeats each group takes, if there is a pattern of several page sizes.

    Such a pattern stays in one group, so the largest is the least. Of all numbers from there on,
    the one that leaves fewest repeats empty is taken, and the larger of two that leave equally
    many. There are no more candidates than layers.
    """
    patterns = [bucket for bucket in buckets if bucket.is_pattern]
    mixed = [bucket.num_repeats for bucket in patterns if len(bucket.columns) > 1]
    if not mixed:
        return None
    counts = [bucket.num_repeats for bucket in patterns]
    candidates = range(max(counts), max(mixed) - 1, -1)
    return min(candidates, key=lambda size: sum(-count % size for count in counts))
