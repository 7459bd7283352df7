"""Context parallelism: which groups can run while a request's tokens are spread over ranks.

All ranks share the same block tables, so one cache serves them all. Only the meaning of a block
changes: with decode-context parallelism over D ranks, a block of a sharded group covers D times
the tokens that each rank keeps. A topology holds this effective size. This module only refuses
groups that no engine can shard.

    tokens       0       16       32       48       64     (2 ranks, blocks of 16 a rank)
    full         |       b1       |       b2       |       effective blocks of 32
    state        |  null |  null  |  null |   b3   |       a whole state on every rank
    replicated   |  b4   |   b5   |  b6   |   b7   |       all tokens on every rank
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.reading import POSITIVE, check
from kvbraid.spec import GroupSpec, SpecKind


class Share(Enum):
    """What a rank keeps of a group; the values appear in error messages."""

    FULL = "full"  # Its own tokens of each block.
    STATE = "state"  # The whole state.
    REPLICATED = "replicated"  # All tokens, whatever the kind.
    UNSHARABLE = "other"  # No engine can shard it.


ADMITTED: Final[Mapping[str, tuple[Share, ...]]] = {
    "decode_context_parallel": (Share.FULL, Share.STATE, Share.REPLICATED),
    "prefill_context_parallel": (Share.FULL, Share.REPLICATED),
}
"""For each field of the configuration, the groups that vLLM admits."""


def share_of(group: GroupSpec, *, is_replicated: bool, is_ring: bool) -> Share:
    """Return what a rank keeps of a group."""
    if group.kind is SpecKind.MAMBA:
        return Share.STATE
    if is_replicated:
        return Share.REPLICATED
    return Share.FULL if group.kind.is_full and not is_ring else Share.UNSHARABLE


def check_ranks(ranks: Mapping[str, int], groups: Sequence[tuple[GroupSpec, Share]]) -> None:
    """Refuse groups that cannot run on the given numbers of ranks.

    `ranks` has the same keys as `ADMITTED`.

    Raises:
        InvalidValueError: The message names the group, what is admitted, and the remedy.
    """
    for name, num_ranks in ranks.items():
        check(name, num_ranks, POSITIVE)
        if num_ranks == 1:
            continue
        for index, (group, share) in enumerate(groups):
            if share not in ADMITTED[name]:
                admitted = ", ".join(share.value for share in ADMITTED[name])
                raise InvalidValueError(
                    f"group {index} ({group.kind.value}): {name} = {num_ranks} admits groups that "
                    f"are {admitted}; set {name} to 1, or mark an attention group is_replicated "
                    "if every rank keeps all of it"
                )
    _check_blocks(ranks["decode_context_parallel"], groups)


def _check_blocks(num_ranks: int, groups: Sequence[tuple[GroupSpec, Share]]) -> None:
    for index, (group, share) in enumerate(groups):
        if share is Share.FULL and group.block_size % num_ranks:
            raise InvalidValueError(
                f"group {index} ({group.kind.value}): block_size {group.block_size} is no "
                f"multiple of decode_context_parallel = {num_ranks}; give the tokens that a block "
                "covers on all ranks together, as GroupSpec.sharded_over does"
            )
