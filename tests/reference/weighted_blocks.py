"""The `weighted_blocks` score, token by token and by the scan that gateways use.

A pod is what its events say: kind and window per group, and the spans of tokens that copies cover.
The model is deliberately simple: every canonical block is judged by its tokens, and windows are
searched from the right until no class shortens the hit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvbraid.ids import Tier

MAIN_KINDS = {"full_attention", "mla_attention", "sink_full_attention"}
WINDOW_KINDS = {"sliding_window", "sliding_window_mla"}
GroupIndex = int | None
"""None for events without a group."""


class Group(NamedTuple):
    """What the catalogue knows of a group."""

    kind: str | None
    window: int | None = None


class Copy(NamedTuple):
    """A held engine block: tokens `first` to `end` of the request."""

    group: GroupIndex
    tier: Tier
    first: int
    end: int


@dataclass(frozen=True)
class Pod:
    catalogue: Mapping[GroupIndex, Group]
    copies: Collection[Copy]

    def main_groups(self) -> set[GroupIndex]:
        return {
            index
            for index, group in self.catalogue.items()
            if index is None or group.kind in MAIN_KINDS or (index == 0 and group.kind is None)
        }

    def classes(self, block: int) -> dict[int, set[GroupIndex]]:
        """Window groups by the number of canonical blocks that they need."""
        found: dict[int, set[GroupIndex]] = {}
        for index, group in self.catalogue.items():
            if index is None or group.kind not in WINDOW_KINDS or group.window is None:
                continue
            need = -(-(group.window - 1) // block)
            if need > 0:
                found.setdefault(need, set()).add(index)
        return found

    def covers(self, groups: Collection[GroupIndex], tiers: Sequence[Tier], block: range) -> bool:
        """Whether copies of any of the groups, on any of the tiers, hold every token."""
        spans = [c for c in self.copies if c.group in groups and c.tier in tiers]
        return all(any(c.first <= token < c.end for c in spans) for token in block)


def score(pod: Pod, num_tokens: int, block: int, weights: Mapping[Tier, float]) -> float | None:
    """Return the score; None where the catalogue does not tell how."""
    # A copy that ends beyond the request is one of another prompt: its hash covers more tokens.
    pod = Pod(pod.catalogue, [copy for copy in pod.copies if copy.end <= num_tokens])
    main, classes = pod.main_groups(), pod.classes(block)
    if not main and not (0 in pod.catalogue and classes):
        return None
    blocks = [range(k * block, (k + 1) * block) for k in range(num_tokens // block)]
    hit = len(blocks)
    if main:
        hit = next((k for k, b in enumerate(blocks) if not pod.covers(main, list(Tier), b)), hit)
    hit = _shorten(pod, classes, blocks, hit)
    tiers = sorted(Tier, key=lambda tier: -weights[tier])
    counted = main or set(pod.catalogue)
    return sum(
        next(
            (
                weights[tier]
                for i, tier in enumerate(tiers)
                if pod.covers(counted, tiers[: i + 1], block)
            ),
            1.0,  # A null block: only pods without main attention get here.
        )
        for block in blocks[:hit]
    )


def _shorten(
    pod: Pod, classes: Mapping[int, set[GroupIndex]], blocks: Sequence[range], hit: int
) -> int:
    while True:
        hits = [hit]
        for need, members in classes.items():
            held = [all(pod.covers([g], list(Tier), b) for g in members) for b in blocks[:hit]]
            hits.append(_window_hit(held, need))
        if min(hits) == hit:
            return hit
        hit = min(hits)


def _window_hit(held: Sequence[bool], need: int) -> int:
    """Scan from the right for `need` blocks in a row; else the run that touches block 0."""
    run = 0
    for i in reversed(range(len(held))):
        run = run + 1 if held[i] else 0
        if run == need:
            return i + need
    return run
