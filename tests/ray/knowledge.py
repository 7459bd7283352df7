"""What a router knows: how far it has read of each replica, and what it predicts for a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kvbraid.fleet import Request
from kvbraid.integrations.ray import KvbraidRouter

Row: TypeAlias = tuple[tuple[str, int], int, int, int]
"""A rank, and the lower bound, the upper bound and the expected number of reused tokens."""


def rows(router: KvbraidRouter, prompt: Sequence[int]) -> list[Row]:
    request = Request(model=router._options.model, token_ids=prompt)
    found = router._chooser.router._index.score(request).columns()
    return sorted(zip(found.ranks, found.lower, found.upper, found.expected, strict=True))


def has_read(router: KvbraidRouter, last_seqs: Mapping[str, int]) -> bool:
    """Whether it follows these replicas alone, and has applied what each has published last."""
    feed: Any = router._chooser.replicas._feed
    known = {row.pod: row for row in feed.status()}
    return known.keys() == last_seqs.keys() and all(
        known[pod].is_rebuilt and (seq < 0 or known[pod].last_seq == seq)
        for pod, seq in last_seqs.items()
    )
