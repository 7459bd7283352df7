"""Which tier the tokens of a load are counted under, for an engine's own statistics.

    token      a token is counted under the slowest tier that one of its blocks has come from
    state      stands for every token before it
    no block   windows leave blocks out: such tokens count under the slowest tier of the load

What was read from a record for a request is counted under the record's tier, although it is in
host memory by the time that its load begins.
"""

from collections.abc import Sequence

from kvbraid.spec import GroupSpec, SpecKind
from kvbraid.transfer.offload.lookup import Found


def tokens_by_tier(
    found: Found, num_tokens: int, groups: Sequence[GroupSpec], tiers: Sequence[str]
) -> dict[str, int]:
    """Split the first tokens of a load by the tier that they come from.

    Args:
        found: What is loaded.
        num_tokens: How many tokens of it are loaded, after those of its match.
        groups: The groups of the cache.
        tiers: The names of all places, the nearest first: "" for the cache's own pool.
    """
    if not num_tokens:
        return {}
    start = found.match.num_tokens
    spans = []
    for source in found.sources:
        size = groups[source.group].block_size
        is_state = groups[source.group].kind is SpecKind.MAMBA
        begin = 0 if is_state else max(source.position * size - start, 0)
        end = max(min((source.position + 1) * size - start, num_tokens), begin)
        tier = tiers.index(found.tier_of(source))
        spans.append((tier, begin, end))
    slowest = max((tier for tier, _, _ in spans), default=0)
    owners = bytearray([slowest]) * num_tokens
    for tier, begin, end in sorted(spans):  # The slowest is written last.
        owners[begin:end] = bytes([tier]) * (end - begin)
    counts = {name: owners.count(tier) for tier, name in enumerate(tiers)}
    return {name: count for name, count in counts.items() if count}
