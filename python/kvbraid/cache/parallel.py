"""Context parallelism: which groups can run while a request's tokens are spread over ranks.

Every rank has the same block tables, so that the cache itself is one. What changes is what a block
means: with decode-context parallelism over D ranks a block of a sharded group covers D times the
tokens that one rank keeps of it, and a topology has that effective size. Groups that no engine
can shard are refused here, and nothing else happens here.

    tokens       0       16       32       48       64     (2 ranks, blocks of 16 a rank)
    full         |       b1       |       b2       |       effective blocks of 32
    state        |  null |  null  |  null |   b3   |       a whole state on every rank
    replicated   |  b4   |   b5   |  b6   |   b7   |       all tokens on every rank
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from kvbraid.errors import InvalidValueError
from kvbraid.spec import GroupSpec, SpecKind


class Share(Enum):
    """What a rank keeps of a group; valued as refusals name it."""

    FULL = "full"  # Its own tokens of each block.
    STATE = "state"  # The whole state.
    REPLICATED = "replicated"  # All tokens, whatever the kind.
    UNSHARABLE = "other"  # Nobody knows how to shard it.


ADMITTED: Final[Mapping[str, tuple[Share, ...]]] = {
    "decode_context_parallel": (Share.FULL, Share.STATE, Share.REPLICATED),
    "prefill_context_parallel": (Share.FULL, Share.REPLICATED),
}
"""By field of the configuration, the groups that vLLM admits."""


def share_of(group: GroupSpec, *, is_replicated: bool, is_ring: bool) -> Share:
    """Return what a rank keeps of a group."""
    if group.kind is SpecKind.MAMBA:
        return Share.STATE
    if is_replicated:
        return Share.REPLICATED
    return Share.FULL if group.kind.is_full and not is_ring else Share.UNSHARABLE


def check_ranks(ranks: Mapping[str, int], groups: Sequence[tuple[GroupSpec, Share]]) -> None:
    """Refuse groups that cannot run on so many ranks. `ranks`: by name, as in `ADMITTED`.

    Raises:
        InvalidValueError: Names the group, what is admitted, and the remedy.
    """
    for name, num_ranks in ranks.items():
        if num_ranks < 1:
            raise InvalidValueError(f"{name} is {num_ranks} ranks; expected at least 1")
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
